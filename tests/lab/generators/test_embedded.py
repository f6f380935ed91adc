"""The embedded generator's arithmetic and files, and what the shipped ones are accepted by."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.signal import correlate2d

from experiments.generator_scores import (
    laplacian_variance,
    latents,
    pair_distance,
    render_all,
    truncate,
)
from experiments.generator_training import rescale_w, save_embedded
from fedjax_ht.lab.generators import embedded, npz
from fedjax_ht.lab.generators.embedded import load_embedded
from fedjax_ht.losses.features import mmd_loss
from fedjax_ht.models.generator import Card

CHECKPOINTS = Path(__file__).resolve().parents[3] / "checkpoints"
SHIPPED = sorted(CHECKPOINTS.glob("*_32.npz"))
CARD = Card("tiny", ("mnist",), "digits", "CC0", "made for a test")


@pytest.fixture(scope="module")
def tiny():
    """An untrained generator with biases, so that each of its parameters counts."""
    variables = jax.jit(embedded.init_variables, static_argnums=(1, 2, 3))(
        jax.random.key(0), (6, 5, 4, 3), 7, 1
    )
    leaves, structure = jax.tree.flatten(variables)
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(
        structure, [x + 0.3 * rng.normal(size=x.shape).astype(np.float32) for x in leaves]
    )


@jax.jit
def both(variables, w):
    """Returns the results of `render` and `synthesize` for three latents."""
    return embedded.render(variables, w), embedded.synthesize(variables, w)


sample = jax.jit(embedded.sample_w, static_argnums=2)


def reference(variables, w):
    """G_s of one latent in float64, by StyleGAN2's definition: the kernel is modulated and
    demodulated, not the map."""
    v = jax.tree.map(lambda x: np.asarray(x, np.float64), variables)

    def conv(layer, x, demodulate):
        style = w @ layer["style"]["weight"] / np.sqrt(len(w)) + layer["style"]["bias"]
        kernel = layer["kernel"] / np.sqrt(9 * x.shape[-1]) * style[:, None]
        if demodulate:
            kernel /= np.sqrt((kernel**2).sum((0, 1, 2)) + 1e-8)
        outputs = [
            sum(correlate2d(x[..., i], kernel[..., i, o], "same") for i in range(x.shape[-1]))
            for o in range(kernel.shape[-1])
        ]
        return np.stack(outputs, -1) + layer["bias"]

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
    np.testing.assert_allclose(
        both(scaled, after[:3])[0], both(tiny, before[:3])[0], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(truncate(scaled, after, 1.0), after, rtol=1e-5, atol=1e-5)
    half = truncate(scaled, after, 0.5)
    np.testing.assert_allclose(half, (after + scaled["average"]) / 2, rtol=1e-5, atol=1e-5)


def test_a_file_holds_the_generator(tiny, tmp_path):
    path = tmp_path / "tiny.npz"
    save_embedded(path, tiny, CARD, {"images_seen": 5, "scores": {"a": 0.5}})
    metadata = npz.read(path, arrays=False)[0]
    assert (metadata["format"], metadata["latent_dim"], metadata["images_seen"]) == (
        "embedded",
        7,
        5,
    )
    generator = load_embedded(path)
    assert (generator.card, generator.latent_dim, generator.host, generator.conditional) == (
        CARD,
        7,
        False,
        None,
    )
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
        ({"image/bias": np.full(1, np.nan)}, "image/bias holds values that are not finite"),
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
    with pytest.raises(ValueError, match=message) as caught:
        load_embedded(path)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no generator at"):
        load_embedded(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match=r"not an \.npz with"):
        load_embedded(tmp_path / "text.npz")


# The shipped files


@pytest.fixture(scope="module", params=SHIPPED, ids=lambda path: path.stem)
def shipped(request):
    """(path, generator, images by kind of latents)."""
    generator = load_embedded(request.param)
    kinds = latents(generator, jax.random.key(7), 100)
    return request.param, generator, {kind: render_all(generator, w) for kind, w in kinds.items()}


def test_a_generator_is_shipped():
    assert "fashion_mnist_32" in {path.stem for path in SHIPPED}


def test_shipped_files_are_small_and_say_where_they_come_from(shipped):
    path, generator, images = shipped
    assert path.stat().st_size < 4e6
    assert generator.latent_dim == 512
    assert all(generator.card)
    metadata = npz.read(path, arrays=False)[0]
    assert metadata["images_seen"] > 100_000
    for name in ("recipe", "seed", "scale", "revision", "classes", "training_images"):
        assert metadata[name] not in ("", None), name
    card = path.with_suffix(".md").read_text()
    assert f"{metadata['images_seen']:,}" in card
    assert path.with_suffix(".png").exists()
    for kind in images.values():
        assert (kind.shape, kind.dtype) == ((100, 32, 32, 3), np.float32)
        assert 0 <= kind.min() < kind.max() <= 1


def test_shipped_latents_suit_the_kernels_of_fedktl(shipped):
    _, generator, _ = shipped
    w = np.asarray(generator.sample_w(generator.variables, jax.random.key(1), 1000))
    assert np.median(np.sum((w - np.roll(w, 1, 0)) ** 2, -1)) == pytest.approx(60, rel=0.1)
    np.testing.assert_allclose(generator.variables["average"], w.mean(0), atol=0.2)


def test_valid_latents_give_images_as_sharp_and_varied_as_real_ones_and_invalid_ones_do_not(
    shipped,
):
    path, _, images = shipped
    scores = json.loads(json.dumps(npz.read(path, arrays=False)[0]["scores"]))
    sharpness = {kind: float(laplacian_variance(x).mean()) for kind, x in images.items()}
    real = scores["real"]
    assert 0.6 < sharpness["valid"] / real["laplacian_variance"] < 1.4
    assert 0.7 < pair_distance(images["valid"]) / real["pair_distance"] < 1.3
    for kind in ("small_normal", "unit"):  # close to each other: blurred, and much alike
        assert sharpness[kind] < 0.6 * sharpness["valid"]
        assert pair_distance(images[kind]) < 0.5 * pair_distance(images["valid"])
    # Frechet distances need real images: they were measured at export, over 2000 images, as were
    # these.
    for kind, value in sharpness.items():
        assert scores[kind]["laplacian_variance"] == pytest.approx(value, rel=0.35)
    for kind in ("normal", "small_normal", "unit"):
        assert scores["valid"]["frechet_distance"] < 0.4 * scores[kind]["frechet_distance"]
    assert scores["classifier_accuracy"] > 3 / len(npz.read(path, arrays=False)[0]["classes"])


def test_a_shipped_conditional_generator_makes_varied_images_of_a_class():
    path = CHECKPOINTS / "fashion_mnist_classes_32.npz"
    generator, metadata = load_embedded(path), npz.read(path, arrays=False)[0]
    assert generator.num_labels == len(metadata["classes"]) == 10
    assert metadata["scores"]["class_accuracy"] > 0.5
    within = []
    for label in range(10):
        labels = jnp.full(30, label)
        w = generator.conditional(generator.variables, jax.random.key(label), labels)
        within.append(pair_distance(render_all(generator, w)))
    every = generator.sample_w(generator.variables, jax.random.key(7), 100)
    # images of a class differ, and less than those of all classes
    assert 0.4 < np.mean(within) / pair_distance(render_all(generator, every)) < 0.95


# the largest in the fast suite; the others are aligned by the same steps
ALIGNED = [
    path if path.stem == "natural_32" else pytest.param(path, marks=pytest.mark.slow)
    for path in SHIPPED
]


@jax.jit
def transform(f, prototypes):
    """FedKTL's feature transformer F, batch norm over the whole batch."""
    hidden = prototypes @ f["w1"] + f["b1"]
    hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-5)
    return jax.nn.relu(hidden) @ f["w2"] + f["b2"]


@jax.jit
def discrepancy(mapping, f, rows, key):
    """Returns the MMD between F of a hundred rows and as many valid latents."""
    return mmd_loss(transform(f, rows), embedded.sample_w(mapping, key, 100), jnp.ones(100, bool))


@jax.jit
def align(mapping, trained, prototypes, labels):
    """Trains (F, centroids of the classes) for 200 steps of a hundred of 200 prototypes."""
    adam = optax.adam(0.01)

    def step(carry, number):
        trained, state = carry
        key = jax.random.fold_in(jax.random.key(0), number)
        rows = jax.random.permutation(key, 200)[:100]

        def loss(trained):
            spread = jnp.mean(
                (transform(trained[0], prototypes[rows]) - trained[1][labels[rows]]) ** 2
            )
            return discrepancy(mapping, trained[0], prototypes[rows], key) + spread

        updates, state = adam.update(jax.grad(loss)(trained), state)
        return (optax.apply_updates(trained, updates), state), None

    return jax.lax.scan(step, (trained, adam.init(trained)), jnp.arange(200))[0][0]


@pytest.mark.parametrize("shipped", ALIGNED, indirect=True, ids=lambda path: path.stem)
def test_prototypes_can_be_moved_among_the_valid_latents(shipped):
    """FedKTL's domain alignment: ten classes of twenty clients, 100 epochs; the images differ by
    class afterwards."""
    _, generator, images = shipped
    classes, dim = 10, generator.latent_dim
    rng = np.random.default_rng(0)
    labels = np.arange(200) % classes
    prototypes = np.eye(classes)[labels] - 1 / classes + 0.1 * rng.normal(size=(200, classes))
    prototypes = jnp.asarray(
        prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True), jnp.float32
    )
    bound = classes**-0.5
    shapes = {"w1": (classes, classes), "b1": (classes,), "w2": (classes, dim), "b2": (dim,)}
    f = {
        name: jnp.asarray(rng.uniform(-bound, bound, shape), jnp.float32)
        for name, shape in shapes.items()
    }
    untrained = np.asarray(transform(f, prototypes))
    centroids = jnp.asarray(np.stack([untrained[labels == c].mean(0) for c in range(classes)]))
    # what draws w: the generators that have equal ones share a program
    mapping = {k: v for k, v in generator.variables.items() if k in ("mapping", "classes")}
    before = float(discrepancy(mapping, f, prototypes[:100], jax.random.key(9)))
    off = render_all(generator, untrained[:100])
    # an untrained F blurs
    assert laplacian_variance(off).mean() < 0.6 * laplacian_variance(images["valid"]).mean()
    f, _ = align(mapping, (f, centroids), prototypes, labels)
    assert float(discrepancy(mapping, f, prototypes[:100], jax.random.key(9))) < 0.2 * before
    moved = np.asarray(transform(f, prototypes))
    aligned = render_all(generator, np.stack([moved[labels == c].mean(0) for c in range(classes)]))
    pairs = [np.sqrt(np.mean((a - b) ** 2)) for i, a in enumerate(aligned) for b in aligned[:i]]
    assert np.mean(pairs) > 0.25 * pair_distance(images["valid"])


def test_a_conditional_file_draws_latents_of_a_class(tmp_path):
    """Equal noise gives other latents for another class, and `sample_w` draws all classes."""
    make = jax.jit(embedded.init_variables, static_argnums=(1, 2, 3, 4))
    variables = make(jax.random.key(0), (4, 4, 4, 2), 8, 3, 3)
    save_embedded(tmp_path / "g.npz", variables, Card("tiny"), {})
    generator = load_embedded(tmp_path / "g.npz")
    assert generator.num_labels == 3
    key, same = jax.random.key(1), jnp.zeros(4, jnp.int32)
    first = generator.conditional(generator.variables, key, same)
    second = generator.conditional(generator.variables, key, same + 1)
    again = generator.conditional(generator.variables, key, same)
    assert first.shape == (4, 8)
    np.testing.assert_array_equal(first, again)
    assert not np.isclose(first, second).any()
    assert generator.sample_w(generator.variables, key, 5).shape == (5, 8)
