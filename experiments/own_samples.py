r"""Draws features of all clients' own samples in one picture, for a run.

FedSSA, Yi et al., IJCAI 2024, Figure 5.

    python -m experiments.own_samples --workdir=RUN --picture=own.png [--csv=own.csv] \
        [--method=fedssa] [--samples=20] [--split=test]

Each client's model computes features of up to --samples of the client's own samples, in the first
trial of the run's newest checkpoint. All clients' features are embedded together in two dimensions,
by t-SNE if scikit-learn is installed and else by PCA: one point per sample, coloured by class. All
entries of the run count, or the one that --method names. Prints how often the nearest sample of
another client has the same class, and how often a random sample of another client would.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments.loaded import loaded_entries
from experiments.rows import write_rows
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.report.document import Table
from fedjax_ht.lab.report.maps import COLOURS, placed
from fedjax_ht.lab.report.plots import save, subplots
from fedjax_ht.lab.runs.evaluate import LoadedRun

# --workdir, --method and --trust are those of fedjax_ht.lab.runs.evaluate.
_CSV = flags.DEFINE_string("csv", None, "File to write.", allow_override=True)
_PICTURE = flags.DEFINE_string("picture", None, "PNG to write.", allow_override=True)
_SAMPLES = flags.DEFINE_integer("samples", 20, "Samples of a client, at most.", lower_bound=1)
_SPLIT = flags.DEFINE_enum("split", "test", ["train", "val", "test"], "The clients' samples.")

BLOCK = 256  # rows whose distances to all others are in memory together


class OwnSamples(NamedTuple):
    """Features of clients' own samples.

    Attributes:
      round: round of the run.
      clients: int [n], ids.
      labels: int [n], the samples' classes.
      features: float32 [n, K].
    """

    round: int
    clients: np.ndarray
    labels: np.ndarray
    features: np.ndarray


class Agreement(NamedTuple):
    """Shares of samples whose partner, a sample of another client, has the same class.

    Attributes:
      nearest: share if the partner is the nearest one by features.
      random: share if the partner is random, as with meaningless features.
    """

    nearest: float
    random: float


def own_samples(loaded: LoadedRun, split: str, most: int) -> OwnSamples:
    """Computes every client's features of up to `most` of its own samples of a split.

    Raises:
      ValueError: the method has no features, no client has such samples, or the clients' features
        have different widths. One line.
    """
    rng, chosen = np.random.default_rng(0), {}
    for client, sets in enumerate(loaded.run.partitions[0]):
        pool = rng.permutation(getattr(sets, split))
        if len(pool):
            chosen[client] = pool[:most]
    if not chosen:
        raise ValueError(f"no client of the run has {split} samples; choose another --split")
    # One program serves all clients of an architecture, so each gets equally many samples.
    longest = max(map(len, chosen.values()))
    rows = np.stack([np.resize(indices, longest) for indices in chosen.values()])
    shown = loaded.simulation.features(loaded.state, list(chosen), rows)
    widths = sorted({features.shape[1] for features in shown})
    if len(widths) > 1:
        raise ValueError(
            f"clients of {loaded.run.label} have features of {widths[0]} and {widths[-1]} numbers; "
            "one picture takes one width"
        )
    counts = [len(indices) for indices in chosen.values()]
    return OwnSamples(
        round=loaded.state.round,
        clients=np.repeat(list(chosen), counts),
        labels=loaded.run.dataset.labels[np.concatenate(list(chosen.values()))],
        features=np.concatenate([x[:count] for x, count in zip(shown, counts)]),
    )


def agreement(samples: OwnSamples) -> Agreement:
    """Compares each sample with those of other clients; NaN if there is only one client."""
    rows = samples.features.astype(np.float64)
    squares, nearest, same = (rows**2).sum(1), [], []
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        distances = squares - 2 * rows[block] @ rows.T  # up to the block's own squares
        others = samples.clients[block, None] != samples.clients
        alike = samples.labels[block, None] == samples.labels
        partner = np.where(others, distances, np.inf).argmin(1)
        nearest.append(alike[np.arange(len(partner)), partner])
        same.append((alike & others).sum(1) / np.maximum(others.sum(1), 1))
    if len(np.unique(samples.clients)) < 2:
        return Agreement(np.nan, np.nan)
    return Agreement(float(np.concatenate(nearest).mean()), float(np.concatenate(same).mean()))


def picture(drawn: Mapping[str, tuple[OwnSamples, str, np.ndarray]]) -> Figure:
    """Draws axes for each entry: label -> (samples, name of the embedding, positions)."""
    figure, axes = subplots(1, len(drawn), squeeze=False, figsize=(4.2 * len(drawn), 4.4))
    for place, (label, (samples, name, places)) in zip(axes[0], drawn.items()):
        place.set(xticks=[], yticks=[])  # the directions have no meaning
        place.set_aspect("equal", adjustable="datalim")
        colours = np.array(COLOURS)[samples.labels % len(COLOURS)]
        place.scatter(*places.T, s=6, lw=0, c=colours, rasterized=True)
        place.set_title(f"{label}, {len(np.unique(samples.clients))} clients\n{name}", fontsize=9)
    return figure


def rows_of(label: str, samples: OwnSamples, places: np.ndarray) -> Iterator[tuple]:
    """Yields a row per sample: entry, round, client, class, and its two coordinates."""
    for client, of_class, (x, y) in zip(samples.clients.tolist(), samples.labels.tolist(), places):
        yield label, samples.round, client, of_class, float(x), float(y)


@orderly_main
def main(_) -> None:
    options = flags.FLAGS
    if not options.workdir or not (_CSV.value or _PICTURE.value):
        raise ValueError("give --workdir, and --picture or --csv; see --help")
    drawn = {}
    for loaded in loaded_entries():
        samples = own_samples(loaded, _SPLIT.value, _SAMPLES.value)
        drawn[loaded.run.label] = samples, *placed(samples.features, print)
    if _CSV.value:
        rows = []
        for label, (samples, _, places) in drawn.items():
            rows += rows_of(label, samples, places)
        write_rows(Path(_CSV.value), ("method", "round", "client", "label", "x", "y"), rows)
    if _PICTURE.value:
        save(picture(drawn), Path(_PICTURE.value))
    print(table_of({label: samples for label, (samples, *_) in drawn.items()}).markdown())


def table_of(drawn: Mapping[str, OwnSamples]) -> Table:
    """Makes a table with a row per entry."""
    head = ["method", "round", "clients", "samples"]
    head += ["nearest of another client: same class %", "at random %"]
    lines = []
    for label, samples in drawn.items():
        shares = [f"{100 * share:.1f}" for share in agreement(samples)]
        sizes = (samples.round, len(np.unique(samples.clients)), len(samples.labels))
        lines.append([label, *map(str, sizes), *shares])
    return Table(head, lines)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
