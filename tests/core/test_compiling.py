import threading

import chex
import jax
import jax.numpy as jnp
import pytest

from fedjax_ht.core import compiling
from fedjax_ht.core.compiling import compile_ahead, compiler_options
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import TRAINING, federation_data, mixed_federation, to_host

OPTIONS = SimulationOptions(participation=0.6, lanes=2, devices=1)


def two_rounds():
    federation = mixed_federation()
    sim = make_simulation(METHODS["fedtgp"](TRAINING), federation, federation_data(federation), OPTIONS)
    state, reports = sim.init(), []
    for _ in range(2):
        state, report = sim.run_round(state)
        reports.append((report.metrics, report.accuracy))
    return to_host(state), reports


def test_all_buckets_in_one_program_give_the_same(monkeypatch):
    """As on GPUs, where they are one graph."""
    apart, reports = two_rounds()
    compiled = []
    monkeypatch.setattr(compiling, "platform_of", lambda mesh: "gpu")
    monkeypatch.setattr(compiling, "compiler_options", compiled.append)
    together, reports_together = two_rounds()
    assert compiled == ["gpu"] * 2  # training and scoring, of both buckets together
    chex.assert_trees_all_close((apart.server, apart.clients), (together.server, together.clients), rtol=0, atol=1e-6)
    chex.assert_trees_all_close(reports, reports_together, rtol=1e-5)


def test_loops_are_graphed_on_gpus_alone():
    assert compiler_options("cpu") is None and compiler_options("tpu") is None
    if (0, 10) <= jax.__version_info__ < (0, 12):
        options = compiler_options("gpu")
        assert {"WHILE", "CONDITIONAL", "FUSION"} <= set(options["xla_gpu_enable_command_buffer"].split(","))
        assert options["xla_gpu_command_buffer_scheduling_mode"] == "CONCURRENT"


@pytest.fixture
def compiled():
    """A list to which every compilation of XLA is added."""
    names, listening = [], [True]

    def note(name, *_, **__):
        if listening and name == "/jax/core/compile/backend_compile_duration":
            names.append(name)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    listening.clear()


def test_what_is_compiled_ahead_is_compiled_once_and_beside_others(monkeypatch, compiled):
    threads, real = set(), jax.stages.Lowered.compile
    noted = lambda self: threads.add(threading.get_ident()) or real(self)  # noqa: E731
    monkeypatch.setattr(jax.stages.Lowered, "compile", noted)
    runs, x = [jax.jit(lambda x, k=k: jnp.sin(x) + k) for k in range(3)], jax.device_put(jnp.arange(5.0))
    compiled.clear()
    compile_ahead([(run, (x,)) for run in runs])
    assert len(compiled) == 3 and threads and threading.get_ident() not in threads
    found = [run(x) for run in runs]
    assert len(compiled) == 3
    assert [float(y[0]) for y in found] == [0, 1, 2]


@pytest.mark.parametrize("how", ["one", "not_jitted"])
def test_nothing_is_compiled_ahead_where_nothing_is_won(how, compiled):
    run, x = jax.jit(jnp.sin), jax.device_put(jnp.ones(3))
    compiled.clear()
    with jax.disable_jit(how == "not_jitted"):
        compile_ahead([(run, (x,))] * (1 if how == "one" else 2))
    assert not compiled
