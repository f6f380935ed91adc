"""One round, whatever carries its messages: the one place that knows its order.

    draw participants; send downlinks, train, send uplinks -> deliver the uploads -> serve -> report

The first step is an exchange, made by a transport, of which there are three: `compiled` (buckets of
clients in one program on a mesh), `stepped` (one client and one stage at a time, to find a fault)
and, in a deployment, `deploy.rounds` (clients that are elsewhere). It ends with `uploads.Answers`,
whatever carried them. Attacks, noise and defences are part of the method that all transports run,
see `trust.hardening`.
"""

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.trees import PyTree
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from fedjax_ht.simulation.report import RoundReport, round_report
from fedjax_ht.simulation.serving import ServerResult
from fedjax_ht.simulation.stages import Seconds, stage
from fedjax_ht.simulation.state import SimulationState
from fedjax_ht.simulation.uploads import Answers, Delivery, Devices, deliver


class Cohort(NamedTuple):
    """A round's participants.

    Attributes:
      ids: int64 [m], ascending.
      dropped: bool [m], participants whose uplink gets lost after training.
      reachable: bool [num_clients], clients that can be reached in the round.
    """

    ids: np.ndarray
    dropped: np.ndarray
    reachable: np.ndarray


class Round(NamedTuple):
    """The parts that every round of a run is made of.

    Attributes:
      options: the options of the federation.
      exchange: the transport: (state, whether to score participants as training left them, seconds
        of stages or None) -> (the state with the clients' states after the round, {bucket:
        Answers}).
      serve: (state, Delivery) -> (server state, ServerResult).
      devices: the clients' simulated devices.
      attackers: bool [num_clients].
      epsilon: (rounds done) -> epsilon or None, see `spending`.
      public_bytes: bytes of the public set; None for methods that read none.
      frozen_bytes: bytes of the frozen weights of each client's model, int64 [num_clients]; None
        where no model has any.
    """

    options: SimulationOptions
    exchange: Callable[
        [SimulationState, bool, Seconds | None], tuple[SimulationState, dict[str, Answers]]
    ]
    serve: Callable[[SimulationState, Delivery], tuple[PyTree, ServerResult]]
    devices: Devices
    attackers: np.ndarray
    epsilon: Callable[[int], float | None]
    public_bytes: int | None = None
    frozen_bytes: np.ndarray | None = None


def draw_cohort(options: SimulationOptions, num_clients: int, state: SimulationState) -> Cohort:
    """Draws a round's participants: a pure function of seed and round, so that a resumed run draws
    the same."""
    reachable = free = options.reachable(num_clients, state.round)
    if state.waiting is not None:
        # A client takes part in no round while its upload of an earlier one is under way.
        free = reachable & ~state.waiting.unfinished
    ids, dropped = choose_participants(options, num_clients, state.round, free)
    return Cohort(ids, dropped, reachable)


def run_round(
    round: Round, state: SimulationState, score: bool = True
) -> tuple[SimulationState, RoundReport]:
    """Runs one round; buffers of the old state may be donated.

    Args:
      round: the parts of the round.
      state: the state before the round.
      score: True scores the participants as training left them.

    Returns:
      The state after the round, and its report.
    """
    seconds: Seconds | None = None
    if round.options.time_stages:
        seconds = {}
    start = time.perf_counter()
    new, answers = round.exchange(state, score, seconds)
    # The answers come back without uplinks, which are then held once.
    sent_rounds = state.round, state.last_round
    delivery, answers, waiting = deliver(round.devices, state.waiting, answers, sent_rounds)
    serve = functools.partial(round.serve, state, delivery)
    server, result = stage(seconds, "serve", serve)
    report = round_report(
        answers, result, round.devices, state=state, attackers=round.attackers
    )._replace(epsilon=round.epsilon(state.round + 1))
    new = new._replace(
        round=state.round + 1,
        server=server,
        last_round=_reached(state, answers),
        waiting=waiting,
    )
    newcomers = report.participants[state.last_round[report.participants] < 0]
    if round.public_bytes is not None:
        report = report._replace(public_bytes=len(newcomers) * round.public_bytes)
    if round.frozen_bytes is not None:
        report = report._replace(frozen_bytes=int(round.frozen_bytes[newcomers].sum()))
    if seconds is not None:
        seconds["host"] = time.perf_counter() - start - sum(seconds.values())
        report = report._replace(stages=seconds)
    return new, report


def _reached(state: SimulationState, answers: dict[str, Answers]) -> np.ndarray:
    """`SimulationState.last_round` after the round."""
    last_round = state.last_round.copy()
    for part in answers.values():
        last_round[part.ids] = state.round
    return last_round
