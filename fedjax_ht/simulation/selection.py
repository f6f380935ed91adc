"""Selection of a round's participants by what clients reported in earlier rounds.

    by_samples         m distinct clients, each drawn with a chance by its number of samples
    power_of_choice    of d candidates that are drawn by samples, the m with the largest loss, by
                       their last training (rpow-d of Cho et al., AISTATS 2022)
    oort               those with the largest loss times samples and those not heard of for long,
                       beside new ones (Lai et al., OSDI 2021)

A selection sees single clients' losses, so it stands beside neither privacy nor secure sums.
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
        first.
      last_round: the last round in which the server reached each; -1 for never. Given to a
        selection, and not kept here.
      round: the number of the round, from 0; likewise.
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
        distinct ids of these, at most that many. A pure function, so that a resumed run chooses the
        same; the generator is of the run's seed and the round.

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

    Where the server's mean is uniform, each sample then has about the same say.
    """

    def choose(generator, reports, free, participants):
        return free[_drawn(generator, reports.samples[free], participants)]

    return Selection("by_samples", choose)


@checked
def power_of_choice(candidates: Annotated[float, Within(least=1)] = 2.0) -> Selection:
    """Makes the selection of those with the largest loss among candidates.

    Candidates are drawn by samples, so the paper's server takes the uniform mean
    (weighting="uniform"). Clients that have not reported yet come first. The loss is that of a
    client's last training, the paper's form without further messages.

    Args:
      candidates: d / m, candidates of a participant. 1 is `by_samples`; as many as clients, greedy.
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

    A share of the participants are clients without a report, drawn by their samples. The others are
    drawn by utility among those that have at least `cut_off` times the utility of the last that
    would be taken in its order. The utility is of the mean loss, which every method reports, and
    not of the root of its mean square. Durations play no part; `devices_profile.deadline` does that
    for itself.

    Args:
      exploration: share of clients without a report in round 0.
      decay: factor on this share in each round.
      least: the share below which it does not fall.
      cut_off: the utility that is enough, as a share.
      clip: quantile of samples times loss above which all count the same.
    """

    def choose(generator, reports, free, participants):
        assert reports.last_round is not None and reports.round is not None  # as a round gives them
        free = free[reports.samples[free] > 0]
        known = np.isfinite(reports.loss[free])
        old, new = free[known], free[~known]
        share = max(exploration * decay**reports.round, least)
        explored = min(len(new), max(participants - len(old), int(share * participants)))
        exploited = min(participants - explored, len(old))
        scores = utilities(reports, clip)[old]
        if exploited:
            enough = scores >= cut_off * np.sort(scores)[-exploited]
            old, scores = old[enough], scores[enough]
        old = old[_drawn(generator, scores, exploited)]
        return np.concatenate([old, new[_drawn(generator, reports.samples[new], explored)]])

    return Selection("oort", choose)


def utilities(reports: Reports, clip: float) -> np.ndarray:
    """Computes Oort's statistical utility of each client: samples times loss, clipped and scaled to
    [0, 1] as in FedScale, and sqrt(0.1 ln R / L) for one that was last reached in round L of R;
    float64 [num_clients], NaN without a report (Eq. 2, and Algorithm 1, line 14)."""
    known = np.isfinite(reports.loss)
    utility = reports.samples * np.where(known, reports.loss, np.nan)
    if not known.any():
        return utility
    ordered = np.sort(utility[known])
    most = ordered[min(int(clip * len(ordered)), len(ordered) - 1)]
    # the least keeps a thousandth of itself, so that it may be drawn
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
    """Returns the reports after a round, with the losses of participants that are finite."""
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
    """Returns the participants of a selection; arguments as of `Selection.choose`.

    Raises:
      ValueError: they are not distinct ids of `free`, or too many. One line.
    """
    ids = np.asarray(selection.choose(generator, reports, free, participants))
    distinct = np.unique(ids)
    if len(distinct) != len(ids) or len(ids) > participants or not np.isin(ids, free).all():
        raise ValueError(
            f"the selection {selection.name} chose {ids.tolist()}; it must choose at most "
            f"{participants} distinct clients of those that can take part"
        )
    return ids


def _drawn(generator: np.random.Generator, weights: np.ndarray, number: int) -> np.ndarray:
    """Draws so many places without replacement by weight; none of weight 0."""
    weights = np.asarray(weights, np.float64)
    number = min(number, int(np.count_nonzero(weights)))
    if not number:
        return np.zeros(0, np.int64)
    return generator.choice(len(weights), number, replace=False, p=weights / weights.sum())
