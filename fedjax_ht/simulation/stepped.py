"""The transport that finds faults: the same calls, one client and one stage at a time."""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import ClientInfo, Turn
from fedjax_ht.core.round import Call, ClientResult, call_directly, client_step, send, view
from fedjax_ht.core.trees import HostNumber, PyTree, join_trees, take, zeros_of
from fedjax_ht.core.wire import all_finite, is_masked
from fedjax_ht.simulation import compiled
from fedjax_ht.simulation.program import Program
from fedjax_ht.simulation.roster import PADDING, padded
from fedjax_ht.simulation.round import Cohort, Stage, draw_cohort, run_round
from fedjax_ht.simulation.serving import Answers, Delivery, ServerResult, picked, server_round
from fedjax_ht.simulation.state import SimulationState


class Fault(NamedTuple):
    """The first non-finite value or exception in a round.

    Attributes:
      stage: "broadcast", "downlink" or "uplink" (the transforms of the wire), "receive",
        "client_update", "encode" or "decode" (the code of the wire), or "server_update".
      where: the path of the first non-finite array in the stage's result, or the exception in
        words.
      bucket, client: the bucket's name and the client's id; None for server_update.
      error: the exception that the stage raised, or None.
    """

    stage: str
    where: str
    bucket: str | None
    client: int | None
    error: Exception | None

    def __str__(self) -> str:
        caller = ""
        if self.bucket is not None:
            caller = f" of client {self.client} in bucket {self.bucket}"
        return f"{self.stage}{caller}: {self.where}"


class _FaultFound(Exception):
    """Carries a fault out of the round."""


def find_fault(program: Program, state: SimulationState, jit: bool = True) -> Fault | None:
    """Runs the next round up to its first non-finite value or exception; the state is unchanged.

    Args:
      program: the parts of the simulation.
      state: the state before the round.
      jit: False runs every operation by itself, so that prints, a debugger and `jax.debug_nans`
        work in a method.

    Returns:
      The fault; None if there is none.
    """
    stepped = compiled.compiled_round(program)._replace(
        exchange=functools.partial(exchange, program), serve=functools.partial(serve, program)
    )
    with contextlib.nullcontext() if jit else jax.disable_jit():
        try:
            run_round(stepped, state, score=False)
        except _FaultFound as fault:
            return fault.args[0]
    return None


class _Stages:
    """Makes the calls of a bucket's clients, or of the server.

    Each stage is compiled once, and the first fault ends the round.
    """

    def __init__(self, bucket: str | None = None, host: bool = False):
        self.bucket, self.host = bucket, host
        self.compiled: dict[str, Callable] = {}

    def of_client(self, client: int | None) -> Call:
        """Returns the function that makes the calls of one client, or of the server for None."""
        return functools.partial(self._call, client)

    def _call(self, client: int | None, stage: str, fn: Callable, *arguments: PyTree) -> PyTree:
        fault = functools.partial(Fault, stage, bucket=self.bucket, client=client)
        run = fn
        if not self.host:
            run = self.compiled.setdefault(stage, jax.jit(fn))
        try:
            out = run(*arguments)
        except Exception as error:
            where = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise _FaultFound(fault(where=where, error=error)) from error
        leaves = jax.tree_util.tree_leaves_with_path(out, is_leaf=is_masked)
        for path, leaf in leaves:
            if not all_finite(leaf):
                where = f"{jax.tree_util.keystr(path)} is not finite".strip()
                raise _FaultFound(fault(where=where, error=None))
        return out


def exchange(
    program: Program, state: SimulationState, score: bool, stage: Stage
) -> tuple[SimulationState, dict[str, Answers]]:
    """Runs the participants one after another; it scores no clients, and no state changes.

    Arguments and results are as for `round.Round.exchange`.
    """
    cohort = draw_cohort(program.options, program.new, state)
    # One transfer to the host for all participants.
    state = state._replace(server=jax.device_get(state.server))
    answers = {}
    for bucket in program.federation.buckets:
        roster = program.clients[bucket.name].roster
        layout, results = roster.rows(cohort.ids), _play_bucket(program, state, bucket, cohort)
        where = np.arange(len(layout))
        if not results:
            # A bucket without participants sends padding, with the form of its first row's result.
            layout, results = np.full(1, PADDING), [_padding(program, state, bucket)]
        info, result = join_trees(jnp.stack, results)
        answers[bucket.name] = Answers(
            ids=roster.members[roster.rows(cohort.ids)],
            padded_rows=padded(where, len(layout)),
            in_order=False,
            info=info,
            results=result,
            scores={},
            score_rows=where,
            idle=np.zeros(2),
        )
    return state, answers


def _play_bucket(
    program: Program, state: SimulationState, bucket: Bucket, cohort: Cohort
) -> list[tuple[ClientInfo, ClientResult]]:
    """Runs a bucket's participants by ascending id."""
    roster = program.clients[bucket.name].roster
    stages = _Stages(bucket.name)
    results = []
    for row in roster.rows(cohort.ids).tolist():
        client = int(roster.members[row])
        dropped = np.isin(client, cohort.ids[cohort.dropped])
        play = _player(program, state, bucket, row, dropped)
        results.append(play(stages.of_client(client)))
    return results


def _player(
    program: Program, state: SimulationState, bucket: Bucket, row: int, dropped: HostNumber
) -> Callable[[Call], tuple[ClientInfo, ClientResult]]:
    """Returns the function (call) that runs the round of one row with these calls."""
    clients, channel = program.clients[bucket.name], program.engine.channel
    participant = compiled.participant_of(clients, compiled.clients_info(program, state), row)
    method = program.method.at(program.settings)
    info = jax.tree.map(jnp.asarray, participant.info)
    turn = Turn(jax.random.key(program.seed), jnp.int32(state.round), info)
    data = view(clients.data, participant)
    client = take(compiled.read_clients(program, state, bucket.name, np.array([row])), 0)

    def play(call: Call) -> tuple[ClientInfo, ClientResult]:
        downlink = send(
            method, program.federation, bucket, channel, server=state.server, turn=turn, call=call
        )
        _, result = client_step(method, bucket, channel, call)(client, downlink, data, turn)
        return info, result._replace(coded=None, arrived=result.arrived & ~dropped)

    return play


def _padding(
    program: Program, state: SimulationState, bucket: Bucket
) -> tuple[ClientInfo, ClientResult]:
    """Returns zeros in the form of a client's answer."""
    play = _player(program, state, bucket, 0, np.True_)
    form = jax.eval_shape(lambda: play(call_directly))
    return zeros_of(form)


def serve(
    program: Program, state: SimulationState, delivery: Delivery
) -> tuple[PyTree, ServerResult]:
    """Runs the server's step; arguments as for `round.Round.serve`."""
    method = program.method.at(program.settings)
    call = _Stages(host=method.needs.pretrained.host).of_client(None)
    run = server_round(method, program.federation, program.options.outlier_bound, call)
    root, round = jax.random.key(program.seed), jnp.int32(state.round)
    inputs = root, round, program.placed.pretrained, program.shown
    return run(jax.device_get(state.server), picked(delivery), *inputs)
