r"""Tracks global prototypes through a run: margins, norms, drift, and the cost of the drift.

    python -m experiments.prototype_drift --config=cifar10_practical:method=fedtgp \
        --config.method.options.variant=released --config.shared_init=True --csv=drift.csv

Clients train with the previous round's prototypes, and are scored with new ones. Each round of the
first trial has a line: the method's margin and losses; the prototypes' mean norm, their mean
distance to the nearest other one, and their mean distance from the previous round's. Rounds that
the config evaluates have the accuracy by each rule, mean over clients, with the new prototypes and
with those with which the clients trained.
"""

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from absl import app, flags

import fedjax_ht as fl
from experiments.margins import prototype_margins
from experiments.rows import write_rows
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.runs.plan import Run, plan
from fedjax_ht.lab.runs.run import configured

# --config is that of fedjax_ht.lab.runs.run.
_CSV = flags.DEFINE_string("csv", None, "File to write.", allow_override=True)


def measures(values: np.ndarray, present: np.ndarray, before: np.ndarray | None) -> dict:
    """Measures prototypes, float [C, K] and bool [C], also against those of the previous round."""
    row = {
        "norm": np.linalg.norm(values[present], axis=1).mean(),
        "nearest": np.nanmean(prototype_margins(values, present).nearest),
    }
    if before is not None:
        row["drift"] = np.linalg.norm((values - before)[present], axis=1).mean()
    return row


def followed(run: Run) -> Iterator[dict]:
    """Runs the first trial of a run, and yields a row per round."""
    data = fl.make_federation_data(run.dataset, run.partitions[0], run.federation)
    simulation = fl.make_simulation(run.method, run.federation, data, options=run.options)
    state, before, server = simulation.init(), None, None
    for number in range(1, run.config.rounds + 1):
        trained_with = server
        state, report = simulation.run_round(state, False)
        server = jax.tree.map(np.array, state.server)  # the next round reuses its arrays
        sent = run.method.view.prototypes(server)
        values, present = np.asarray(sent.values, np.float64), np.asarray(sent.mask)
        row = {"round": number} | report.metrics | report.server_metrics
        row |= measures(values, present, before)
        if number % run.config.evaluate.every == 0:
            for name, of_server in (("new", server), ("before", trained_with)):
                if of_server is None:  # in the first round
                    continue
                scores = simulation.evaluate(state._replace(server=of_server)).accuracy["test"]
                row |= {f"{name}_{rule}": np.nanmean(scores[rule]) for rule in simulation.rules}
        yield row
        before = values


@orderly_main
def main(_) -> None:
    if not _CSV.value:
        raise ValueError("give --config and --csv; see --help")
    config, _ = configured()
    runs = plan(config).runs
    if len(runs) > 1:
        raise ValueError(f"{', '.join(runs)}: name one method, as in --config=FILE:method=fedtgp")
    (run,) = runs.values()
    if run.method.view.prototypes is None:
        raise ValueError(f"{run.label} has no global prototypes")
    rows: list[dict] = []
    for row in followed(run):
        rows.append(row)
        fields = list(dict.fromkeys(name for row in rows for name in row))
        write_rows(
            Path(_CSV.value), fields, [[row.get(name, "") for name in fields] for row in rows]
        )


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
