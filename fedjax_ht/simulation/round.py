"""One round for every transport; only this module knows the order of its steps.

    draw participants; send downlinks, train, send uplinks -> deliver the uploads -> serve -> report

The first step, up to the uplinks, is an exchange by one of three transports: `compiled` (buckets of
clients in one program on a mesh), `stepped` (one client and one stage at a time, to find a fault)
and, in a deployment, `deploy.rounds` (remote clients). Each returns `serving.Answers`. Attacks,
noise and defences are part of the method that all transports run, see `trust.privacy`. Other
enabled features join the round when it is built: another `deliver`, and `additions` to the report.
"""

import functools
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from fedjax_ht.core.bucket import frozen_form, frozen_of
from fedjax_ht.core.contract import public_bytes
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from fedjax_ht.simulation.report import RoundReport, round_report
from fedjax_ht.simulation.selection import with_losses
from fedjax_ht.simulation.serving import Answers, Delivery, ServerResult
from fedjax_ht.simulation.state import SimulationState, Waiting

T = TypeVar("T")
Addition = Callable[[SimulationState, dict[str, Answers], RoundReport], RoundReport]
"""(state before the round, {bucket: Answers}, report) -> the report with more fields."""


class Stage(Protocol):
    """(name, call) -> the call's result; makes the calls of a round's stages."""

    def __call__(self, name: str, call: Callable[[], T], /) -> T: ...


class Cohort(NamedTuple):
    """A round's participants.

    Attributes:
      ids: int64 [m], ascending.
      dropped: bool [m], participants whose uplink is lost after training.
      reachable: bool [num_clients], clients that can be reached in the round.
    """

    ids: np.ndarray
    dropped: np.ndarray
    reachable: np.ndarray


class Round(NamedTuple):
    """The parts of every round of a run.

    Attributes:
      options: the options of the federation.
      exchange: the transport: (state, whether to score participants after training, Stage) -> (the
        state with the clients' states after the round, {bucket: Answers}).
      serve: (state, Delivery) -> (server state, ServerResult).
      deliver: (state, {bucket: Answers}) -> (Delivery, the answers without uplinks, the uploads
        that arrive in a later round or None), see `serving.deliver`.
      additions: one per enabled feature.
    """

    options: SimulationOptions
    exchange: Callable[[SimulationState, bool, Stage], tuple[SimulationState, dict[str, Answers]]]
    serve: Callable[[SimulationState, Delivery], tuple[PyTree, ServerResult]]
    deliver: Callable[
        [SimulationState, dict[str, Answers]],
        tuple[Delivery, dict[str, Answers], Waiting | None],
    ]
    additions: tuple[Addition, ...] = ()


def draw_cohort(options: SimulationOptions, new: np.ndarray, state: SimulationState) -> Cohort:
    """Draws a round's participants, without the clients `new`, bool [num_clients].

    A pure function of seed and state, so that a resumed run draws the same.
    """
    num_clients = len(new)
    reachable = options.reachable(num_clients, state.round)
    free = reachable & ~new
    if state.waiting is not None:
        # A client takes part in no round while an earlier upload is on its way.
        free &= ~state.waiting.unfinished
    reports = state.reports
    if reports is not None:
        reports = reports._replace(last_round=state.last_round, round=state.round)
    ids, dropped = choose_participants(options, num_clients, state.round, free, reports)
    return Cohort(ids, dropped, reachable)


def run_round(
    round: Round, state: SimulationState, score: bool = True
) -> tuple[SimulationState, RoundReport]:
    """Runs one round; buffers of the old state may be donated.

    Args:
      round: the parts of the round.
      state: the state before the round.
      score: True scores the participants after training.

    Returns:
      The state after the round, and its report.
    """
    seconds: dict[str, float] = {}
    stage: Stage = _called
    if round.options.time_stages:
        stage = functools.partial(_timed, seconds)
    start = time.perf_counter()
    new, answers = round.exchange(state, score, stage)
    # The returned answers have no uplinks, so that memory holds these once.
    delivery, answers, waiting = round.deliver(state, answers)
    server, result = stage("serve", functools.partial(round.serve, state, delivery))
    report = round_report(answers, result)
    for add in round.additions:
        report = add(state, answers, report)
    last_round = state.last_round.copy()
    last_round[report.participants] = state.round
    new = new._replace(round=state.round + 1, server=server, last_round=last_round, waiting=waiting)
    if state.reports is not None:
        reports = with_losses(state.reports, report.participants, report.losses)
        if state.waiting is not None:
            late = np.array(report.arrived_late, int)
            reports = with_losses(reports, late, state.waiting.losses[late])
        new = new._replace(reports=reports)
    if round.options.time_stages:
        seconds["host"] = time.perf_counter() - start - sum(seconds.values())
        report = report._replace(stages=seconds)
    return new, report


def _called(name: str, call: Callable[[], T]) -> T:
    return call()


def _timed(seconds: dict[str, float], name: str, call: Callable[[], T]) -> T:
    """Calls, waits for the result, and adds the elapsed seconds to `seconds[name]`.

    A round takes longer if its stages wait for each other.
    """
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
    return result


def count_downloads(federation: Federation, samples: Data | None) -> tuple[Addition, ...]:
    """Returns the additions that report a newcomer's downloads: public set and frozen weights.

    Args:
      federation: the models, and the size of the public set.
      samples: samples that include the public ones; None without a public set.
    """
    sizes = {}
    if federation.public is not None:
        sizes["public_bytes"] = np.full(
            federation.num_clients, public_bytes(federation.public, samples)
        )
    if any(bucket.freezes for bucket in federation.buckets):
        forms = [frozen_of(bucket)[0] or frozen_form(bucket) for bucket in federation.buckets]
        of_bucket = np.array(list(map(bytes_of, forms)), np.int64)
        sizes["frozen_bytes"] = of_bucket[np.array(federation.assignment)]
    return tuple(functools.partial(_add_newcomers_bytes, *item) for item in sizes.items())


def bytes_of(form: PyTree) -> int:
    """Returns the bytes of arrays, or of arrays of this form (`jax.ShapeDtypeStruct`s)."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(form))


def _add_newcomers_bytes(
    field: str,
    sizes: np.ndarray,
    state: SimulationState,
    answers: dict[str, Answers],
    report: RoundReport,
) -> RoundReport:
    """Adds the bytes of one-time downloads to a report, as the field `field`.

    `sizes` has each client's bytes, int64 [num_clients]. They count for clients that the server
    reached for the first time.
    """
    newcomers = report.participants[state.last_round[report.participants] < 0]
    return report._replace(**{field: int(sizes[newcomers].sum())})
