"""StyleGAN3 and StyleGAN-XL equal the reference files; filters equal NumPy."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal

from fedjax_ht.lab.generators import Card, stylegan3, stylegan3_files
from fedjax_ht.lab.generators.stylegan3 import filtered_leaky_relu
from fedjax_ht.lab.generators.stylegan3_files import checked, read_snapshot
from tests.lab.generators.small import LAYER, SMALL, TO_RGB, random_variables, refused

REFERENCE = Path(__file__).parent / "reference"
ATOL = 2e-5


@pytest.fixture(scope="module", params=["stylegan3_t", "stylegan3_r", "styleganxl_t64"])
def snapshot(request):
    """(network, variables, reference arrays, labels or None)."""
    network, variables = read_snapshot(REFERENCE / f"{request.param}.pkl")
    with np.load(REFERENCE / f"{request.param}_reference.npz") as file:
        reference = dict(file)
    return network, variables, reference, reference["c"].argmax(1) if network.num_classes else None


def test_latents_equal_the_reference(snapshot):
    network, variables, reference, labels = snapshot
    w = stylegan3.map_noise(network, variables, reference["z"], labels)
    np.testing.assert_allclose(w, reference["w"], rtol=0, atol=ATOL)


def test_images_equal_the_reference(snapshot):
    network, variables, reference, _ = snapshot
    w = np.concatenate([reference["w"], reference["w_outside"]])
    quick = {"xla_backend_optimization_level": 0}  # to compile
    render = jax.jit(functools.partial(stylegan3.render, network), compiler_options=quick)
    images = render(variables, w)
    want = np.concatenate([reference["image"], reference["image_outside"]]).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(images, want, rtol=0, atol=ATOL)


@pytest.mark.parametrize("num_classes", [6, 0])
def test_stylegan_xl_may_have_fewer_classes_than_embeddings(num_classes, monkeypatch):
    """Its embeddings are ImageNet's, whatever its data, and without classes there is no projection."""
    path = REFERENCE / "styleganxl_t64.pkl"
    expected, root = read_snapshot(path)[1], stylegan3_files.open_snapshot(path)
    root.state["c_dim"], mapping = num_classes, root.module("mapping")
    if not num_classes:
        root = root._replace(class_name="Generator")
        mapping.state["embed_proj"] = mapping.state["_modules"].pop("embed_proj")
        first = mapping.module("fc0").state["_parameters"]["weight"].args[0]
        first.args = (*first.args[:2], (64, 64), *first.args[3:])
    monkeypatch.setattr(stylegan3_files, "open_snapshot", lambda path: root)
    network, variables = read_snapshot(path)
    assert (network.family, network.num_classes) == ("styleganxl", num_classes)
    if num_classes:
        np.testing.assert_array_equal(variables["classes"], expected["classes"][:num_classes])


@pytest.mark.parametrize(
    ("up", "down", "up_taps", "padding", "clamp", "radial"),
    [
        (2, 2, 12, (9, 8, 9, 8), None, False),
        (4, 2, 24, (-6, -9, -2, -5), 1.0, False),
        (2, 2, 12, (-3, -4, 11, 10), 256.0, True),
        (3, 1, 5, (2, 1, 0, 3), 0.5, False),
        (1, 1, 1, (0, 0, 0, 0), None, False),
    ],
)
def test_filtered_leaky_relu_equals_numpy(up, down, up_taps, padding, clamp, radial):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 24, 21, 2))
    up_filter, down_filter = rng.normal(size=up_taps), rng.normal(size=(6, 6) if radial else 7)
    gain, slope = 1.5, 0.2
    static = {"up": up, "down": down, "padding": padding, "clamp": clamp}
    arrays = (jnp.asarray(a, jnp.float32) for a in (x, up_filter, down_filter))
    run = functools.partial(filtered_leaky_relu, gain=gain, slope=slope, **static)
    got = jax.jit(run)(*arrays)
    kernel = down_filter if radial else np.outer(down_filter, down_filter)

    def channel(image):
        spread = np.zeros((up * image.shape[0], up * image.shape[1]))
        spread[::up, ::up] = image
        left, right, top, bottom = padding
        spread = np.pad(spread, ((max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0))))
        height, width = spread.shape
        spread = spread[max(-top, 0) : height + min(bottom, 0)]
        spread = spread[:, max(-left, 0) : width + min(right, 0)]
        y = scipy.signal.convolve2d(spread, np.outer(up_filter, up_filter) * up**2, "valid")
        y = np.where(y < 0, slope * y, y) * gain
        y = y if clamp is None else np.clip(y, -clamp, clamp)
        return scipy.signal.convolve2d(y, kernel, "valid")[::down, ::down]

    want = np.stack([np.stack([channel(image[..., c]) for c in range(2)], -1) for image in x])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(("family", "middle"), [("stylegan3", 128), ("styleganxl", 127.5)])
def test_range_of_images(family, middle):
    network = SMALL._replace(family=family)
    raw = np.array([-3, -1, -0.5, 0, 0.25, 1, 3], np.float32)
    want = np.clip(raw * 127.5 + middle, 0, 255) / 255
    np.testing.assert_allclose(stylegan3.to_unit_range(network, raw), want, atol=1e-7)


def test_grey_images_become_colour():
    grey = SMALL._replace(layers=(LAYER, TO_RGB._replace(outputs=1)))
    images = stylegan3.synthesize(grey, random_variables(grey), jnp.ones((1, SMALL.latent_dim)))
    assert images.shape[-1] == 3 and np.ptp(images, -1).max() == 0
    assert 0 <= images.min() < images.max() <= 1


def test_generator_of_a_class():
    generator = stylegan3.make_generator(SMALL, random_variables(SMALL), Card("small"))
    assert (generator.latent_dim, generator.num_labels, generator.host) == (8, 7, False)
    key, labels = jax.random.key(3), jnp.array([0, 6, 0])
    w = jax.jit(generator.conditional)(generator.variables, key, labels)
    z = jax.random.normal(key, (3, SMALL.noise_dim))
    expected = stylegan3.map_noise(SMALL, generator.variables, z, labels)
    np.testing.assert_allclose(w, expected, rtol=1e-5, atol=1e-5)
    other = generator.conditional(generator.variables, key, jnp.array([1, 6, 0]))
    assert (np.abs(w - other).max(1) > 1e-3).tolist() == [True, False, False]


def test_latents_come_from_all_classes_alike():
    """The mapping is made to show the class: w is largest there."""
    network = SMALL._replace(mapping_layers=1, class_dim=7)
    variables = random_variables(network) | {
        "classes": jnp.eye(7),
        "mapping/0/weight": jnp.eye(13, 8, -6),
        "mapping/0/bias": jnp.zeros(8),
    }
    w = stylegan3.sample_w(network, variables, jax.random.key(0), 1400)
    counts = np.bincount(np.argmax(w, 1), minlength=8)
    assert counts[7] == 0 and (abs(counts[:7] - 200) < 60).all(), counts


def test_unconditional_generator_has_no_classes():
    network = SMALL._replace(num_classes=0, class_dim=0)
    generator = stylegan3.make_generator(network, random_variables(network), Card("small"))
    assert generator.conditional is None and generator.num_labels == 0
    w = generator.sample_w(generator.variables, jax.random.key(0), 4)
    assert w.shape == (4, 8) and w.dtype == jnp.float32
    assert np.unique(np.round(w, 4), axis=0).shape[0] == 4


def with_layer(**fields):
    return SMALL._replace(layers=(SMALL.layers[0]._replace(**fields), *SMALL.layers[1:]))


@pytest.mark.parametrize(
    ("network", "arrays", "message"),
    [
        (SMALL, {"layers/0/bias": None}, "the arrays layers/0/bias are missing or unknown"),
        (SMALL, {"layers/2/bias": np.ones(3)}, "the arrays layers/2/bias are missing"),
        (SMALL, {"classes": np.ones(3)}, r"classes is of shape \(3,\); expected \(7, 3\)"),
        (SMALL, {"classes": np.full((7, 3), np.nan)}, "classes has non-finite values"),
        (with_layer(outputs=6), {}, "layer 1 does not fit the one before it"),
        (with_layer(padding=(-9, -9, 9, 9)), {}, "leaves an image of -"),
        (SMALL._replace(mapping_layers=10**12), {}, r"has 1,000,000,000,000 mapping layers"),
        (SMALL._replace(layers=()), {}, "the synthesis has no layers"),
    ],
)
def test_damaged_networks_are_one_clear_line(network, arrays, message):
    variables = random_variables(SMALL) | arrays
    variables = {name: value for name, value in variables.items() if value is not None}
    refused(message, checked, network, variables)
