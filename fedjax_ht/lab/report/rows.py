"""Selections of rows and of their values, and how a run's score is shown."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.core.task import Task
from fedjax_ht.simulation.history import best_by
from fedjax_ht.simulation.rows import Row, Runs, evaluated

PARTICIPANTS = "accuracy_participants"
MACRO_F1, AUC = "macro_f1", "auc"
NAMES = {
    "micro_f1": "micro F1",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
    "miou": "mean IoU",
    "map": "mAP",
}
"""Metrics whose names in tables differ from those in rows."""
SHARES = re.compile(r"(\w+_)?(accuracy(_\w+)?|f1|auc|exact|miou|map)")
"""The names of metrics in [0, 1], which tables show in percent."""


class Score(NamedTuple):
    """The score of a run's task, and its format in tables and pictures.

    Attributes:
      key: its column in rows, such as "accuracy" or "rmse".
      sign: 1 if higher scores are better, -1 if lower ones are.
    """

    key: str = "accuracy"
    sign: int = 1

    @property
    def is_share(self) -> bool:
        return SHARES.fullmatch(self.key) is not None

    @property
    def name(self) -> str:
        return NAMES.get(self.key, self.key)

    @property
    def unit(self) -> str:
        """The text after a value; targets' own units have no name."""
        return " %" if self.is_share else ""

    @property
    def factor(self) -> int:
        """The factor from a column's values to shown ones."""
        return 100 if self.is_share else 1

    @property
    def form(self) -> str:
        """The format of a shown value."""
        return ".2f" if self.is_share else ".4g"

    @property
    def short(self) -> str:
        """The format of a shown value in a sentence."""
        return ".1f" if self.is_share else ".3g"

    @property
    def before(self) -> str:
        """The text before a value in a sentence; a percentage without a name is an accuracy."""
        return "" if self.key == "accuracy" else f"{self.name} "

    @property
    def points(self) -> str:
        """The unit of a difference, with a leading space."""
        return " points" if self.is_share else f" of {self.name}"

    def text(self, value: float) -> str:
        """Formats a value of a row."""
        return f"{self.factor * value:{self.form}}"

    @np.errstate(invalid="ignore")  # the deviation of infinite scores
    def of_trials(self, rows: Sequence[Row], key: str = "", spread: bool = True) -> str:
        """Formats the mean over rows of trials, with the standard deviation if there are several.

        For example "80.44 ± 0.60"; "-" without rows.
        """
        if not rows:
            return "-"
        values = [self.factor * row[key or self.key] for row in rows]
        mean = f"{np.mean(values):{self.form}}"
        return f"{mean} ± {np.std(values):{self.form}}" if spread and len(rows) > 1 else mean


ACCURACY = Score()
"""The score of classification."""


def score_of_task(task: Task) -> Score:
    """Returns the score of a task."""
    return Score(task.score, -1 if task.better == "lower" else 1)


def score_in(histories: Mapping[str, Runs]) -> Score:
    """Returns the score of a run's rows, which all entries share."""
    for row in rows_of_all(histories):
        if row.get("score") in row:
            return Score(row["score"], -1 if row["better"] == "lower" else 1)
    return ACCURACY


def values(rows: Iterable[Row], key: str) -> list[Any]:
    """Returns the values of a key from the rows that have it."""
    return [row[key] for row in rows if key in row]


def after_start(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows of rounds, without those of the untrained federation."""
    return [row for row in rows if row["round"] > 0]


def reporting(rows: Iterable[Row], key: str) -> list[Row]:
    """Returns the rows in which a key has a value other than zero, False or an empty list."""
    return [row for row in rows if row.get(key)]


def are_evaluated(runs: Runs) -> bool:
    """Returns whether any run of an entry has an evaluation."""
    return any(map(evaluated, runs))


def tops_of(runs: Runs, score: str) -> list[Row]:
    """Returns each run's row in which a score is highest; runs without it have none."""
    tops = [best_by(history, score) for history in runs]
    return [top for top in tops if top is not None]


def best_is_untrained(runs: Runs) -> bool:
    """Returns whether each run's best round is 0, before training, although others have a score."""
    score = score_in({"": runs}).key
    later = [row for row in after_start(itertools.chain(*runs)) if score in row]
    return bool(later) and all(top["round"] == 0 for top in tops_of(runs, score))


def rows_of_all(histories: Mapping[str, Runs]) -> Iterator[Row]:
    """Yields the rows of all runs of all entries."""
    for runs in histories.values():
        yield from itertools.chain(*runs)


def has_clock(histories: Mapping[str, Runs]) -> bool:
    """Returns whether any rounds took simulated time."""
    return any("simulated_clock" in row for row in rows_of_all(histories))


def up_to(runs: Runs, last: int | None = None) -> list[list[Row]]:
    """Returns each run's rows up to a round, by default the last one of all begun runs."""
    if last is None:
        last = min((rows[-1]["round"] for rows in runs if rows), default=0)
    return [[row for row in rows if row["round"] <= last] for rows in runs]


def mean(numbers: Sequence[float], default: float) -> float:
    """Returns the mean, or the default without numbers."""
    return float(np.mean(numbers)) if len(numbers) else default
