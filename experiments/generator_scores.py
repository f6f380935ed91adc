"""Scores of a generator (sharpness, variety, distance to real images), and pictures to inspect."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from PIL import Image, ImageDraw

from experiments.generator_data import Pictures
from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.models.cnn import ConvFeatures, ConvLayer
from fedjax_ht.models.generator import Generator
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import SplitModel

TRUNCATION = 0.3
LABELS = {
    "valid": "w = G_m(z)",
    "truncated": f"w truncated, psi {TRUNCATION}",
    "normal": "w ~ N(0, I)",
    "small_normal": "w ~ 0.1 N(0, I)",
    "unit": "unit vectors",
}


def latents(generator: Generator, key: jax.Array, n: int) -> dict[str, jax.Array]:
    """Draws an embedded generator's latents by kind, float [n, H]; three kinds are invalid."""
    keys = jax.random.split(key)
    valid = generator.sample_w(generator.variables, keys[0], n)
    normal = jax.random.normal(keys[1], valid.shape)
    return {
        "valid": valid,
        "truncated": truncate(generator.variables, valid, TRUNCATION),
        "normal": normal,
        "small_normal": 0.1 * normal,
        "unit": normal / jnp.linalg.norm(normal, axis=-1, keepdims=True),
    }


def render_all(generator: Generator, w: jax.Array, batch_size: int = 100) -> np.ndarray:
    """Renders the images of many latents, float32 [n, 32, 32, 3] in [0, 1]."""
    synthesize = jax.jit(generator.synthesize)
    parts = [w[i : i + batch_size] for i in range(0, len(w), batch_size)]
    return np.concatenate([np.asarray(synthesize(generator.variables, part)) for part in parts])


def laplacian_variance(images: np.ndarray) -> np.ndarray:
    """Computes sharpness: the variance over pixels of 4 x minus its four neighbours.

    x is the mean over channels.

    Args:
      images: float [n, h, w, C] in [0, 1].

    Returns:
      float [n].
    """
    x = np.asarray(images).mean(-1)
    laplacian = (
        4 * x[:, 1:-1, 1:-1] - x[:, :-2, 1:-1] - x[:, 2:, 1:-1] - x[:, 1:-1, :-2] - x[:, 1:-1, 2:]
    )
    return laplacian.var((1, 2))


def pair_distance(images: np.ndarray) -> float:
    """Computes variety: the root mean square difference, mean over neighbouring pairs."""
    return float(np.sqrt(np.mean((images - np.roll(images, 1, 0)) ** 2, (1, 2, 3))).mean())


def frechet_distance(x: np.ndarray, y: np.ndarray) -> float:
    """Computes the Frechet distance between Gaussians fitted to features, float [n, D] and [m, D].

    Source: Heusel et al., NeurIPS 2017.
    """
    a, b = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    shared = np.sqrt(np.linalg.eigvals(a @ b).real.clip(0)).sum()
    return float(np.sum((x.mean(0) - y.mean(0)) ** 2) + np.trace(a) + np.trace(b) - 2 * shared)


class Judge(NamedTuple):
    """A small CNN trained on real pictures.

    Attributes:
      features: images float [n, 32, 32, 3] in [0, 1] -> float [n, 64].
      classify: features -> classes int [n].
      accuracy: accuracy on held-out pictures.
    """

    features: Callable[[np.ndarray], np.ndarray]
    classify: Callable[[np.ndarray], np.ndarray]
    accuracy: float


def train_classifier(pictures: Pictures, steps: int) -> Judge:
    """Trains a small CNN on nine tenths of the pictures; its accuracy is that on the last tenth."""
    convs = ConvLayer(16), ConvLayer(32)
    model = SplitModel(ConvFeatures(convs, (64,)), Linear(len(pictures.classes)))
    order = np.random.default_rng(0).permutation(len(pictures.images))
    held_out = order[: len(order) // 10]
    images, labels = jnp.asarray(pictures.images), jnp.asarray(pictures.labels)
    order = jnp.asarray(order[len(held_out) :])

    def colour(x):
        return jnp.broadcast_to(x, (*x.shape[:-1], 3)).astype(jnp.float32) / 255

    params = jax.jit(model.init)(jax.random.key(0), colour(images[:1]))
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-3, steps))

    @jax.jit
    def step(carry: PyTree, number: jax.Array) -> PyTree:
        params, state = carry
        key = jax.random.fold_in(jax.random.key(0), number)
        rows = order[jax.random.randint(key, (64,), 0, len(order))]

        def loss(p):
            logits = model.apply(p, colour(images[rows]))
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels[rows]).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    carry = (params, optimizer.init(params))
    for number in range(steps):
        carry = step(carry, jnp.uint32(number))
    features = jax.jit(lambda x: model.apply(carry[0], x, method="features"))

    def batched(images: np.ndarray) -> np.ndarray:
        parts = np.split(images, range(500, len(images), 500))
        return np.concatenate([np.asarray(features(part)) for part in parts])

    def classify(x: np.ndarray) -> np.ndarray:
        return np.asarray(model.apply(carry[0], x, method="classify").argmax(-1))

    right = classify(batched(np.asarray(colour(images[held_out])))) == labels[held_out]
    return Judge(batched, classify, float(right.mean()))


def score(
    generator: Generator, pictures: Pictures, n: int = 2000, steps: int = 1000
) -> dict[str, Any]:
    """Scores an embedded generator against the images it was trained on.

    Returns:
      "classifier_accuracy" of the CNN whose features the Frechet distances use, and for "real" and
      each kind of latents "laplacian_variance", "pair_distance" and (except "real")
      "frechet_distance", over `n` images. For a conditional generator also "class_accuracy", the
      share of its images that the CNN assigns to the requested class.
    """
    features, classify, accuracy = train_classifier(pictures, steps)
    chosen = np.random.default_rng(0).permutation(len(pictures.images))[:n]
    grey_or_colour = pictures.images[chosen] / np.float32(255)
    real = np.broadcast_to(grey_or_colour, (*grey_or_colour.shape[:3], 3))

    def described(x):
        return {
            "laplacian_variance": float(laplacian_variance(x).mean()),
            "pair_distance": pair_distance(x),
        }

    scores: dict[str, Any] = {"classifier_accuracy": accuracy, "real": described(real)}
    real_features = features(real)
    for kind, w in latents(generator, jax.random.key(0), n).items():
        images = render_all(generator, w)
        scores[kind] = described(images) | {
            "frechet_distance": frechet_distance(features(images), real_features)
        }
    if generator.conditional is not None:
        labels = np.arange(n) % generator.num_labels
        w = generator.conditional(generator.variables, jax.random.key(2), jnp.asarray(labels))
        guesses = classify(features(render_all(generator, w)))
        scores["class_accuracy"] = float((guesses == labels).mean())
    return scores


def write_grid(path: Path, images: np.ndarray) -> None:
    """Writes images, float [rows, columns, h, w, 3] in [0, 1], as one .png, twice as large."""
    with atomic_open(path, "wb") as file:
        Image.fromarray(_sheet(images)).save(file, format="png")


def write_comparison(path: Path, generator: Generator, columns: int = 14, seed: int = 1) -> None:
    """Writes valid, truncated and invalid samples, one below the other with names, as one .png."""
    rows = {"valid": 4, "truncated": 2, "normal": 2, "small_normal": 1, "unit": 1}
    kinds = latents(generator, jax.random.key(seed), max(rows.values()) * columns)
    sheets = {}
    if generator.conditional is not None:
        labels = jnp.arange(generator.num_labels).repeat(columns)
        w = generator.conditional(generator.variables, jax.random.key(seed), labels)
        images = render_all(generator, w)
        sheets["a class a row"] = _sheet(images.reshape(-1, columns, *images.shape[1:]))
    for kind, count in rows.items():
        images = render_all(generator, kinds[kind][: count * columns])
        sheets[LABELS[kind]] = _sheet(images.reshape(count, columns, *images.shape[1:]))
    with atomic_open(path, "wb") as file:
        _stack(sheets).save(file, format="png")


def _stack(sheets: Mapping[str, np.ndarray], title: int = 14) -> Image.Image:
    width = max(sheet.shape[1] for sheet in sheets.values())
    page = Image.new("RGB", (width, sum(len(sheet) + title for sheet in sheets.values())), "white")
    top = 0
    for text, sheet in sheets.items():
        ImageDraw.Draw(page).text((2, top + 1), text, fill="black")
        page.paste(Image.fromarray(sheet), (0, top + title))
        top += title + len(sheet)
    return page


def _sheet(images: np.ndarray) -> np.ndarray:
    rows, columns, height, width, channels = images.shape
    sheet = images.transpose(0, 2, 1, 3, 4).reshape(rows * height, columns * width, channels)
    return np.round(np.clip(sheet, 0, 1) * 255).astype(np.uint8).repeat(2, 0).repeat(2, 1)


def truncate(variables: PyTree, w: jax.Array, psi: float) -> jax.Array:
    """Pulls latents, float [n, H], towards their mean: psi 1 changes nothing, 0 gives it."""
    return variables["average"] + psi * (w - variables["average"])
