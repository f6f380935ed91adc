"""Detects training that diverges but stays finite.

Signs are losses far above that of guessing, and accuracy that falls back to the untrained one.
"""

import math
from collections.abc import Sequence

from fedjax_ht.check.names import listed_clients
from fedjax_ht.simulation.rows import Row

RAISED, HIGH, HOPELESS = 3.0, 10.0, 100.0
"""Multiples of the cross-entropy of guessing, log C, above which a loss is raised, high, hopeless.

Hopeless losses count as divergence regardless of other signs. Methods add regularisers to the
cross-entropy, which start at 16 log C in FedKTL.
"""
RISEN = 3.0  # a high loss must exceed this multiple of the lowest loss of earlier rounds
SERVER_RISEN = 10.0  # the same for losses of a server, which are not clients' cross-entropies
GAIN, LEFT = 0.2, 0.1
"""The gain in accuracy over the untrained federation that a run must have had, and the remaining
share of it at which it counts as lost."""


class Divergence:
    """Reads the rows of a run in order, and reports each kind of divergence once.

    Args:
      num_classes: number of classes; None compares no losses.
      history: earlier rows of a resumed run, whose notes have been reported.
    """

    def __init__(self, num_classes: int | None, history: Sequence[Row] = ()):
        self.guessing = math.log(num_classes) if num_classes and num_classes > 1 else None
        self.lowest: dict[str, float] = {}  # by name of the loss
        self.best: Row | None = None  # evaluation with the highest accuracy
        self.untrained: float | None = None  # accuracy in row 0
        self.outlying: Row | None = None  # latest row with outlying uploads
        self.noted: set[str] = set()
        for row in history:
            self.notes(row)

    def notes(self, row: Row) -> list[str]:
        """Returns a message for each kind of divergence that no earlier row had."""
        if row.get("far_off"):
            self.outlying = row
        lines = []
        for name in row:
            if name == "loss" or name.endswith("_loss"):
                lines += self._of_loss(name, row)
        lines += self._of_accuracy(row)
        return [line + self._suspects() for line in lines]

    def _suspects(self) -> str:
        """Names the clients of the latest outlying uploads, as a possible cause."""
        row = self.outlying
        if row is None:
            return ""
        clients = listed_clients(int(client) for client, _ in row["far_off"])
        return f"; outlying uploads in round {row['round']} of {clients}"

    def _of_loss(self, name: str, row: Row) -> list[str]:
        """Returns a message if a loss of the clients ("loss") or of the server is too high."""
        loss, lowest = row[name], self.lowest.get(name, math.inf)
        self.lowest[name] = min(lowest, loss)
        if self.guessing is None or name in self.noted:
            return []
        subject, rate = f"the server's {name}", "the server's learning rate or its weights"
        diverges = self._server_diverges(loss, lowest)
        if name == "loss":
            subject, rate = "the clients' loss", "the learning rate"
            diverges = self._clients_diverge(loss, lowest, row)
        if not diverges:
            return []
        self.noted.add(name)
        before = "" if lowest == math.inf else f", after {lowest:.3g} before"
        return [
            f"{subject} is {loss:.3g}{before}, where guessing has {self.guessing:.3g}: training "
            f"is finite but diverges; lower {rate}, or clip gradients"
        ]

    def _clients_diverge(self, loss: float, lowest: float, row: Row) -> bool:
        times = loss / (self.guessing or 1.0)
        has_risen = times > HIGH and loss > RISEN * lowest
        is_stuck = times > RAISED and loss >= lowest and self._is_at_chance(row)
        return has_risen or is_stuck or times > HOPELESS

    def _server_diverges(self, loss: float, lowest: float) -> bool:
        times = loss / (self.guessing or 1.0)
        if lowest == math.inf:  # a first loss has no predecessor
            return times > HOPELESS
        return times > HIGH and loss > SERVER_RISEN * lowest

    def _is_at_chance(self, row: Row) -> bool:
        """Returns whether a row's accuracy, if known, is close to the untrained federation's."""
        accuracy = row.get("accuracy", row.get("accuracy_participants"))
        return accuracy is not None and accuracy < self._chance() + LEFT

    def _chance(self) -> float:
        """Returns the higher accuracy of the untrained federation and of guessing."""
        untrained = self.untrained or 0.0
        if self.guessing is None:
            return untrained
        return max(math.exp(-self.guessing), untrained)

    def _of_accuracy(self, row: Row) -> list[str]:
        """Returns a message if an evaluation has lost the accuracy that training had gained."""
        if "accuracy" not in row:
            return []
        accuracy, best = row["accuracy"], self.best or row
        if self.untrained is None:
            self.untrained = accuracy
        chance = self._chance()
        if self.best is None or accuracy > best["accuracy"]:
            self.best = row
        gained = best["accuracy"] - chance
        is_lost = gained >= GAIN and accuracy <= chance + LEFT * gained
        if not is_lost or "accuracy" in self.noted:
            return []
        self.noted.add("accuracy")
        return [
            f"accuracy is {100 * accuracy:.1f} %, where an untrained federation has "
            f"{100 * chance:.1f} %, after {100 * best['accuracy']:.1f} % in round {best['round']}: "
            "training has diverged; lower the learning rate, or clip gradients"
        ]
