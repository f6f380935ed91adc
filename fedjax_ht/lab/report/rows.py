"""Selections of rows and of their values."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_ht.simulation.history import best_by
from fedjax_ht.simulation.rows import Row, Runs, evaluated

PARTICIPANTS = "accuracy_participants"
MACRO_F1, AUC = "macro_f1", "auc"


def values(rows: Iterable[Row], key: str) -> list[Any]:
    """Returns the values of a key, of the rows that have it."""
    return [row[key] for row in rows if key in row]


def after_start(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows of rounds, without those of the untrained federation."""
    return [row for row in rows if row["round"] > 0]


def reporting(rows: Iterable[Row], key: str) -> list[Row]:
    """Returns the rows in which a key has a value other than zero, False and the empty list."""
    return [row for row in rows if row.get(key)]


def are_evaluated(runs: Runs) -> bool:
    """Returns whether any run of an entry has an evaluation."""
    return any(map(evaluated, runs))


def tops_of(runs: Runs, score: str) -> list[Row]:
    """Returns each run's row in which a score is highest; runs without it have none."""
    tops = [best_by(history, score) for history in runs]
    return [top for top in tops if top is not None]


def rows_of_all(histories: Mapping[str, Runs]) -> Iterator[Row]:
    """Yields the rows of all runs of all entries."""
    for runs in histories.values():
        yield from itertools.chain(*runs)


def has_clock(histories: Mapping[str, Runs]) -> bool:
    """Returns whether any rounds took simulated time."""
    return any("simulated_clock" in row for row in rows_of_all(histories))


def mean(numbers: Sequence[float], default: float) -> float:
    """Returns the mean, or the default where there are no numbers."""
    return float(np.mean(numbers)) if len(numbers) else default
