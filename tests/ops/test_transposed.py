import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_ht.ops import conv_transpose2d
from tests.reference import conv as ref

CASES = {  # image, kernel, stride, padding
    "a pixel becomes a map": ((1, 1), (4, 4), 1, 0),
    "doubled": ((3, 2), (4, 4), 2, 1),
    "odd": ((2, 3), (3, 2), 3, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_loop_and_xla(case):
    """Values one pixel at a time; gradients those of XLA's convolution of the image with holes."""
    image, size, stride, padding = CASES[case]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, *image, 3)).astype(np.float32)
    kernel = rng.normal(size=(*size, 3, 2)).astype(np.float32)
    want = ref.conv_transpose2d(np.float64(x), np.float64(kernel), stride, padding)
    upstream = rng.normal(size=want.shape).astype(np.float32)

    def native(x, kernel):
        edges = [(n - 1 - padding, n - 1 - padding) for n in size]
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x,
            kernel[::-1, ::-1],
            (1, 1),
            edges,
            lhs_dilation=(stride, stride),
            dimension_numbers=numbers,
        )

    def ours(x, kernel):
        return conv_transpose2d(x, kernel, stride, padding)

    np.testing.assert_allclose(jax.jit(ours)(x, kernel), want, rtol=1e-5, atol=1e-5)
    gradients = [
        jax.jit(jax.grad(lambda x, k, f=f: jnp.sum(f(x, k) * upstream), argnums=(0, 1)))(x, kernel)
        for f in (ours, native)
    ]
    for gradient, other in zip(*gradients):
        np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-4)
