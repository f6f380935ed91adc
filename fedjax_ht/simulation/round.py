"""One round, whatever carries its messages: the one place that knows its order.

    draw participants -> send downlinks, train, send uplinks -> deadline and late uploads
    -> serve -> report

The second step is an exchange, made by a transport, of which there are three: `compiled` (buckets
of clients in one program on a mesh), `stepped` (one client and one stage at a time, to find a
fault) and, in a deployment, `deploy.rounds` (clients that are elsewhere). Attacks, noise and
defences are part of the method that all of them run, see `trust.hardening`.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.mesh import fetch
from fedjax_ht.core.method import PyTree, Received
from fedjax_ht.simulation.answers import Answers
from fedjax_ht.simulation.clock import Devices, on_time, simulated
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from fedjax_ht.simulation.report import RoundReport, round_report
from fedjax_ht.simulation.roster import take_trial
from fedjax_ht.simulation.serving import ServerResult
from fedjax_ht.simulation.stages import Seconds, stage
from fedjax_ht.simulation.state import SimulationState
from fedjax_ht.simulation.trials import of_trial
from fedjax_ht.simulation.waiting import after_round, with_earlier


class Cohort(NamedTuple):
    """A round's participants in one trial.

    Attributes:
      ids: int64 [m], ascending.
      dropped: bool [m], whose uplink gets lost after training.
      reachable: bool [num_clients], clients that can be reached in the round.
    """

    ids: np.ndarray
    dropped: np.ndarray
    reachable: np.ndarray


def unchanged(report: RoundReport) -> RoundReport:
    """Returns the report itself: the transport knows nothing more."""
    return report


class Exchange(NamedTuple):
    """The result of an exchange of messages.

    Attributes:
      cohorts: one a trial.
      answers: bucket name -> its participants' answers.
      clients, changed: see `SimulationState`, after the round.
      settings: of the server's method in this round, stacked over trials, where they are drawn
        anew, such as the words of a server's noise; None where they are the run's.
      complete: adds to a report what only the transport knows.
    """

    cohorts: Sequence[Cohort]
    answers: dict[str, Answers]
    clients: dict[str, PyTree]
    changed: dict[str, np.ndarray]
    settings: PyTree | None = None
    complete: Callable[[RoundReport], RoundReport] = unchanged


class Round(NamedTuple):
    """The parts that every round of a run is made of.

    Attributes:
      options: one a trial, alike but for the seed.
      exchange: the transport: (state, whether to score participants as training left them, seconds
        of stages or None) -> Exchange.
      serve: (state, {bucket: Received}, {bucket: rows}, `Exchange.settings`) -> (server states,
        ServerResult), both stacked over trials; `rows` as of `Answers`.
      devices: the clients' simulated devices.
      attackers: bool [num_clients].
      epsilons: (rounds done) -> epsilon of each trial or None, see `spending`.
    """

    options: Sequence[SimulationOptions]
    exchange: Callable[[SimulationState, bool, Seconds | None], Exchange]
    serve: Callable[
        [SimulationState, dict[str, Received], dict[str, np.ndarray], PyTree | None],
        tuple[PyTree, ServerResult],
    ]
    devices: Devices
    attackers: np.ndarray
    epsilons: Callable[[int], list[float | None]]


def draw_cohort(
    options: SimulationOptions, num_clients: int, state: SimulationState, trial: int = 0
) -> Cohort:
    """Draws a trial's participants: a pure function of seed and round, so that a resumed run draws
    the same."""
    reachable = free = options.reachable(num_clients, state.round)
    if state.waiting is not None:
        # A client takes part in no round while its upload of an earlier one is under way.
        free = reachable & ~state.waiting.uploads.unfinished[trial]
    ids, dropped = choose_participants(options, num_clients, state.round, free)
    return Cohort(ids, dropped, reachable)


def draw_cohorts(
    options: Sequence[SimulationOptions], num_clients: int, state: SimulationState
) -> list[Cohort]:
    """Draws the participants of every trial."""
    return [draw_cohort(of_one, num_clients, state, trial) for trial, of_one in enumerate(options)]


def run_round(
    round: Round, state: SimulationState, score: bool = True
) -> tuple[SimulationState, list[RoundReport]]:
    """Runs one round of all trials; buffers of the old state may be donated.

    Args:
      round: what it is made of.
      state: before the round.
      score: also score the participants as training left them.

    Returns:
      The state after the round, and a report of each trial.
    """
    seconds: Seconds | None = None
    if round.options[0].time_stages:
        seconds = {}
    start = time.perf_counter()
    exchange = round.exchange(state, score, seconds)
    answers = on_time(round.devices, exchange.answers)
    received, rows = with_earlier(round.devices, state.waiting, answers)
    serve = functools.partial(round.serve, state, received, rows, exchange.settings)
    servers, result = stage(seconds, "serve", serve)
    reports = _reports(round, state, exchange.cohorts, answers, result)
    new = SimulationState(
        round=state.round + 1,
        servers=servers,
        clients=exchange.clients,
        last_round=_reached(state, exchange.cohorts),
        changed=exchange.changed,
        waiting=after_round(round.devices, state.waiting, answers),
    )
    spent = round.epsilons(new.round)
    if seconds is not None:
        seconds["host"] = time.perf_counter() - start - sum(seconds.values())
    completed = []
    for report, epsilon in zip(reports, spent):
        completed.append(exchange.complete(report._replace(epsilon=epsilon, stages=seconds)))
    return new, completed


def _reached(state: SimulationState, cohorts: Sequence[Cohort]) -> np.ndarray:
    """`SimulationState.last_round` after the round."""
    last_round = state.last_round.copy()
    for reached, cohort in zip(last_round, cohorts):
        reached[cohort.ids] = state.round
    return last_round


def _reports(
    round: Round,
    state: SimulationState,
    cohorts: Sequence[Cohort],
    answers: dict[str, Answers],
    result: ServerResult,
) -> list[RoundReport]:
    """Makes one report a trial; `state` stood before the round."""
    # The one transfer of a round to the host, but for that of `clock.on_time`.
    results = {name: (part.result, part.scores) for name, part in answers.items()}
    results, result = fetch((results, result))
    idle, steps = np.sum([part.idle for part in answers.values()], axis=0)
    wasted = 0.0
    if steps:
        wasted = float(idle / steps)
    profile = round.devices.profile
    reports = []
    for trial, cohort in enumerate(cohorts):
        buckets, times = [], []
        for name, part in answers.items():
            # Participants stand in both places in one order, that of `roster.by_device`.
            ids, of_clients = take_trial(part.places, trial, results[name][0])
            scores = take_trial(part.score_places, trial, results[name][1])[1]
            buckets.append((ids, (of_clients, scores)))
            arrived = results[name][0].arrived
            times.append(take_trial(part.places, trial, (part.times, arrived)))
        earlier = cost = None
        if state.waiting is not None:
            earlier = of_trial(state.waiting.uploads, trial)
            cost = earlier.arriving_cost(profile)
        report = round_report(buckets, of_trial(result, trial), wasted, round.attackers, cost)
        if profile is not None:
            report = report._replace(absent=int(np.sum(~cohort.reachable)))
            if profile.rates():
                report = report._replace(**simulated(profile, times, earlier))
        reports.append(report)
    return reports
