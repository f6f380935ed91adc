import threading
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core.primitives import call_p, closed_call_p

from fedjax_ht.core import compiling
from fedjax_ht.core.compiling import (
    CPU_OPTIONS,
    GRAPH_OPTIONS,
    QUICK_OPTIONS,
    compile_ahead,
    compiler_options,
    enable_compilation_cache,
)
from fedjax_ht.core.programs import (
    LOOP,
    call_of,
    called_programs,
    equations,
    has_loop,
    influences,
    jaxpr_of,
    scan_constants,
    union,
)
from fedjax_ht.simulation.engine import forget_engines
from tests.federations import to_host
from tests.standard import simulation_of

NUMBER = jax.ShapeDtypeStruct((), jnp.float32)


def test_results_depend_on_what_they_are_made_of():
    def fn(a, b, c):
        inner = jax.jit(lambda x, y: x * y)(b["x"], c)
        sums = {"sum": a + b["y"], "product": inner, "one": jnp.float32(1)}
        return sums | {"same": a, "shape": jnp.zeros(a.shape)}

    shapes, sources = influences(fn, NUMBER, {"x": NUMBER, "y": NUMBER}, NUMBER)
    expected = {"sum": {0, 1}, "product": {1, 2}, "one": set(), "same": {0}, "shape": set()}
    assert {k: set(v) for k, v in sources.items()} == expected
    assert shapes["sum"].shape == () and shapes["sum"].dtype == jnp.float32


def pair(x, y):
    """Returns two numbers, each made of one argument, by primitives that nothing else here has."""
    return jnp.tan(x), jnp.cosh(y)


def with_jvp(x, y):
    fn = jax.custom_jvp(pair)
    fn.defjvp(lambda values, tangents: (pair(*values), tangents))
    return fn(x, y)


def with_vjp(x, y):
    fn = jax.custom_vjp(pair)
    fn.defvjp(lambda x, y: (pair(x, y), ()), lambda _, upstream: upstream)
    return fn(x, y)


def with_vmap(x, y):
    fn = jax.custom_batching.custom_vmap(pair)
    fn.def_vmap(lambda size, batched, x, y: (pair(x, y), tuple(batched)))
    return fn(x, y)


CALLS = {
    "jit": jax.jit(pair),
    "inlined": jax.jit(pair, inline=True),  # a call in jax 0.12
    "jit in jit": jax.jit(lambda x, y: jax.jit(pair)(x, y)),
    "jit of an array that it closes over": jax.jit(lambda x, y: pair(x * jnp.arange(3.0)[1], y)),
    "custom_jvp": with_jvp,
    "custom_vjp": with_vjp,
    "custom_vmap": with_vmap,
    "remat": jax.checkpoint(pair),
}


@pytest.mark.parametrize("form", CALLS)
def test_each_result_of_a_call_depends_on_what_it_alone_is_made_of(form):
    first, second = influences(CALLS[form], NUMBER, NUMBER)[1]
    assert (set(first), set(second)) == ({0}, {1})
    program = jax.make_jaxpr(CALLS[form])(1.0, 2.0)
    names = [e.primitive.name for e in equations(program)]
    assert names.count("tan") == names.count("cosh") == 1 and not has_loop(program)


def test_a_gradient_through_a_remat_is_a_call():
    def fn(x, y):
        return jax.vjp(jax.checkpoint(pair), x, y)[1]((1.0, 1.0))

    first, second = influences(fn, NUMBER, NUMBER)[1]
    assert (set(first), set(second)) == ({0}, {1})
    names = [e.primitive.name for e in equations(jax.make_jaxpr(fn)(1.0, 2.0))]
    assert names.count("tan") == 2  # once more, inside of the call


@pytest.mark.parametrize("primitive", [call_p, closed_call_p], ids=str)
def test_calls_that_jax_makes_of_its_own_are_followed(primitive):
    (equation,) = jax.make_jaxpr(jax.jit(pair))(1.0, 2.0).jaxpr.eqns
    body = call_of(equation)
    assert call_of(equation.replace(primitive=primitive, params={"call_jaxpr": body})) is body


# What runs a program on other values than its own inputs, or not once, and the number of programs.
OTHERS = {
    "scan": (lambda x, y: lax.scan(lambda carry, z: (carry * z, carry), x, y[None]), 1),
    "while": (lambda x, y: lax.while_loop(lambda z: z[0] < 9.0, lambda z: z[::-1], (x, y)), 2),
    "cond": (lambda x, y: lax.cond(x > 0, pair, pair, x, y), 2),
    "reduce": (lambda x, y: lax.reduce(x[None], y, lambda a, b: a * b + 1, (0,)), 1),
    "linear solve": (
        lambda x, y: lax.custom_linear_solve(lambda z: 2 * z, x + y, lambda _, z: z / 2),
        2,
    ),
}


@pytest.mark.parametrize("form", OTHERS)
def test_results_of_all_else_depend_on_all_inputs(form):
    fn, number = OTHERS[form]
    (equation,) = [e for e in jax.make_jaxpr(fn)(1.0, 2.0).jaxpr.eqns if called_programs(e)]
    assert call_of(equation) is None and len(called_programs(equation)) == number
    loop = {LOOP} if form in ("scan", "while") else set()
    sources = influences(fn, NUMBER, NUMBER)[1]
    for result in sources if isinstance(sources, tuple) else [sources]:
        assert set(result) == {0, 1} | loop


def test_constants_of_a_scan_are_counted():
    def fn(x, y, z):
        return lax.scan(lambda carry, row: (carry * x + y, row), x, z)

    program = jax.make_jaxpr(fn)(1.0, 2.0, jnp.ones(3))
    (scan,) = [e for e in program.jaxpr.eqns if e.primitive.name == "scan"]
    assert scan_constants(scan) == 2
    assert len(jaxpr_of(scan.params["jaxpr"]).invars) == 4


def test_results_of_a_loop_depend_on_the_loop():
    def fn(a, n):
        looped = lax.fori_loop(0, n, lambda i, x: x * a, a)
        return a, looped, jax.jit(lambda x: lax.map(jnp.sin, x))(a[None])

    a, looped, mapped = influences(fn, NUMBER, jax.ShapeDtypeStruct((), jnp.int32))[1]
    assert (set(a), set(looped), set(mapped)) == ({0}, {0, 1, LOOP}, {0, LOOP})


def test_equations_of_called_programs_follow_the_one_that_calls():
    def fn(a):
        branches = lax.cond(a > 0, jnp.sin, jnp.cos, a)
        return jax.jit(jnp.tan)(branches)

    names = [e.primitive.name for e in equations(jax.make_jaxpr(fn)(1.0))]
    assert {"sin", "cos"} <= set(names[names.index("cond") :])
    assert names[-1] == "tan" and names.count("tan") == 1
    assert not has_loop(jax.make_jaxpr(fn)(1.0))


def test_a_loop_is_seen_wherever_it_is():
    def fn(n):
        return jax.jit(lambda n: lax.fori_loop(0, n, lambda i, x: x + i, 0))(n)

    program = jax.make_jaxpr(fn)(3)
    assert has_loop(program) and has_loop(program, ("while",)) and not has_loop(program, ("scan",))


def test_union_joins_what_all_arrays_depend_on():
    _, sources = influences(lambda a, b: {"x": a, "y": [b, a * b]}, NUMBER, NUMBER)
    assert union(sources) == {0, 1} and union(sources["x"]) == {0} and union(()) == set()


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
    monkeypatch.setattr(compiling, "compiler_options", lambda on, quick: compiled.append(on))
    forget_engines()  # those of the CPU
    together, reports_together = two_rounds()
    # each bucket's first states, and training and scoring of both together; the server's programs
    # are of the CPU
    assert compiled.count("gpu") == 4
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
    assert compiler_options("cpu") == {"xla_backend_optimization_level": 0}  # see conftest
    assert compiler_options("tpu") is None
    options = compiler_options("gpu")
    graphed = options["xla_gpu_enable_command_buffer"].split(",")
    assert {"WHILE", "CONDITIONAL", "FUSION"} <= set(graphed)
    assert options["xla_gpu_command_buffer_scheduling_mode"] == "CONCURRENT"
    assert not caplog.records


def test_programs_that_do_not_train_compile_quickly_where_jax_can(with_jax):
    for version, options in [((0, 10, 2), QUICK_OPTIONS[0, 10]), ((0, 12, 0, 1), {})]:
        with_jax(*version)
        assert compiler_options("cpu", quick=True) == CPU_OPTIONS | options
        assert compiler_options("gpu", quick=True) == compiler_options("gpu")


def test_this_jax_has_graphs():
    version = jax.__version_info__[:2]
    assert version < min(GRAPH_OPTIONS) or version in GRAPH_OPTIONS, (
        f"jax {jax.__version__} has no entry in core.compiling.GRAPH_OPTIONS: measure "
        "with it on a GPU (python -m benchmarks.gpu --only=steps), and add options with which steps "
        "are as fast as in benchmarks/results/gpu_h100.md"
    )


VERSION = jax.__version_info__[:2]
OPTIONS_HERE = CPU_OPTIONS | GRAPH_OPTIONS.get(VERSION, {}) | QUICK_OPTIONS.get(VERSION, {})


def compiled_with(options: dict) -> jax.Array:
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
    assert compiler_options("cpu") == CPU_OPTIONS and not caplog.records
    assert [compiler_options("gpu") for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert (
        "jax is 1.0.0" in record.message
        and "tested versions are 0.10, 0.11, 0.12" in record.message
    )


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
