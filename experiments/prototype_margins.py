r"""Measures margins between class prototypes, of clients and global ones, in a run.

FedTGP, Zhang et al., AAAI 2024, Figure 1.

    python -m experiments.prototype_margins --workdir=RUN --csv=margins.csv \
        [--method=fedtgp] [--trial=0] [--picture=margins.png]

A class's margin is the Euclidean distance from its prototype to that of the nearest other class. A
client's prototypes are the mean features of its training samples, by its trained model in
evaluation mode, at the run's newest checkpoint; the global ones are those that the server sends.
All entries of the run with global prototypes count, or the one that --method names. Writes a row
for each client and class, and prints a table of them.
"""

import functools
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments.loaded import loaded_entries
from experiments.margins import prototype_margins
from experiments.rows import column, grouped, write_rows
from fedjax_ht.core.batches import class_means
from fedjax_ht.core.samples import Data
from fedjax_ht.data.client_data import stack
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.report.document import Table
from fedjax_ht.lab.report.plots import save, subplots
from fedjax_ht.lab.report.rows import mean
from fedjax_ht.lab.runs.evaluate import LoadedRun, client_state
from fedjax_ht.methods.shared.prototypes import class_sums

# --workdir, --method, --trial and --trust are those of fedjax_ht.lab.runs.evaluate.
_CSV = flags.DEFINE_string("csv", None, "File to write.", allow_override=True)
_PICTURE = flags.DEFINE_string("picture", None, "PNG to write.", allow_override=True)

GLOBAL = "global"
METHOD = operator.attrgetter("method")


class Row(NamedTuple):
    """Margins of one class.

    Attributes:
      method: label of the entry.
      trial, round: trial and round of the run.
      client: id, or GLOBAL for the server's prototypes.
      label: index of the class.
      nearest, mean: distances, as in `Margins`.
    """

    method: str
    trial: int
    round: int
    client: str
    label: int
    nearest: float
    mean: float


def client_prototypes(loaded: LoadedRun, trial: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns clients' class means of features, float32 [N, C, K], and which exist, bool [N, C]."""
    federation, dataset = loaded.run.federation, loaded.run.dataset
    train = stack([client.train for client in loaded.run.partitions[trial]])
    inputs = jax.tree.map(jnp.asarray, dataset.inputs)
    labels = jnp.asarray(dataset.labels)
    collectors = {}  # one program per architecture
    for bucket in federation.buckets:
        collectors[bucket.name] = jax.jit(functools.partial(class_sums, bucket))
    values, present = [], []
    for client in range(federation.num_clients):
        bucket = federation.buckets[federation.assignment[client]]
        split = jax.tree.map(lambda x, i=client: jnp.asarray(x[i]), train)
        data = Data(inputs, labels, dataset.preprocess, {"train": split})
        sums = collectors[bucket.name](client_state(loaded, client), data)
        values.append(np.asarray(class_means(sums)))
        present.append(np.asarray(sums.counts) > 0)
    return np.stack(values), np.stack(present)


def global_prototypes(loaded: LoadedRun) -> tuple[np.ndarray, np.ndarray]:
    """Returns the prototypes that the server sends, float32 [C, K], and their classes, bool [C]."""
    sent = loaded.run.method.view.prototypes(loaded.state.server)
    return np.asarray(sent.values), np.asarray(sent.mask)


def rows_of(loaded: LoadedRun, trial: int) -> Iterator[Row]:
    """Yields an entry's rows for classes with a margin: its clients in order, then the server."""
    clients = prototype_margins(*client_prototypes(loaded, trial))
    server = prototype_margins(*global_prototypes(loaded))
    owners = [(str(i), *margins) for i, margins in enumerate(zip(*clients))]
    for owner, nearest, average in [*owners, (GLOBAL, *server)]:
        for label in np.flatnonzero(~np.isnan(nearest)).tolist():
            yield Row(
                method=loaded.run.label,
                trial=trial,
                round=int(loaded.state.round),
                client=owner,
                label=label,
                nearest=float(nearest[label]),
                mean=float(average[label]),
            )


def table_of(rows: Sequence[Row]) -> Table:
    """Makes a table with a row per entry: clients' margins, largest by class, and global ones."""
    head = [
        "method",
        "round",
        "clients: mean",
        "largest of a class, mean",
        "global: mean",
        "least",
        "mean distance: clients",
        "global",
        "classes whose global margin is above all clients'",
    ]
    lines = []
    for method, of_method in grouped(rows, METHOD).items():
        clients, server = clients_and_server(of_method)
        largest: dict[int, float] = {}
        for row in clients:
            largest[row.label] = max(row.nearest, largest.get(row.label, 0.0))
        above = [row for row in server if row.nearest > largest.get(row.label, 0.0)]
        margins = column(server, "nearest")
        numbers = [
            mean(column(clients, "nearest"), np.nan),
            mean(list(largest.values()), np.nan),
            mean(margins, np.nan),
            min(margins, default=np.nan),
            mean(column(clients, "mean"), np.nan),
            mean(column(server, "mean"), np.nan),
        ]
        cells = [method, str(of_method[0].round), *(f"{number:.3g}" for number in numbers)]
        lines.append([*cells, f"{len(above)} of {len(server)}"])
    return Table(head, lines)


def clients_and_server(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Splits an entry's rows into those of clients and those of the server."""
    by_owner = grouped(rows, lambda row: row.client == GLOBAL)
    return by_owner.get(False, []), by_owner.get(True, [])


def picture(rows: Sequence[Row]) -> Figure:
    """Plots margins by class for each entry: dots for clients, triangles for global prototypes."""
    methods = grouped(rows, METHOD)
    figure, axes = subplots(1, len(methods), squeeze=False, figsize=(4.2 * len(methods), 3.4))
    looks = (
        {"s": 14, "marker": "o", "label": "clients"},
        {"s": 60, "marker": "^", "label": GLOBAL},
    )
    for place, (method, of_method) in zip(axes[0], methods.items()):
        for shown, look in zip(clients_and_server(of_method), looks):
            place.scatter(column(shown, "label"), column(shown, "nearest"), **look)
        place.set(title=method, xlabel="class", ylim=(0, None))
        place.set(ylabel="distance to the nearest other prototype")
        place.legend(frameon=False)
    return figure


@orderly_main
def main(_) -> None:
    options = flags.FLAGS
    if not options.workdir or not _CSV.value:
        raise ValueError("give --workdir and --csv; see --help")
    rows: list[Row] = []
    for loaded in loaded_entries():
        if loaded.run.method.view.prototypes is None:
            print(f"{loaded.run.label} has no global prototypes")
        else:
            rows += rows_of(loaded, options.trial)
    if not rows:
        raise ValueError(
            f"no entry of the run in {options.workdir} has prototypes of several classes"
        )
    write_rows(Path(_CSV.value), Row._fields, rows)
    if _PICTURE.value:
        save(picture(rows), Path(_PICTURE.value))
    print(table_of(rows).markdown())


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
