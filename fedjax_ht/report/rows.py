"""Selections of a history's rows and of their values."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedjax_ht.simulation.history import Row, best_by, by_trial


def values(rows: Iterable[Row], key: str) -> list[Any]:
    """Returns the values of a key, of the rows that have it."""
    return [row[key] for row in rows if key in row]


def after_start(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows of rounds, without those of the untrained federation."""
    return [row for row in rows if row["round"] > 0]


def reporting(rows: Iterable[Row], key: str) -> list[Row]:
    """Returns the rows in which a key has a value other than zero, False and the empty list."""
    return [row for row in rows if row.get(key)]


def tops_of(history: Sequence[Row], score: str) -> list[Row]:
    """Returns each trial's row in which a score is highest; trials without it have none."""
    tops = []
    for trial in by_trial(history):
        top = best_by(trial, score)
        if top is not None:
            tops.append(top)
    return tops


def mean(numbers: Sequence[float], default: float) -> float:
    """Returns the mean, or the default where there are no numbers."""
    return float(np.mean(numbers)) if len(numbers) else default
