r"""Draws a generator's images of valid latents, random vectors and class prototypes.

FedKTL, Zhang et al., CVPR 2024, Figure 1.

    python -m experiments.latent_images --generator=natural_32 --csv=latents.csv \
        --picture=latents.png [--count=10] [--seed=0] [--workdir=RUN]

Random vectors are normal, once with the mean and deviations of the valid latents, and once with
mean 0 and deviation 1. With a run, there are also the global prototypes of its entries, used as
latents unchanged, and the latents that FedKTL's entries make of prototypes and send, both from the
run's newest checkpoint and first trial. Prototypes must be as long as a latent:
--config.model.feature_dim=512 gives FedProto's the length that the shipped generators take. Writes
to --csv how far each vector is from the middle of the valid latents, in radii of the ball that
holds a thousand of them, and how sharp its image is, and prints the means.
"""

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments.generator_scores import laplacian_variance, pair_distance, render_all
from experiments.loaded import loaded_entries
from experiments.rows import column, grouped, write_rows
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.generators import Generator, open_generator
from fedjax_ht.lab.report.document import Table
from fedjax_ht.lab.report.plots import image_grid, save
from fedjax_ht.lab.runs.evaluate import LoadedRun
from fedjax_ht.methods.shared.pair_server import BATCH, Server, latents_of
from fedjax_ht.methods.shared.units import in_units

# --workdir, --method, --trial and --trust are those of fedjax_ht.lab.runs.evaluate.
_GENERATOR = flags.DEFINE_string("generator", "natural_32", "As of generators.open_generator.")
_COUNT = flags.DEFINE_integer("count", 10, "Images of each kind without classes.", lower_bound=2)
_SEED = flags.DEFINE_integer("seed", 0, "Of the draws.", allow_override=True)
_CSV = flags.DEFINE_string("csv", None, "File to write.", allow_override=True)
_PICTURE = flags.DEFINE_string("picture", None, "PNG to write.", allow_override=True)

VALID = "valid latents"
ALIKE = "normal, with the mean and deviations of valid latents"
NORMAL = "normal, mean 0 and deviation 1"
DRAWN = 3  # kinds that need no run
COLUMNS = 10


class Row(NamedTuple):
    """One vector and its image.

    Attributes:
      kind: kind of the vector.
      number: index within its kind; for prototypes the class.
      reach: distance from the ball's centre, in radii.
      sharpness: Laplacian variance of the image.
    """

    kind: str
    number: int
    reach: float
    sharpness: float


class Vectors(NamedTuple):
    """Vectors of one kind.

    Attributes:
      values: float32 [n, H].
      present: bool [n]; False for classes without a prototype.
    """

    values: jax.Array
    present: np.ndarray


def drawn_vectors(generator: Generator, count: int, seed: int) -> dict[str, Vectors]:
    """Draws valid latents and random vectors, by kind."""
    keys = jax.random.split(jax.random.key(seed), 3)
    drawn = {
        VALID: latents_of("valid", generator, generator.variables, keys[0], count),
        ALIKE: latents_of("noise", generator, generator.variables, keys[1], count),
        NORMAL: jax.random.normal(keys[2], (count, generator.latent_dim)),
    }
    return {kind: Vectors(values, np.ones(count, bool)) for kind, values in drawn.items()}


def vectors_of_run(loaded: LoadedRun, generator: Generator) -> dict[str, Vectors]:
    """Returns an entry's vectors for classes, by kind: its prototypes, or FedKTL's sent latents.

    There are none for methods without global prototypes.

    Raises:
      ValueError: they differ from latents in length, or belong to another generator. One line.
    """
    method, server = loaded.run.method, loaded.state.server
    if isinstance(server, Server):
        of_entry = open_generator(loaded.run.entry.options["generator"])
        if of_entry.card != generator.card:
            raise ValueError(
                f"{loaded.run.label} makes latents of {of_entry.card.name}, and --generator is "
                f"{generator.card.name}; give the run's"
            )
        latents = server.centroids * method.needs.pretrained.variables.unit
        return {
            f"latents that {loaded.run.label} makes of prototypes": vectors(
                latents, server.available
            )
        }
    if method.view.prototypes is None:
        return {}
    sent = method.view.prototypes(server)
    length, needed = sent.values.shape[1], generator.latent_dim
    if length != needed:
        raise ValueError(
            f"prototypes of {loaded.run.label} have {length} numbers, and latents of "
            f"{generator.card.name} {needed}; take a run with --config.model.feature_dim={needed}"
        )
    return {f"prototypes of {loaded.run.label}, taken for latents": vectors(sent.values, sent.mask)}


def vectors(values: jax.Array, mask: jax.Array) -> Vectors:
    """Makes vectors; masked rows may hold anything, and become zeros."""
    return Vectors(jnp.where(mask[:, None], values, 0), np.asarray(mask))


def images_of(generator: Generator, kinds: Mapping[str, Vectors]) -> dict[str, np.ndarray]:
    """Makes images of vectors by kind, float32 [n, h, w, 3] in [0, 1]; white without a vector."""
    images = {}
    for kind, (values, present) in kinds.items():
        if generator.host:
            made = np.array(generator.synthesize(*jax.device_get((generator.variables, values))))
        else:
            made = render_all(generator, values, BATCH)
        made[~present] = 1
        images[kind] = made
    return images


def rows_of(
    generator: Generator, kinds: Mapping[str, Vectors], images: Mapping[str, np.ndarray]
) -> list[Row]:
    """Measures each vector that is present, and its image."""
    centre, radius = in_units(generator, "raw").variables.ball
    rows = []
    for kind, (values, present) in kinds.items():
        reaches = np.asarray(jnp.linalg.norm(values - centre, axis=-1) / radius)
        sharpness = laplacian_variance(images[kind])
        for number in np.flatnonzero(present).tolist():
            rows.append(Row(kind, number, float(reaches[number]), float(sharpness[number])))
    return rows


def table_of(rows: Sequence[Row], images: Mapping[str, np.ndarray]) -> Table:
    """Makes a table with a row per kind: means, and how far apart neighbouring images are."""
    lines = []
    for kind, of_kind in grouped(rows, operator.attrgetter("kind")).items():
        shown = images[kind][column(of_kind, "number")]
        numbers = (
            np.mean(column(of_kind, "reach")),
            np.mean(column(of_kind, "sharpness")),
            pair_distance(shown),
        )
        lines.append([kind, str(len(of_kind)), *(f"{number:.3g}" for number in numbers)])
    return Table(["vectors", "number", "radii from the middle", "sharpness", "variety"], lines)


def picture(images: Mapping[str, np.ndarray]) -> Figure:
    """Draws a block of images per kind, ten side by side."""
    return image_grid(images, [""] * min(COLUMNS, max(map(len, images.values()))))


@orderly_main
def main(_) -> None:
    options = flags.FLAGS
    if not _CSV.value or not _PICTURE.value:
        raise ValueError("give --csv and --picture; see --help")
    generator = open_generator(_GENERATOR.value)
    kinds = drawn_vectors(generator, _COUNT.value, _SEED.value)
    if options.workdir:
        for loaded in loaded_entries():
            kinds |= vectors_of_run(loaded, generator)
        if len(kinds) == DRAWN:
            raise ValueError(f"no entry of the run in {options.workdir} has prototypes")
    images = images_of(generator, kinds)
    rows = rows_of(generator, kinds, images)
    write_rows(Path(_CSV.value), Row._fields, rows)
    save(picture(images), Path(_PICTURE.value))
    print(table_of(rows, images).markdown())


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
