"""The result of a search, as a table, and its budget in words."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.runs.search import rounds_trained, rungs
from fedjax_ht.simulation.rows import Runs


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes:
      best: the label of the chosen point.
      scores: after so many rounds -> label -> its best validation accuracy till then, mean over
        trials; NaN where a client or the server stopped being finite: such a point is not chosen.
    """

    best: str
    scores: dict[int, dict[str, float]]


def divergence(runs: Runs) -> str | None:
    """Returns where a client or the server first stopped being finite; None where all stayed so."""
    for number, history in enumerate(runs):
        for row in history:
            if clients := row.get("not_finite"):
                return f"clients {clients} not finite in round {row['round']} of trial {number}"
            if not row.get("server_finite", True):
                return f"the server not finite in round {row['round']} of trial {number}"
    return None


def table(result: SearchResult) -> str:
    """Returns a Markdown table of every point's validation accuracy by rounds, the best of the
    longest first."""
    rounds = sorted(result.scores)

    def rank(label: str) -> list[float]:
        return [-result.scores[r].get(label, -1) for r in reversed(rounds)]

    rows = [
        ["entry", *(f"up to round {r}, validation %" for r in rounds)],
        ["---"] * (1 + len(rounds)),
    ]
    for label in sorted(result.scores[rounds[0]], key=rank):
        rows.append([label, *(_cell(result.scores[r], label) for r in rounds)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(scores: Mapping[str, float], label: str) -> str:
    if label not in scores:
        return ""
    if math.isnan(scores[label]):
        return "not finite"
    return f"{100 * scores[label]:.2f}"


def budget(config: Config, points: int, halvings: int) -> str:
    """Returns the cost of a search, in words."""
    trained = rounds_trained(points, rungs(config.rounds, halvings))
    splits = "1 split" if config.trials == 1 else f"{config.trials} splits"
    return (
        f"{points} settings, {trained} rounds of training, by validation on {splits} of seed "
        f"{config.partition.seed}, seed {config.seed}"
    )
