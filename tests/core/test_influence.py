import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.influence import LOOP, influences

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

    shapes, found = influences(fn, NUMBER, {"x": NUMBER, "y": NUMBER}, NUMBER)
    assert {k: set(v) for k, v in found.items()} == {
        "sum": {0, 1},
        "product": {1, 2},
        "one": set(),
        "same": {0},
        "shape": set(),
    }
    assert shapes["sum"].shape == () and shapes["sum"].dtype == jnp.float32


def test_what_comes_out_of_a_loop_says_so():
    def fn(a, n):
        return (
            a,
            lax.fori_loop(0, n, lambda i, x: x * a, a),
            jax.jit(lambda x: lax.map(jnp.sin, x))(a[None]),
        )

    a, looped, mapped = influences(fn, NUMBER, jax.ShapeDtypeStruct((), jnp.int32))[1]
    assert (set(a), set(looped), set(mapped)) == ({0}, {0, 1, LOOP}, {0, LOOP})
