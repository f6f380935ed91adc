import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from fedjax_ht.methods.shared.pair_server import BATCH, fit, synthesise
from tests.generators_tiny import LATENT_DIM, SIDE, tiny_generator

RNG = np.random.default_rng(0)


def images(n: int, height: int, width: int) -> np.ndarray:
    return RNG.random((n, height, width, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("stored", "shape", "size"),
    [
        ((8, 8), (4, 4, 3), (4, 4)),
        ((16, 12), (6, 6, 3), (8, 6)),  # the shorter side fits, the longer one is cut
        ((9, 12), (5, 5, 3), (5, 7)),
        ((5, 5), (9, 9, 3), (9, 9)),  # enlarged
    ],
    ids=str,
)
def test_the_shorter_side_is_scaled_and_the_centre_cut_out_as_pillow_does(stored, shape, size):
    """Pillow scales with a triangle filter as wide as a target pixel, with antialiasing."""
    x = images(2, *stored)
    want, how = np.empty((2, *size, 3)), (size[::-1], Image.Resampling.BILINEAR)
    for image, out in zip(x, want):
        for channel in range(3):
            out[..., channel] = Image.fromarray(image[..., channel]).resize(*how)
    top, left = (size[0] - shape[0]) // 2, (size[1] - shape[1]) // 2
    want = want[:, top : top + shape[0], left : left + shape[1]]
    got = fit(jnp.asarray(x), shape)
    assert got.shape == (2, *shape) and got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_without_antialiasing_single_pixels_are_taken():
    x = images(1, 12, 12)
    middles = np.arange(4) * 3 + 1  # of each three pixels
    single = x[:, middles][:, :, middles]
    np.testing.assert_allclose(fit(x, (4, 4, 3), antialias=False), single, atol=1e-6)
    assert np.abs(fit(x, (4, 4, 3)) - single).max() > 0.1


def test_images_that_fit_are_only_cut_or_left_alone():
    x = images(3, 6, 9)
    np.testing.assert_array_equal(fit(x, (6, 6, 3)), x[:, :, 1:7])
    np.testing.assert_array_equal(fit(x, (6, 9, 3)), x)


def test_grey_clients_get_the_luminance():
    x = images(1, 4, 4)
    got = fit(x, (4, 4, 1))
    assert got.shape == (1, 4, 4, 1)
    np.testing.assert_allclose(got[..., 0], x @ [0.299, 0.587, 0.114], atol=1e-6)
    white = fit(jnp.ones((1, 4, 4, 3)), (4, 4, 1))
    np.testing.assert_allclose(white, 1, atol=1e-6)


@pytest.mark.parametrize("n", [1, BATCH + 3])
def test_images_are_synthesised_in_batches(n):
    generator = tiny_generator()
    latents = jax.random.normal(jax.random.key(0), (n, LATENT_DIM))
    got = synthesise(generator, generator.variables, latents, (4, 4, 1), True)
    want = fit(generator.synthesize(generator.variables, latents), (4, 4, 1))
    assert got.shape == (n, 4, 4, 1)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_host_code_gets_numpy_and_everything_at_once():
    generator, seen = tiny_generator(), []

    def on_host(variables, w):
        seen.extend([type(w), *map(type, variables.values())])
        return 1 / (1 + np.exp(-w @ variables["image"])).reshape(-1, SIDE, SIDE, 3)

    host = generator._replace(synthesize=on_host, host=True)
    latents = jax.random.normal(jax.random.key(0), (12, LATENT_DIM))
    want, got = (synthesise(g, g.variables, latents, (4, 4, 3), True) for g in (generator, host))
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert seen == [np.ndarray] * 4
