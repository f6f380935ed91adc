"""The limits at which a run ends before its last round."""

from typing import Literal, NamedTuple

import numpy as np

from fedjax_ht.simulation.rows import History, evaluated

Reason = Literal["silence", "patience"]


class Ending(NamedTuple):
    """Limits at which a run ends before its last round; without any it never does.

    Attributes:
      patience: evaluations without a new best accuracy after which a run ends, on validation sets
        where there are some, else on test sets.
      give_up: rounds in a row from which nothing arrives, after which a run ends; None or 0 for no
        number.
    """

    patience: int | None = None
    give_up: int | None = None

    def reason(self, history: History) -> Reason | None:
        """Returns why a run ends here, or None where it goes on."""
        if silent(history, self.give_up):
            return "silence"
        return "patience" if _out_of_patience(history, self.patience) else None


NEVER = Ending()


def silent(history: History, rounds: int | None) -> bool:
    """Returns True once nothing has arrived in so many rounds of a run in a row; one without
    participants is none."""
    arrived = [row["arrived"] for row in history if "arrived" in row and row.get("participants", 1)]
    return bool(rounds) and len(arrived) >= rounds and not any(arrived[-rounds:])


def _out_of_patience(history: History, patience: int | None) -> bool:
    rows = evaluated(history)
    if patience is None or not rows:
        return False
    key = "val_accuracy" if "val_accuracy" in rows[-1] else "accuracy"
    scores = [row[key] for row in rows]
    return len(scores) - 1 - int(np.argmax(scores)) >= patience
