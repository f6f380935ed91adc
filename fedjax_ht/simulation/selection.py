"""Selection of a round's participants by clients' reports from earlier rounds.

    by_samples         m distinct clients, drawn with weights by their number of samples
    power_of_choice    of d candidates drawn by samples, the m with the largest loss in their last
                       training (rpow-d of Cho et al., AISTATS 2022)
    oort               clients with a large loss times samples or not reached for long, and new
                       ones (Lai et al., OSDI 2021)

A selection sees single clients' losses, so it cannot be combined with privacy or secure sums.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedjax_ht.check.options import Part, Share, Within, checked


class Reports(NamedTuple):
    """The clients' reports that the server has between two rounds.

    Attributes:
      samples: number of training samples.
      loss: mean loss of the client's last training that reached the server; infinity before the
        first, and always for methods without training (AFL, FedCGS, FedPFT).
      last_round: the last round in which the server reached each; -1 for never. Set only when
        passed to a selection.
      round: the round, from 0; set likewise.
    """

    samples: Int[np.ndarray, " clients"]
    loss: Float[np.ndarray, " clients"]
    last_round: Int[np.ndarray, " clients"] | None = None
    round: int | None = None


class Selection(NamedTuple):
    """A choice of participants.

    Attributes:
      name: the selection's name in messages.
      choose: (generator, Reports, ids that can take part, ascending, number of participants) ->
        distinct ids of these, at most that many. It must be pure, so that a resumed run chooses the
        same; the generator is seeded by the run's seed and the round.

    Example:
      >>> def largest_loss(generator, reports, free, participants):
      ...     return free[np.argsort(-reports.loss[free], kind="stable")][:participants]
      >>> select = fl.Selection("largest_loss", largest_loss)
      >>> options = fl.SimulationOptions(participation=0.1, select=select)
    """

    name: str
    choose: Callable[[np.random.Generator, Reports, np.ndarray, int], np.ndarray]


def by_samples() -> Selection:
    """Makes the selection that draws clients by their numbers of samples, without replacement.

    If the server's mean is uniform, each sample then has about the same weight.
    """

    def choose(generator, reports, free, participants):
        return free[_drawn(generator, reports.samples[free], participants)]

    return Selection("by_samples", choose)


@checked
def power_of_choice(candidates: Annotated[float, Within(least=1)] = 2.0) -> Selection:
    """Makes the selection of the candidates with the largest loss.

    Candidates are drawn by samples, so the paper's server takes the uniform mean
    (weighting="uniform"). Clients without a report come first. The loss is that of a client's last
    training, the paper's variant without additional messages.

    Args:
      candidates: d / m, candidates per participant. 1 is `by_samples`; large enough to include all
        clients, the choice is greedy.
    """

    def choose(generator, reports, free, participants):
        number = int(np.ceil(candidates * participants))
        drawn = free[_drawn(generator, reports.samples[free], number)]
        return drawn[np.argsort(-reports.loss[drawn], kind="stable")][:participants]

    return Selection("power_of_choice", choose)


@checked
def oort(
    exploration: Share = 0.9,
    decay: Share = 0.98,
    least: Share = 0.2,
    cut_off: Share = 0.95,
    clip: Part = 0.95,
) -> Selection:
    """Makes Oort's selection by statistical utility, see `utilities`.

    A share of the participants, at least one, are clients without a report, drawn by their samples.
    The others are drawn by utility, among those with at least `cut_off` times the utility of the
    last client in a greedy choice. The utility uses the mean loss, not the root of the mean squared
    loss. Durations are ignored; `devices_profile.deadline` covers them.

    Args:
      exploration: share of clients without a report in round 0.
      decay: factor on this share in each round.
      least: lower bound of this share.
      cut_off: sufficient utility, as a share of the greedy choice's lowest one.
      clip: quantile at which samples times loss are clipped.
    """

    def choose(generator, reports, free, participants):
        assert reports.last_round is not None and reports.round is not None  # set by the round
        free = free[reports.samples[free] > 0]
        known = np.isfinite(reports.loss[free])
        old, new = free[known], free[~known]
        share = max(exploration * decay**reports.round, least)
        # at least one: with few participants, rounding down would end exploration
        explored = max(int(share * participants), int(share > 0))
        explored = min(len(new), max(participants - len(old), explored))
        exploited = min(participants - explored, len(old))
        scores = utilities(reports, clip)[old]
        if exploited:
            enough = scores >= cut_off * np.sort(scores)[-exploited]
            old, scores = old[enough], scores[enough]
        old = old[_drawn(generator, scores, exploited)]
        return np.concatenate([old, new[_drawn(generator, reports.samples[new], explored)]])

    return Selection("oort", choose)


def utilities(reports: Reports, clip: float) -> np.ndarray:
    """Computes Oort's statistical utility of each client, float64 [num_clients].

    It is samples times loss, clipped and scaled to [0, 1] as in FedScale, plus sqrt(0.1 ln R / L)
    for a client last reached in round L of R (Eq. 2, and Algorithm 1, line 14). It is NaN without a
    report.
    """
    known = np.isfinite(reports.loss)
    utility = reports.samples * np.where(known, reports.loss, np.nan)
    if not known.any():
        return utility
    ordered = np.sort(utility[known])
    most = ordered[min(int(clip * len(ordered)), len(ordered) - 1)]
    # the lowest keeps a thousandth of its value, so that it may be drawn
    least = 0.999 * ordered[0]
    scaled = (np.minimum(utility, most) - least) / max(ordered[-1] - least, 1e-4)
    assert reports.last_round is not None and reports.round is not None
    waited = np.log(max(reports.round, 1)) / np.maximum(reports.last_round, 1)
    return scaled + np.sqrt(0.1 * waited)


SELECTIONS: dict[str, Callable[..., Selection]] = {
    "by_samples": by_samples,
    "power_of_choice": power_of_choice,
    "oort": oort,
}
"""Name in a config -> factory."""


def first_reports(samples: Int[np.ndarray, " clients"]) -> Reports:
    """Returns the reports before the first round."""
    return Reports(samples.astype(np.int64), np.full(len(samples), np.inf))


def with_losses(reports: Reports, participants: np.ndarray, losses: np.ndarray) -> Reports:
    """Returns the reports after a round, updated with the participants' finite losses."""
    loss, known = reports.loss.copy(), np.isfinite(losses)
    loss[participants[known]] = losses[known]
    return reports._replace(loss=loss)


def chosen(
    selection: Selection,
    generator: np.random.Generator,
    reports: Reports,
    free: np.ndarray,
    participants: int,
) -> np.ndarray:
    """Returns the participants of a selection; arguments as for `Selection.choose`.

    Raises:
      ValueError: they are not distinct ids of `free`, or too many. One line.
    """
    ids = np.asarray(selection.choose(generator, reports, free, participants))
    is_list = ids.ndim == 1 and ids.dtype != bool
    distinct = is_list and len(np.unique(ids)) == len(ids)
    if not distinct or len(ids) > participants or not np.isin(ids, free).all():
        raise ValueError(
            f"the selection {selection.name} chose {ids.tolist()}; it must choose an array of at "
            f"most {participants} distinct clients of those that can take part"
        )
    return ids


def _drawn(generator: np.random.Generator, weights: np.ndarray, number: int) -> np.ndarray:
    """Draws `number` indices without replacement by weight, never those with weight 0."""
    weights = np.asarray(weights, np.float64)
    number = min(number, int(np.count_nonzero(weights)))
    if not number:
        return np.zeros(0, np.int64)
    return generator.choice(len(weights), number, replace=False, p=weights / weights.sum())
