"""Selection of a round's participants by what clients reported in earlier rounds.

    by_samples         m distinct clients, each drawn with a chance by its number of samples
    power_of_choice    of d candidates that are drawn by samples, the m with the largest loss, by
                       their last training (rpow-d of Cho et al., AISTATS 2022)

A selection sees single clients' losses, so it stands beside neither privacy nor secure sums.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedjax_ht.check.options import Within, checked


class Reports(NamedTuple):
    """The clients' reports that the server has between two rounds.

    Attributes:
      samples: number of training samples.
      loss: mean loss of the client's last training that reached the server; infinity before the
        first.
    """

    samples: Int[np.ndarray, " clients"]
    loss: Float[np.ndarray, " clients"]


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
        return _drawn(generator, reports.samples, free, participants)

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
        drawn = _drawn(generator, reports.samples, free, int(np.ceil(candidates * participants)))
        return drawn[np.argsort(-reports.loss[drawn], kind="stable")][:participants]

    return Selection("power_of_choice", choose)


SELECTIONS: dict[str, Callable[..., Selection]] = {
    "by_samples": by_samples,
    "power_of_choice": power_of_choice,
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


def _drawn(
    generator: np.random.Generator,
    samples: np.ndarray,
    free: np.ndarray,
    number: int,
) -> np.ndarray:
    weights = samples[free].astype(np.float64)
    number = min(number, int(np.count_nonzero(weights)))
    if not number:
        return free[:0]
    return generator.choice(free, number, replace=False, p=weights / weights.sum())
