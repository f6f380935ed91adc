"""The result of a table in a sentence."""

import math
from collections.abc import Mapping

from fedjax_ht.lab.report.statistics import best_scores, means_of, paired_difference
from fedjax_ht.simulation.rows import Runs


def headline(histories: Mapping[str, Runs], baseline: str) -> str:
    """States the result of equal rows in a sentence, by the best rounds: the best entry beside the
    baseline, or beside the next best where the baseline is the best; "" where an entry has no
    score."""
    scores = best_scores(histories)
    means = means_of(scores)
    if any(map(math.isnan, means.values())):
        return ""
    if len(means) == 1:
        return reached(histories)
    best, next_best = ranking(histories)[:2]
    beside = baseline if best != baseline else next_best
    lead = paired_difference(scores[best], scores[beside])
    points = f"{lead.interval.mean:.1f}"
    if points == "0.0":
        return f"{best} and {beside} are level at {means[best]:.1f} %."
    by_points = f"by {points} points, in one trial"
    if lead.trials > 1:
        by_points = f"by {points} points on average, in {lead.ahead} of {lead.trials} trials"
    if beside == baseline or len(means) == 2:
        return f"{best} is ahead of {beside} {by_points}."
    return f"{best} is ahead of the others; of the next, {beside}, {by_points}."


def reached(histories: Mapping[str, Runs]) -> str:
    """States the accuracy of an entry alone; "" where it has none."""
    ((label, scores),) = best_scores(histories).items()
    mean = sum(scores) / len(scores)
    if math.isnan(mean):
        return ""
    over = "clients"
    if len(scores) > 1:
        over += f" and {len(scores)} trials"
    return f"{label} reaches {mean:.1f} % in its best round, on average over {over}."


def ranking(histories: Mapping[str, Runs]) -> list[str]:
    """Returns the labels by the mean accuracy over the trials' best rounds, the highest first; of
    equal ones in their order."""
    means = means_of(best_scores(histories))

    def rank(label: str) -> float:
        return math.inf if math.isnan(means[label]) else -means[label]

    return sorted(means, key=rank)


def winner(histories: Mapping[str, Runs]) -> str | None:
    """Returns the entry that is ahead of all others by at least a tenth of a point, as `headline`
    rounds; None where none is."""
    if len(histories) < 2:
        return None
    means = means_of(best_scores(histories))
    best, next_best = ranking(histories)[:2]
    lead = means[best] - means[next_best]
    is_ahead = not math.isnan(lead) and f"{lead:.1f}" != "0.0"
    return best if is_ahead else None
