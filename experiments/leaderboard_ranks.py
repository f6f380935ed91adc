"""Ranks of methods with intervals, gains of clients, and costs until a target, of the leaderboard's
trials."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from experiments.leaderboard_rows import Trial, Trials
from fedjax_ht.experiment.entries import BASELINE
from fedjax_ht.report.gains import Gains, gains_of_run
from fedjax_ht.report.statistics import LEVEL

RESAMPLES = 2_000
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


class Cost(NamedTuple):
    """The mean cost of the trials that reach the target, and their number."""

    bytes: float
    flops: float
    reached: int


class Standing(NamedTuple):
    """A method's row of a setting's table.

    Attributes:
      rank, rank_low, rank_high: by the mean over trials, and the ends of its interval.
      chosen, best, macro_f1: means over trials, as of `Trial`.
      lead, lead_low, lead_high: mean difference to local training, and the ends of its interval.
      ahead: number of trials in which it is above 0.
      gains: over clients, means over trials; None where clients are not known.
      cost: None where it is not known.
      trials: number of trials.
      settings: as of `Trial`.
      public_bytes: mean over trials.
    """

    rank: float
    rank_low: float
    rank_high: float
    chosen: float
    best: float
    macro_f1: float
    lead: float
    lead_low: float
    lead_high: float
    ahead: int
    gains: Gains | None
    cost: Cost | None
    trials: int
    settings: str
    public_bytes: float


def standings(trials: Trials) -> dict[str, Standing]:
    """Computes the rows of a setting's table, best method first.

    Raises:
      ValueError: there is no local training among the methods. One line.
    """
    if BASELINE not in trials:
        raise ValueError(f"there are no trials of {BASELINE}, which all others are compared to")
    methods, baseline = list(trials), trials[BASELINE]
    at = methods.index(BASELINE)
    means = np.array([np.mean([trial.chosen for trial in trials[each]]) for each in methods])
    drawn = resampled_means(trials)
    ranks, drawn_ranks = ranks_of(means), ranks_of(drawn)
    # ranks are whole numbers: the interval's ends are ranks that were drawn
    rank_ends = np.quantile(drawn_ranks, TAILS, axis=0, method="closest_observation")
    lead_ends = np.quantile(drawn - drawn[:, at : at + 1], TAILS, axis=0)
    rows = {}
    for i in np.argsort(-means, kind="stable"):
        of_method = trials[methods[i]]
        leads = [trial.chosen - other.chosen for trial, other in zip(of_method, baseline)]
        rows[methods[i]] = Standing(
            rank=float(ranks[i]),
            rank_low=float(rank_ends[0, i]),
            rank_high=float(rank_ends[1, i]),
            chosen=float(means[i]),
            best=float(np.mean([trial.best for trial in of_method])),
            macro_f1=float(np.mean([trial.macro_f1 for trial in of_method])),
            lead=float(np.mean(leads)),
            lead_low=float(lead_ends[0, i]),
            lead_high=float(lead_ends[1, i]),
            ahead=sum(lead > 0 for lead in leads),
            gains=gains_over(of_method, baseline),
            cost=cost_of(of_method, baseline),
            trials=len(of_method),
            settings=of_method[0].settings,
            public_bytes=float(np.mean([trial.public_bytes for trial in of_method])),
        )
    return rows


def ranks_of(means: np.ndarray) -> np.ndarray:
    """Ranks [..., methods] along the last axis; 1 is the highest, equal ones share the mean of
    their ranks."""
    higher = np.sum(means[..., None, :] > means[..., None], -1)
    equal = np.sum(means[..., None, :] == means[..., None], -1)
    return higher + (equal + 1) / 2


def resampled_means(trials: Trials) -> np.ndarray:
    """Draws mean accuracies of methods, float [RESAMPLES, methods], by a bootstrap in two stages:
    trials, and in each of them clients, where clients are known. All methods have the same draws,
    which are always the same ones."""
    accuracies = np.array([[clients_of(trial) for trial in each] for each in trials.values()])
    _, num_trials, num_clients = accuracies.shape
    rng = np.random.default_rng(0)
    means = []
    for _ in range(RESAMPLES):
        which = rng.integers(num_trials, size=num_trials)
        clients = rng.integers(num_clients, size=(num_trials, num_clients))
        # [methods, trials, clients]: clients are drawn anew in each drawn trial
        means.append(accuracies[:, which[:, None], clients].mean((1, 2)))
    return np.array(means)


def clients_of(trial: Trial) -> np.ndarray:
    """Returns the accuracy of each client; of all together where clients are not known."""
    if not trial.samples:
        return np.array([trial.chosen])
    return np.array(trial.correct) / np.array(trial.samples)


def gains_over(trials: list[Trial], baseline: list[Trial]) -> Gains | None:
    """Computes the gains of single clients over local training of the same seed and split, means
    over trials; None where clients are not known, and of local training itself."""
    if trials is baseline or not all(trial.samples for trial in (*trials, *baseline)):
        return None
    gains = []
    for trial, other in zip(trials, baseline):
        samples = np.array(trial.samples)
        gains.append(gains_of_run(clients_of(trial), clients_of(other), samples))
    return Gains(*np.mean(gains, axis=0).tolist())


def cost_of(trials: list[Trial], baseline: list[Trial]) -> Cost | None:
    """Computes the cost until the accuracy that local training has, in the round that validation
    chooses for it, in the same trial; None where costs are not known."""
    costs = []
    for trial, other in zip(trials, baseline):
        if not trial.evaluations:
            return None
        for row in trial.evaluations:
            if row.accuracy >= other.chosen:
                costs.append((row.bytes, row.flops))
                break
    if not costs:
        return Cost(np.nan, np.nan, 0)
    sent, computed = np.mean(costs, axis=0).tolist()
    return Cost(sent, computed, len(costs))


def share_beaten(rank: float, methods: int) -> float:
    """Returns the share of the other methods that a rank is ahead of."""
    return (methods - rank) / (methods - 1)


def overall(settings: Mapping[str, Mapping[str, Standing]]) -> dict[str, float]:
    """Returns the mean share of other methods that each method is ahead of, over the settings where
    it was run, best method first."""
    shares: dict[str, list[float]] = {}
    for rows in settings.values():
        for method, row in rows.items():
            shares.setdefault(method, []).append(share_beaten(row.rank, len(rows)))
    means = {method: float(np.mean(values)) for method, values in shares.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1]))
