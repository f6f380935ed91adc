"""Training of an embedded generator, which can be stopped and resumed, and its export as .npz."""

import csv
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gan import GanState, Recipe, is_penalised, train_step
from experiments.generator_data import Pictures
from experiments.generator_scores import score, write_comparison, write_grid
from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.generators import embedded, npz
from fedjax_ht.lab.runs.environment import commit
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.models.generator import Card

SAVE_SECONDS = 300
LOG_STEPS = 50
# median ||w - w'||^2 of shipped generators; FedKTL's kernels have bandwidths of 10 to 50
SQUARED_DISTANCE = 60.0
LOG_FIELDS = ("images", "discriminator", "generator", "penalty")

Log = list[tuple[float, ...]]  # rows of LOG_FIELDS


def train(
    recipe: Recipe,
    pictures: Pictures,
    seed: int,
    state: GanState,
    log: Log,
    stop: Callable[[int], bool],
    save: Callable[[GanState, Log], None],
) -> tuple[GanState, Log]:
    """Trains until `stop`, asked before each step; saves every five minutes and at the end.

    Args:
      recipe: hyper-parameters.
      pictures: training images.
      seed: seed of all randomness, which is a function of (seed, step): a resumed run equals one
        that never stopped.
      state: state to resume from; donated.
      log: rows so far.
      stop: number of the step -> whether to end.
      save: writes a checkpoint.
    """
    images, classes = pictures.images, pictures.labels
    if recipe.num_classes:  # its batches are drawn class by class
        order = np.argsort(classes, kind="stable")
        images, classes = images[order], classes[order]
    images, classes = jnp.asarray(images), jnp.asarray(classes)
    step, saved = int(state.step), time.monotonic()
    while not stop(step):
        penalise = is_penalised(recipe, step)
        state = train_step(recipe, state, images, classes, jnp.uint32(seed), penalise)
        step += 1
        if step % LOG_STEPS == 0:
            losses = [float(state.losses[name]) for name in LOG_FIELDS[1:]]
            log = [*log, (step * recipe.batch_size, *losses)]
        if time.monotonic() - saved > SAVE_SECONDS:
            save(state, log)
            saved = time.monotonic()
    save(state, log)
    return state, log


def write_checkpoint(workdir: Path, state: GanState, log: Log) -> None:
    """Writes checkpoint.npz and losses.csv below `workdir`, each atomically."""
    arrays = {f"state/{i:03d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    with atomic_open(workdir / "checkpoint.npz", "wb") as file:
        np.savez(file, log=np.array(log, np.float64).reshape(-1, len(LOG_FIELDS)), **arrays)
    with atomic_open(workdir / "losses.csv") as file:
        csv.writer(file).writerows([LOG_FIELDS, *((int(seen), *losses) for seen, *losses in log)])


def read_checkpoint(workdir: Path, like: GanState) -> tuple[GanState, Log]:
    """Reads the newest checkpoint; without one, returns `like` and an empty log.

    Raises:
      ValueError: it is damaged, or belongs to another recipe.
    """
    path = workdir / "checkpoint.npz"
    if not path.exists():
        return like, []
    leaves, structure = jax.tree.flatten(like)
    try:
        with opened_npz(path) as file:
            stored = [file[f"state/{i:03d}"] for i in range(len(leaves))]
            log = [tuple(row) for row in file["log"].tolist()]
    except Exception as error:  # zipfile, zlib and numpy raise different errors for damage
        raise ValueError(f"{path} cannot be read ({error}); choose another --workdir") from error
    if any(x.shape != y.shape or x.dtype != y.dtype for x, y in zip(stored, leaves)):
        raise ValueError(f"{path} is of another recipe; choose another --workdir")
    return jax.tree.unflatten(structure, map(jnp.array, stored)), log


def write_samples(path: Path, variables: Any, seed: int = 0) -> None:
    """Writes a picture of 100 samples of a generator."""
    key = jax.random.key(seed)
    if "classes" in variables:  # one class a row
        labels = jnp.arange(100) // 10 % len(variables["classes"])
        latents = embedded.sample_classes(variables, key, labels)
    else:
        latents = embedded.sample_w(variables, key, 100)
    images = jax.jit(embedded.synthesize)(variables, latents)
    write_grid(path, np.asarray(images).reshape(10, 10, *images.shape[1:]))


def export(
    out: Path,
    state: GanState,
    recipe: Recipe,
    pictures: Pictures,
    card: Card,
    seed: int,
    score: Callable = score,
) -> dict[str, Any]:
    """Writes the moving average, its w rescaled, with scores, to `out`, and its samples as .png.

    Args:
      out: the file.
      state, recipe, seed: state, recipe and seed of the training.
      pictures: training images.
      card: the generator's origin.
      score: (generator, pictures) -> scores, as JSON values.

    Returns:
      The scores.
    """
    variables, scale = rescale_w(state.average, SQUARED_DISTANCE, jax.random.key(seed))
    metadata = {
        "classes": pictures.classes,
        "training_images": len(pictures.images),
        "images_seen": int(state.step) * recipe.batch_size,
        "recipe": recipe._asdict(),
        "seed": seed,
        "scale": scale,
        "revision": commit(),
    }
    save_embedded(out, variables, card, metadata)
    generator = embedded.load_embedded(out)  # scores what is shipped, in float16
    scores = score(generator, pictures)
    save_embedded(out, variables, card, metadata | {"scores": scores})
    write_comparison(out.with_suffix(".png"), generator)
    return scores


def rescale_w(
    variables: PyTree, squared_distance: float, key: jax.Array, samples: int = 2000
) -> tuple[PyTree, float]:
    """Returns the same generator with another scale of w.

    The last mapping layer is multiplied by s and the styles' weights are divided by it: leaky ReLU
    is positively homogeneous, so no image changes. FedKTL compares latents by kernels of fixed
    bandwidths (10 to 50), which vanish at distances far above them.

    Args:
      variables: variables of the generator.
      squared_distance: median of ||w - w'||^2 afterwards, such as 60.
      key: key of the `samples` latents on which distances and mean are measured.

    Returns:
      The new variables, with "average" measured, and s.
    """
    w = embedded.sample_w(variables, key, samples)
    # Distances between each latent and the next.
    squared_distances = jnp.sum((w - jnp.roll(w, 1, 0)) ** 2, -1)
    scale = float(jnp.sqrt(squared_distance / jnp.median(squared_distances)))
    last = {name: x * scale for name, x in variables["mapping"]["1"].items()}

    def restyle(layer):
        return layer | {"style": layer["style"] | {"weight": layer["style"]["weight"] / scale}}

    scaled = variables | {
        "mapping": variables["mapping"] | {"1": last},
        "convolutions": {name: restyle(layer) for name, layer in variables["convolutions"].items()},
        "image": restyle(variables["image"]),
        "average": w.mean(0) * scale,
    }
    return scaled, scale


def save_embedded(
    path: Path | str, variables: PyTree, card: Card, metadata: Mapping[str, Any]
) -> None:
    """Writes a generator as .npz: float16 weights by path in `variables`, and one JSON object.

    Args:
      path: the file; replaced atomically.
      variables: variables as `embedded.init_variables` makes them.
      card: the generator's origin.
      metadata: further facts about the generator, as JSON values.
    """
    arrays = {}
    for key, x in jax.tree_util.tree_leaves_with_path(variables):
        arrays[jax.tree_util.keystr(key, simple=True, separator="/")] = np.asarray(x, np.float16)
    facts = {"format": embedded.FORMAT, "latent_dim": len(variables["average"]), **metadata}
    npz.write(path, facts, card, arrays)
