import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.programs import LOOP, equations, has_loop, influences, union

NUMBER = jax.ShapeDtypeStruct((), jnp.float32)


def test_results_depend_on_what_they_are_made_of():
    def fn(a, b, c):
        inner = jax.jit(lambda x, y: x * y)(b["x"], c)
        return {
            "sum": a + b["y"],
            "product": inner,
            "one": jnp.float32(1),
            "same": a,
            "shape": jnp.zeros(a.shape),
        }

    shapes, sources = influences(fn, NUMBER, {"x": NUMBER, "y": NUMBER}, NUMBER)
    assert {k: set(v) for k, v in sources.items()} == {
        "sum": {0, 1},
        "product": {1, 2},
        "one": set(),
        "same": {0},
        "shape": set(),
    }
    assert shapes["sum"].shape == () and shapes["sum"].dtype == jnp.float32


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
