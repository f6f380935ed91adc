import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core.primitives import call_p, closed_call_p

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
        return (
            a,
            lax.fori_loop(0, n, lambda i, x: x * a, a),
            jax.jit(lambda x: lax.map(jnp.sin, x))(a[None]),
        )

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
