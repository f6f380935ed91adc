import threading
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import pytest

from fedjax_ht.core import compiling
from fedjax_ht.core.compiling import (
    GRAPH_OPTIONS,
    compile_ahead,
    compiler_options,
    enable_compilation_cache,
)
from fedjax_ht.simulation.engine import forget_engines
from tests.federations import to_host
from tests.standard import simulation_of


def two_rounds():
    sim = simulation_of("lg_fedavg", participation=0.6, lanes=2, devices=1)
    state, reports = sim.init(), []
    for _ in range(2):
        state, report = sim.run_round(state)
        reports.append((report.metrics, report.accuracy))
    return to_host(state), reports


def test_all_buckets_in_one_program_give_the_same(monkeypatch):
    """GPUs run all buckets as one graph."""
    apart, reports = two_rounds()
    compiled = []
    monkeypatch.setattr(compiling, "platform_of", lambda mesh: "gpu")
    monkeypatch.setattr(compiling, "compiler_options", compiled.append)
    forget_engines()  # those of the CPU
    together, reports_together = two_rounds()
    # training and scoring, of both buckets together; the server's programs are of the CPU
    assert compiled.count("gpu") == 2
    states = (apart.server, apart.clients), (together.server, together.clients)
    chex.assert_trees_all_close(*states, rtol=0, atol=1e-6)
    chex.assert_trees_all_close(reports, reports_together, rtol=1e-5)


@pytest.fixture
def with_jax(monkeypatch):
    """Sets jax's version, in a process that has not warned of one yet."""
    compiling._warn_of_no_graphs.cache_clear()
    yield lambda *version: (
        monkeypatch.setattr(jax, "__version_info__", version),
        monkeypatch.setattr(jax, "__version__", ".".join(map(str, version))),
    )
    compiling._warn_of_no_graphs.cache_clear()


@pytest.mark.parametrize("version", [(0, 10, 2), (0, 11, 0), (0, 12, 0, 1)])
def test_loops_are_graphed_on_gpus_alone(version, with_jax, caplog):
    with_jax(*version)
    assert compiler_options("cpu") is None and compiler_options("tpu") is None
    options = compiler_options("gpu")
    graphed = options["xla_gpu_enable_command_buffer"].split(",")
    assert {"WHILE", "CONDITIONAL", "FUSION"} <= set(graphed)
    assert options["xla_gpu_command_buffer_scheduling_mode"] == "CONCURRENT"
    assert not caplog.records


def test_this_jax_has_graphs():
    version = jax.__version_info__[:2]
    assert version < min(GRAPH_OPTIONS) or version in GRAPH_OPTIONS, (
        f"jax {jax.__version__} has no entry in core.compiling.GRAPH_OPTIONS: measure "
        "with it on a GPU (python -m benchmarks.gpu --only=steps), and add options with which steps "
        "are as fast as in benchmarks/results/gpu_h100.md"
    )


OPTIONS_HERE = GRAPH_OPTIONS.get(jax.__version_info__[:2], {})


def compiled_with(options: dict[str, str]) -> jax.Array:
    """Compiles a function for the CPU with options of other backends: XLA reads the options of all
    its backends, and the names of the operations that may be in graphs."""
    return jax.jit(lambda x: x + 1, compiler_options=options)(jnp.zeros(()))


@pytest.mark.parametrize("name", OPTIONS_HERE)
def test_this_jax_takes_each_option(name):
    assert compiled_with({name: OPTIONS_HERE[name]}) == 1
    for wrong in ({name: "nothing"}, {"xla_gpu_no_such_option": "1"}):
        with pytest.raises(Exception, match=r"nothing|xla_gpu_no_such_option"):
            compiled_with(wrong)


def test_a_jax_without_known_options_is_warned_of_once(with_jax, caplog):
    with_jax(1, 0, 0)
    assert compiler_options("cpu") is None and not caplog.records
    assert [compiler_options("gpu") for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "jax is 1.0.0" in record.message and "tried with jax 0.10, 0.11, 0.12" in record.message


@pytest.fixture
def cache_of_nobody(monkeypatch, tmp_path):
    """A process whose jax has no folder for compiled programs."""
    names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache")
    names += ("jax_persistent_cache_min_compile_time_secs",)
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    jax.config.update(names[0], None)
    jax.config.update(names[2], 1.0)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_on_disk_where_jax_has_no_folder(cache_of_nobody, tmp_path):
    enable_compilation_cache()
    folder = str(tmp_path / ".cache" / "fedjax_ht" / "xla")
    assert jax.config.jax_compilation_cache_dir == folder
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.0
    jax.config.update("jax_compilation_cache_dir", "elsewhere")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 2.0)
    enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == "elsewhere"
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 2.0


def test_programs_are_kept_nowhere_where_jax_says_so(cache_of_nobody):
    jax.config.update("jax_enable_compilation_cache", False)
    enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir is None


def test_programs_compiled_ahead_are_compiled_once_and_side_by_side(monkeypatch, compiled):
    threads, real = set(), jax.stages.Lowered.compile

    def noted(self):
        return threads.add(threading.get_ident()) or real(self)

    monkeypatch.setattr(jax.stages.Lowered, "compile", noted)
    runs = [jax.jit(lambda x, k=k: jnp.sin(x) + k) for k in range(3)]
    x = jax.device_put(jnp.arange(5.0))
    compiled.clear()
    compile_ahead([(run, (x,)) for run in runs])
    assert len(compiled) == 3 and threads and threading.get_ident() not in threads
    results = [run(x) for run in runs]
    assert len(compiled) == 3
    assert [float(y[0]) for y in results] == [0, 1, 2]


@pytest.mark.parametrize("how", ["one", "not_jitted"])
def test_nothing_is_compiled_ahead_where_nothing_is_won(how, compiled):
    run, x = jax.jit(jnp.sin), jax.device_put(jnp.ones(3))
    compiled.clear()
    with jax.disable_jit(how == "not_jitted"):
        compile_ahead([(run, (x,))] * (1 if how == "one" else 2))
    assert not compiled
