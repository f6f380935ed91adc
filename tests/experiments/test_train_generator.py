"""Adversarial training of tiny generators: resume, losses by definition, scores, data, command."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import generator_scores, generator_training
from experiments.gan import Recipe, batch_rows, discriminate, init_gan, is_penalised, train_step
from experiments.generator_data import Pictures, load_pictures
from fedjax_ht.lab.generators import embedded, npz
from fedjax_ht.models.generator import Card
from tests.lab.readers.source_files import write_jpegs

RECIPE = Recipe(channels=(4, 4, 4, 2), latent_dim=8, batch_size=4, penalty_every=2)
IMAGES = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 1), dtype=np.uint8)

LABELS = np.arange(12, dtype=np.int32) // 4


def steps_from(state, log, last, workdir):
    def save(state, log):
        return generator_training.write_checkpoint(workdir, state, log)

    def is_over(step):
        return step >= last

    pictures = Pictures(IMAGES, LABELS, ("a", "b", "c"))
    return generator_training.train(RECIPE, pictures, 3, state, log, is_over, save)


@pytest.mark.slow
def test_a_run_that_goes_on_is_the_run_that_never_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(generator_training, "LOG_STEPS", 2)

    def start():
        return init_gan(RECIPE, 1, 3)

    whole = steps_from(start(), [], 5, tmp_path / "whole")
    for last in (3, 5):
        begun = generator_training.read_checkpoint(tmp_path / "parts", start())
        resumed = steps_from(*begun, last, tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    assert int(whole[0].step) == 5
    assert [row[0] for row in whole[1]] == [8, 16]
    parts, apart = ((tmp_path / name / "losses.csv").read_text() for name in ("parts", "whole"))
    assert parts == apart
    # every weight of both networks was trained
    for part, other in zip(whole[0][1:3], start()[1:3]):
        moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), part, other)
        moved.pop("average", None)
        assert min(jax.tree.leaves(moved)) > 0

    other = init_gan(RECIPE._replace(channels=(8, 4, 4, 2)), 1, 3)
    with pytest.raises(ValueError, match="of another recipe; choose another --workdir"):
        generator_training.read_checkpoint(tmp_path / "parts", other)
    (tmp_path / "parts/checkpoint.npz").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(ValueError, match="cannot be read"):
        generator_training.read_checkpoint(tmp_path / "parts", start())


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [0, 3])
def test_a_step_is_adam_on_the_losses_as_they_are_defined(num_classes):
    """Gradients by jax.grad of the definition; the first step of Adam(0, 0.99) is lr * g / |g|."""
    recipe = RECIPE._replace(num_classes=num_classes)
    state = init_gan(recipe, 1, 3)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(3), 0), 3)
    rows = np.asarray(jax.random.randint(keys[0], (4,), 0, 12))
    if num_classes:
        rows = np.asarray(batch_rows(keys[0], jnp.asarray(LABELS), recipe))
    batch, labels = IMAGES[rows], LABELS[rows] if num_classes else None
    mirrored = np.asarray(jax.random.bernoulli(keys[1], 0.5, (4, 1, 1, 1)))
    real = jnp.asarray(np.where(mirrored, batch[:, :, ::-1], batch) / np.float32(127.5) - 1)
    z = jax.random.normal(keys[2], (4, 64))

    def make(g):
        return embedded.render(g, embedded.map_noise(g, z, labels))

    @jax.jit
    def by_definition(generator, discriminator):
        def of_discriminator(d):
            fake = jax.lax.stop_gradient(make(generator))
            slope = jax.grad(lambda x: discriminate(d, x, labels).sum())
            penalties = sum(jnp.sum(slope(x) ** 2) / 4 for x in (real, fake))
            ahead = discriminate(d, real, labels) - discriminate(d, fake, labels)
            penalty = RECIPE.penalty / 2 * RECIPE.penalty_every * penalties
            return -jax.nn.log_sigmoid(ahead).mean() + penalty

        def of_generator(g):
            made, shown = (discriminate(discriminator, x, labels) for x in (make(g), real))
            return -jax.nn.log_sigmoid(made - shown).mean()

        return jax.grad(of_generator)(generator), jax.grad(of_discriminator)(discriminator)

    expected = by_definition(state.generator, state.discriminator)
    before = jax.tree.map(np.array, (state.generator, state.discriminator))
    assert is_penalised(RECIPE, 0)
    assert not is_penalised(RECIPE, 1)
    state = train_step(recipe, state, jnp.asarray(IMAGES), jnp.asarray(LABELS), jnp.uint32(3), True)
    moments = (state.generator_optimizer[0].nu, state.discriminator_optimizer[0].nu)
    for nu, gradient in zip(jax.tree.leaves(moments), jax.tree.leaves(expected)):
        close = {"rtol": 1e-3, "atol": 1e-4 * np.abs(gradient).max() + 1e-12}
        np.testing.assert_allclose(np.sqrt(nu / 0.01), np.abs(gradient), **close)
    after = (state.generator, state.discriminator)
    for old, new, gradient in zip(*map(jax.tree.leaves, (before, after, expected))):
        sure = np.abs(gradient) > 1e-3 * np.abs(gradient).max() + 1e-6
        step = -RECIPE.learning_rate * np.sign(gradient)
        np.testing.assert_allclose((new - old)[sure], step[sure], rtol=2e-2, atol=1e-6)
    # With a half-life of a twentieth of what was seen, the first step leaves next to nothing of the
    # start.
    for old, new, mean in zip(*map(jax.tree.leaves, (before[0], state.generator, state.average))):
        np.testing.assert_allclose(mean, new + 0.5**20 * (old - new), rtol=1e-4, atol=1e-5)


def test_a_discriminator_sees_repeated_images():
    """By minibatch standard deviation a score depends on whether the batch repeats the image."""
    discriminator = init_gan(RECIPE, 1, 0).discriminator
    varied = jnp.asarray(IMAGES[:4] / np.float32(127.5) - 1)
    repeated = jnp.repeat(varied[:1], 4, 0)
    score = jax.jit(discriminate)
    assert abs(float(score(discriminator, varied)[0] - score(discriminator, repeated)[0])) > 1e-3


def test_a_conditional_batch_has_several_images_of_each_of_its_classes():
    recipe = RECIPE._replace(batch_size=16, num_classes=3)
    drawn = set()
    for i in range(40):
        rows = np.asarray(batch_rows(jax.random.key(i), jnp.asarray(LABELS), recipe))
        of_group = LABELS[rows].reshape(8, 2)  # two classes in turn
        assert (of_group == of_group[0]).all()
        drawn |= set(rows)
    assert drawn == set(range(12))  # every image is drawn


def test_a_conditional_discriminator_compares_images_of_one_class():
    """A class whose images are all alike changes that class's scores alone."""
    recipe = RECIPE._replace(batch_size=16, num_classes=3)
    discriminator = init_gan(recipe, 1, 0).discriminator
    labels = jnp.tile(jnp.array([0, 2]), 8)
    varied = jnp.asarray(np.random.default_rng(1).uniform(-1, 1, (16, 32, 32, 1)), jnp.float32)
    alike = varied.at[2::2].set(varied[0])
    score = jax.jit(discriminate)
    before, after = (score(discriminator, x, labels) for x in (varied, alike))
    assert abs(float(after[0] - before[0])) > 1e-3
    np.testing.assert_allclose(after[1::2], before[1::2], rtol=1e-4, atol=1e-5)


def test_scores_tell_sharp_from_smooth_and_near_from_far():
    rng = np.random.default_rng(0)
    flat, noisy = np.full((6, 8, 8, 3), 0.5), rng.uniform(size=(6, 8, 8, 3))
    assert generator_scores.laplacian_variance(flat) == pytest.approx(np.zeros(6))
    checkers = np.indices((8, 8)).sum(0)[None, :, :, None] % 2 * np.ones((1, 1, 1, 3))
    # its Laplacian is 4 or -4
    assert generator_scores.laplacian_variance(checkers) == pytest.approx([16])
    assert generator_scores.pair_distance(flat) == 0 < generator_scores.pair_distance(noisy)
    # Of Gaussians: (mean difference)^2 + (difference of standard deviations)^2 per dimension.
    x = rng.normal(size=(100_000, 2))
    assert generator_scores.frechet_distance(x, x) == pytest.approx(0, abs=1e-6)
    moved = generator_scores.frechet_distance(x, x * [2, 1] + [3, 0])
    assert moved == pytest.approx(9 + 1, rel=0.02)


@pytest.mark.slow
def test_an_exported_generator_is_scored_and_pictured(tmp_path):
    pictures = Pictures(IMAGES.repeat(2, 0), np.arange(24, dtype=np.int32) % 2, ("a", "b"))
    card = Card("tiny", ("noise",), "noise", "CC0", "a test")

    def score(generator, pictures):
        return generator_scores.score(generator, pictures, n=8, steps=2)

    path, gan = tmp_path / "tiny.npz", init_gan(RECIPE, 1, 0)
    scores = generator_training.export(path, gan, RECIPE, pictures, card, 0, score)
    metadata = npz.read(tmp_path / "tiny.npz")[0]
    assert metadata["scores"] == scores
    assert set(scores) == {"classifier_accuracy", "real", *generator_scores.LABELS}
    found = (metadata["images_seen"], metadata["recipe"]["latent_dim"], metadata["classes"])
    assert found == (0, 8, ["a", "b"])
    generator = embedded.load_embedded(tmp_path / "tiny.npz")
    assert generator.card == card
    w = generator.sample_w(generator.variables, jax.random.key(5), 1000)
    squared = np.sum((w - np.roll(w, 1, 0)) ** 2, -1)
    assert np.median(squared) == pytest.approx(generator_training.SQUARED_DISTANCE, rel=0.15)
    with Image.open(tmp_path / "tiny.png") as picture:
        assert picture.size == (14 * 64, 10 * 64 + 5 * 14)


def test_classes_of_jpeg_files_are_chosen_by_name(tmp_path):
    path = str(tmp_path / "jpeg.npz")
    write_jpegs(path, [0, 1, 2, 1], [32] * 4)
    pictures = load_pictures(path, classes=("b", "g"))
    assert pictures.classes == ("b", "g")
    assert pictures.labels.tolist() == [1, 0, 1]
    assert pictures.images.shape == (3, 32, 32, 3)
    assert pictures.images[1, 5, 5] == pytest.approx([0, 0, 255], abs=3)
    assert len(load_pictures(path).images) == 4
    with pytest.raises(ValueError, match="has no class 'x'; it has r, g, b"):
        load_pictures(path, classes=("r", "x"))
    with pytest.raises(FileNotFoundError, match="no images at"):
        load_pictures(str(tmp_path / "none.npz"))
    write_jpegs(tmp_path / "large.npz", [0, 1], [40] * 2)
    with pytest.raises(ValueError, match="images must be 32x32"):
        load_pictures(str(tmp_path / "large.npz"))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "large.npz").read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"cut\.npz: "):
        load_pictures(str(tmp_path / "cut.npz"))
    np.savez(tmp_path / "other.npz", jpeg=np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="no entry label, offset, wnid"):
        load_pictures(str(tmp_path / "other.npz"))


def test_small_images_get_a_frame_and_large_ones_are_resized(tmp_path):
    small = load_pictures("fashion_mnist_10k")
    assert small.images.shape == (10_000, 32, 32, 1)
    assert not small.images[:, :2].any() and not small.images[:, :, 30:].any()
    assert small.images[:, 2:30, 2:30].any()
    images = np.full((2, 64, 64, 3), 7, np.uint8)
    np.savez(tmp_path / "large.npz", images=images, labels=np.arange(2))
    large = load_pictures(f"npz:{tmp_path / 'large.npz'}").images
    assert large.shape == (2, 32, 32, 3) and (large == 7).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--data=fashion_mnist", "give --data and --workdir"),
        ("--data=fashion_mnist_10k --classes=Bag,Bag --workdir={}", "each must be named once"),
        ("--data=har_10persons --workdir={}", "a generator is trained on images"),
        ("--data=none.npz --workdir={} --channels=4,4,4,99999", "four integers from 1 to 1024"),
        ("--data=none.npz --workdir={} --minutes=nan", "minutes are nan; they must be 0 or more"),
        ("--data=none.npz --workdir={} --out=x.png", "out is 'x.png'; it must be a file whose"),
        ("--data=none.npz --workdir={} --out={}/file/x.npz", "file"),
        ("--data=fashion_mnist_10k --workdir={}/file", "file"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(run_module, tmp_path, arguments, message):
    (tmp_path / "file").touch()
    done = run_module("train_generator", *(a.format(tmp_path) for a in arguments.split()))
    assert done.returncode == 2 and message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_command_trains_goes_on_and_exports(run_module, tmp_path):
    arguments = ("--data=fashion_mnist_10k", f"--workdir={tmp_path}/run", "--seed=1")
    first = run_module("train_generator", *arguments, "--images=128", timeout=600)
    assert first.returncode == 0, first.stderr
    assert "128 images: discriminator" in first.stdout
    out = tmp_path / "out.npz"
    more = ("--images=192", f"--out={out}", "--licence=MIT")
    again = run_module("train_generator", *arguments, *more, timeout=600)
    assert again.returncode == 0, again.stderr
    metadata = npz.read(out)[0]
    assert metadata["images_seen"] == 192
    assert metadata["card"]["trained_on"] == ["fashion_mnist_10k"]
    assert metadata["card"]["licence"] == "MIT"
    assert json.loads((tmp_path / "run/config.json").read_text())["seed"] == 1
    assert (tmp_path / "run/samples/00000k.png").exists()
    other = run_module("train_generator", *arguments[:2], "--seed=2")
    assert (other.returncode, len(other.stderr.splitlines())) == (2, 1)
