"""The embedded generator's arithmetic and files, and the shipped ones."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate2d

from experiments.generator_scores import truncate
from experiments.generator_training import rescale_w, save_embedded
from fedjax_ht.lab.generators import embedded, npz, open_generator
from fedjax_ht.lab.generators.embedded import load_embedded
from fedjax_ht.models.generator import Card
from tests.lab.generators.small import refused
from tests.tiny import shift

CHECKPOINTS = Path(__file__).resolve().parents[3] / "checkpoints"
SHIPPED = sorted(CHECKPOINTS.glob("*_32.npz"))
CARD = Card("tiny", ("mnist",), "digits", "CC0", "made for a test")


@pytest.fixture(scope="module")
def tiny():
    """An untrained generator with biases, so that each of its parameters counts."""
    make = jax.jit(embedded.init_variables, static_argnums=(1, 2, 3))
    return shift(make(jax.random.key(0), (6, 5, 4, 3), 7, 1), 0)


@jax.jit
def both(variables, w):
    """Returns the results of `render` and `synthesize` for three latents."""
    return embedded.render(variables, w), embedded.synthesize(variables, w)


sample = jax.jit(embedded.sample_w, static_argnums=2)


def reference(variables, w):
    """G_s of one latent in float64, by StyleGAN2's definition: the kernel is modulated."""
    v = jax.tree.map(lambda x: np.asarray(x, np.float64), variables)

    def conv(layer, x, demodulate):
        style = w @ layer["style"]["weight"] / np.sqrt(len(w)) + layer["style"]["bias"]
        kernel = layer["kernel"] / np.sqrt(9 * x.shape[-1]) * style[:, None]
        if demodulate:
            kernel /= np.sqrt((kernel**2).sum((0, 1, 2)) + 1e-8)
        ins, outs = kernel.shape[2:]
        outputs = np.zeros((*x.shape[:2], outs))
        for i, o in itertools.product(range(ins), range(outs)):
            outputs[..., o] += correlate2d(x[..., i], kernel[..., i, o], "same")
        return outputs + layer["bias"]

    # bilinear with half-pixel centres: a quarter of one neighbour, three of the other
    def twice(x):
        for _ in range(2):
            padded = np.pad(x, ((1, 1), (0, 0), (0, 0)), mode="edge")
            pairs = [0.25 * padded[:-2] + 0.75 * x, 0.75 * x + 0.25 * padded[2:]]
            x = np.stack(pairs, 1).reshape(-1, *x.shape[1:]).swapaxes(0, 1)
        return x

    x = v["constant"]
    for i in range(6):
        x = twice(x) if i in (1, 3, 5) else x
        x = conv(v["convolutions"][str(i)], x, True)
        x = np.where(x > 0, x, 0.2 * x) * np.sqrt(2)
    return conv(v["image"], x, False)


def test_rendering_equals_the_reference(tiny):
    w = np.array(sample(tiny, jax.random.key(1), 3))
    w[1] *= 10  # an invalid one
    expected = np.stack([reference(tiny, row) for row in w])
    got, images = both(tiny, w)
    assert got.shape == (3, 32, 32, 1)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(images, np.clip((expected.repeat(3, -1) + 1) / 2, 0, 1), atol=1e-4)


def test_mapping_equals_the_reference(tiny):
    z = np.random.default_rng(1).normal(size=(4, 64))
    x = z / np.sqrt((z**2).mean(1, keepdims=True))
    for layer in (tiny["mapping"]["0"], tiny["mapping"]["1"]):
        weight, bias = (np.asarray(layer[name], np.float64) * 0.01 for name in ("weight", "bias"))
        x = x @ weight / np.sqrt(x.shape[1]) + bias
        x = np.where(x > 0, x, 0.2 * x) * np.sqrt(2)
    np.testing.assert_allclose(embedded.map_noise(tiny, z), x, rtol=1e-4, atol=1e-5)


def test_another_scale_of_w_changes_no_image(tiny):
    scaled, scale = rescale_w(tiny, 60.0, jax.random.key(2))
    assert scale != pytest.approx(1, abs=0.1)
    before, after = (sample(v, jax.random.key(3), 2000) for v in (tiny, scaled))
    np.testing.assert_allclose(after, scale * before, rtol=1e-4, atol=1e-5)
    distances = np.sum((after[:1000] - after[1000:]) ** 2, -1)
    assert np.median(distances) == pytest.approx(60, rel=0.15)
    np.testing.assert_allclose(scaled["average"], after.mean(0), atol=0.5)
    images = both(tiny, before[:3])[0]
    np.testing.assert_allclose(both(scaled, after[:3])[0], images, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(truncate(scaled, after, 1.0), after, rtol=1e-5, atol=1e-5)
    half = truncate(scaled, after, 0.5)
    np.testing.assert_allclose(half, (after + scaled["average"]) / 2, rtol=1e-5, atol=1e-5)


def test_a_file_holds_the_generator(tiny, tmp_path):
    path = tmp_path / "tiny.npz"
    save_embedded(path, tiny, CARD, {"images_seen": 5, "scores": {"a": 0.5}})
    metadata = npz.read(path)[0]
    wanted = ("embedded", 7, 5)
    assert (metadata["format"], metadata["latent_dim"], metadata["images_seen"]) == wanted
    generator = load_embedded(path)
    assert generator.card == CARD and generator.latent_dim == 7
    assert not generator.host and generator.conditional is None
    assert (generator.sample_w, generator.synthesize) == (embedded.sample_w, embedded.synthesize)
    w = sample(generator.variables, jax.random.key(0), 3)
    assert w.shape == (3, 7)
    images = both(generator.variables, w)[1]
    assert (images.shape, images.dtype) == ((3, 32, 32, 3), jnp.float32)
    expected = both(tiny, sample(tiny, jax.random.key(0), 3))[1]
    np.testing.assert_allclose(images, expected, atol=1e-2)
    assert np.ptp(expected) > 0.5


def test_a_file_is_read_without_drawing_weights(tiny, tmp_path, monkeypatch):
    """FedKTL opens a generator where all that depends on no argument is computed at once."""
    keys = []

    def normal(key, shape):
        keys.append(key)
        return jnp.zeros(shape)

    monkeypatch.setattr(embedded, "normal", normal)
    save_embedded(tmp_path / "tiny.npz", tiny, CARD, {})
    with jax.ensure_compile_time_eval():
        load_embedded(tmp_path / "tiny.npz")
    assert keys and all(isinstance(key, jax.core.Tracer) for key in keys)


def rewrite(path, **entries):
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files} | entries
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"constant": None}, "no embedded generator: 'constant' is missing"),
        ({"average": np.zeros(9)}, r"is of shape \(7, 6\); expected \(9, 6\)"),
        ({"image/bias": np.full(1, np.nan)}, "image/bias has non-finite values"),
        ({"convolutions/1/kernel": np.zeros(3)}, "no embedded generator"),
        ({"metadata": None}, "not an .npz with an entry metadata"),
        ({"metadata": np.array("{")}, "not an .npz with an entry metadata that is JSON"),
        ({"metadata": np.array('{"format": "stylegan3"}')}, "holds .* of format 'stylegan3'"),
        ({"metadata": np.array('{"format": "embedded"}')}, "'card' is missing"),
        ({"metadata": np.array(["x", 1], object)}, "not an .npz"),
    ],
    ids=["entry", "shape", "nan", "rank", "no metadata", "no JSON", "format", "card", "pickle"],
)
def test_a_damaged_file_is_one_line(tiny, tmp_path, entries, message):
    path = tmp_path / "tiny.npz"
    save_embedded(path, tiny, CARD, {})
    rewrite(path, **entries)
    refused(message, load_embedded, path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no generator at"):
        load_embedded(tmp_path / "none.npz")
    path = tmp_path / "x.npz"
    path.write_text("hello")
    refused(r"not an \.npz with", load_embedded, path)
    npz.write(path, {"format": "vae"}, Card("x"), {})
    refused(r"x\.npz: holds a generator of format 'vae'; expected", open_generator, path)
    np.savez(path, metadata=np.array("[1]"))
    refused(r"x\.npz: its metadata lacks the generator's format", open_generator, path)


# The shipped files


@pytest.fixture(scope="module", params=SHIPPED, ids=lambda path: path.stem)
def shipped(request):
    return request.param, load_embedded(request.param)


def test_shipped_files_are_small_and_say_where_they_come_from(shipped):
    path, generator = shipped
    assert path.stat().st_size < 4e6
    assert generator.latent_dim == 512
    assert all(generator.card)
    metadata = npz.read(path)[0]
    assert metadata["images_seen"] > 100_000
    for name in ("recipe", "seed", "scale", "revision", "classes", "training_images"):
        assert metadata[name] not in ("", None), name
    card = path.with_suffix(".md").read_text()
    assert f"{metadata['images_seen']:,}" in card
    assert path.with_suffix(".png").exists()
    w = generator.sample_w(generator.variables, jax.random.key(7), 3)
    images = jax.jit(generator.synthesize)(generator.variables, w)
    assert (images.shape, images.dtype) == ((3, 32, 32, 3), np.float32)
    assert 0 <= images.min() < images.max() <= 1


def test_shipped_latents_suit_the_kernels_of_fedktl(shipped):
    _, generator = shipped
    w = np.asarray(generator.sample_w(generator.variables, jax.random.key(1), 1000))
    assert np.median(np.sum((w - np.roll(w, 1, 0)) ** 2, -1)) == pytest.approx(60, rel=0.1)
    np.testing.assert_allclose(generator.variables["average"], w.mean(0), atol=0.2)


def test_a_conditional_file_draws_latents_of_a_class(tmp_path):
    """Equal noise gives other latents for another class, and `sample_w` draws all classes."""
    make = jax.jit(embedded.init_variables, static_argnums=(1, 2, 3, 4))
    variables = make(jax.random.key(0), (4, 4, 4, 2), 8, 3, 3)
    save_embedded(tmp_path / "g.npz", variables, Card("tiny"), {})
    generator = load_embedded(tmp_path / "g.npz")
    assert generator.num_labels == 3
    key, same = jax.random.key(1), jnp.zeros(4, jnp.int32)
    draw = jax.jit(generator.conditional)
    first, second = (draw(generator.variables, key, labels) for labels in (same, same + 1))
    again = draw(generator.variables, key, same)
    assert first.shape == (4, 8)
    np.testing.assert_array_equal(first, again)
    assert not np.isclose(first, second).any()
    assert jax.eval_shape(lambda v: generator.sample_w(v, key, 5), variables).shape == (5, 8)
