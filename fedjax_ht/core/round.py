"""One round of a bucket's participants, from downlink to uplink."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, Key, UInt32

from fedjax_ht.core import wire
from fedjax_ht.core.bucket import Bucket, put_frozen
from fedjax_ht.core.context import ClientInfo, Context, Metrics, Turn
from fedjax_ht.core.executor import Schedule, run_clients
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.method import Method
from fedjax_ht.core.samples import Data, of_member
from fedjax_ht.core.trees import Array, HostArray, HostNumber, PyTree, select


class Participant(NamedTuple):
    """A participant's own arguments.

    Attributes:
      member: int32, the client's row in the bucket's stacked splits.
      info: the client's id and counts.
      valid: False for padding.
      dropped: True if the client's uplink is lost.
    """

    member: Int[HostNumber, "*clients"]
    info: ClientInfo
    valid: Bool[HostNumber, "*clients"]
    dropped: Bool[HostNumber, "*clients"]


class RunServer(NamedTuple):
    """A run's server, as passed to the programs of clients.

    Attributes:
      state: the server's state.
      seed: the run's root seed, uint32 scalar.
      settings: argument of `Method.at`; () if nothing varies.
      frozen: bucket name -> its `bucket.frozen_of`; () if no model has frozen variables.
    """

    state: PyTree
    seed: UInt32[HostArray, ""]
    settings: PyTree = ()
    frozen: PyTree = ()

    def with_frozen(self, bucket: Bucket) -> Bucket:
        """Returns the bucket with its frozen variables, inside a program of its clients."""
        return put_frozen(bucket, self.frozen[bucket.name]) if self.frozen else bucket

    def turn(self, participant: Participant, round: Int[Array, ""]) -> Turn:
        """Returns a participant's turn in a round."""
        return Turn(jax.random.key(self.seed), round, participant.info)


class ClientResult(NamedTuple):
    """The result of one client's round, besides its state.

    Attributes:
      uplink: the upload as the server reads it; () once removed.
      arrived: bool, whether it reaches the server.
      finite: bool, whether state, uplink and metrics are finite; True for padding.
      metrics: the metrics that the method's `client_update` returns.
      uplink_cost, downlink_cost: elements and bytes of the messages on the wire.
      coded: the coded uplink on the wire, by `Wire.code`; None without a code, and in a simulation,
        which has no wire.
    """

    uplink: PyTree
    arrived: Bool[HostArray, "*clients"]
    finite: Bool[HostArray, "*clients"]
    metrics: Metrics
    uplink_cost: wire.WireCost
    downlink_cost: wire.WireCost
    coded: PyTree = None

    @property
    def message(self) -> PyTree:
        """The message that crosses the wire."""
        return self.uplink if self.coded is None else self.coded


class Channel(NamedTuple):
    """Transforms of messages on the wire, each (key, message) -> message."""

    uplink: wire.Transform = wire.chain(())
    downlink: wire.Transform = wire.chain(())


Call = Callable[..., PyTree]
"""(stage, function, *arguments) -> function(*arguments): makes the calls of a round.

Everything that a stage traces is an argument, so that a caller may compile each stage separately.
"""


def call_directly(stage: str, fn: Callable, *arguments: PyTree) -> PyTree:
    """Calls a stage as part of the enclosing program."""
    return fn(*arguments)


def view(data: Data, participant: Participant) -> Data:
    """Returns the bucket's stacked data as one client sees it; padding has no samples."""
    splits = {}
    for name, split in of_member(data, participant.member).splits.items():
        splits[name] = split._replace(count=jnp.where(participant.valid, split.count, 0))
    return data._replace(splits=splits)


def without_samples(data: Data) -> Data:
    """Returns a client's view without samples.

    Their number is a constant zero, so that loops over samples are removed from the program.
    """
    nothing = {name: split._replace(count=np.int32(0)) for name, split in data.splits.items()}
    return data._replace(splits=nothing)


def any_state(
    method: Method, bucket: Bucket, key: Key[Array, ""], federation: Federation | None = None
) -> PyTree:
    """Returns a new client's state in its first round.

    It stands for any client's where only the form matters, or where a downlink overwrites it.
    Without the federation a client has no memory of messages.
    """
    return method.init_client(bucket, Context(key, jnp.int32(0), None, federation=federation))


def send(
    method: Method,
    federation: Federation,
    bucket: Bucket,
    channel: Channel,
    *,
    server: PyTree,
    turn: Turn,
    call: Call = call_directly,
) -> PyTree:
    """Returns the downlink as a client receives it: `broadcast`, then the channel's transforms.

    Args:
      method, federation, bucket, channel: arguments shared by all clients of the bucket.
      server: the server's state.
      turn: the client and the round.
      call: makes the calls of the stages "broadcast" and "downlink".
    """

    def broadcast(server, turn):
        return method.broadcast(federation, bucket, server, turn.context(Purpose.BROADCAST))

    def transform(downlink, turn):
        return channel.downlink(turn.key(Purpose.DOWNLINK), downlink)

    downlink = call("broadcast", broadcast, server, turn)
    return call("downlink", transform, downlink, turn)


def client_step(
    method: Method, bucket: Bucket, channel: Channel, call: Call = call_directly
) -> Callable:
    """Returns the client-side part of a round.

    Args:
      method, bucket, channel: arguments that the function binds.
      call: makes the calls of the stages "receive", "client_update" and "uplink", and of "encode"
        and "decode" if the method has a code.

    Returns:
      (client, downlink, the client's own data, turn) -> (client, ClientResult). If the result is
      not finite, the caller must keep the client's old state.
    """

    def receive(client, downlink, data: Data, turn: Turn):
        return method.receive(bucket, client, downlink, data, turn.context(Purpose.RECEIVE))

    def train(client, downlink, data: Data, turn: Turn):
        data, ctx = data._replace(round=turn.round), turn.context(Purpose.TRAIN)
        return method.client_update(bucket, client, downlink, data, ctx)

    def transform(uplink, turn: Turn):
        return channel.uplink(turn.key(Purpose.UPLINK), uplink)

    def of_code(step):
        def run_step(message, downlink, turn: Turn):
            return step(bucket, message, downlink, turn.context(Purpose.TRAIN))

        return run_step

    def cost(message):
        return jax.tree.map(jnp.uint32, wire.wire_elements(message))

    def run(client, downlink, data: Data, turn: Turn):
        received = call("receive", receive, client, downlink, data, turn)
        trained, uplink, metrics = call("client_update", train, received, downlink, data, turn)
        uplink = call("uplink", transform, uplink, turn)
        finite, coded, crossed = wire.all_finite((trained, uplink, metrics)), None, uplink
        if (code := method.wire.code) is not None:
            coded = crossed = call("encode", of_code(code.encode), uplink, downlink, turn)
            uplink = call("decode", of_code(code.decode), coded, downlink, turn)
            finite &= wire.all_finite(uplink)
        return trained, ClientResult(
            uplink=uplink,
            arrived=finite,
            finite=finite,
            metrics=metrics,
            uplink_cost=cost(crossed),
            downlink_cost=cost(downlink),
            coded=coded,
        )

    return run


def client_round(
    method: Method, federation: Federation, bucket: Bucket, channel: Channel, keeps: bool = True
) -> Callable:
    """Returns one client's round.

    The function is (client, participant, RunServer, data, round) -> (client, ClientResult). If
    clients keep nothing between rounds (`keeps` is False, see `keeps_state`), its argument client
    is ().
    """

    def run(client, participant: Participant, server: RunServer, data: Data, round):
        bound, model = method.at(server.settings), server.with_frozen(bucket)
        of_client, turn = view(data, participant), server.turn(participant, round)
        downlink = send(bound, federation, bucket, channel, server=server.state, turn=turn)
        if not keeps:
            blank = any_state(bound, model, turn.root, federation)
            ctx = turn.context(Purpose.RECEIVE)
            client = bound.receive(model, blank, downlink, of_client, ctx)
        trained, result = client_step(bound, model, channel)(client, downlink, of_client, turn)
        # A client whose result is not finite keeps its old (or received) state, and its upload does
        # not arrive.
        is_sound = participant.valid & result.finite
        client = select(is_sound, trained, client)
        return client, result._replace(
            coded=None,
            arrived=is_sound & ~participant.dropped,
            finite=result.finite | ~participant.valid,
        )

    return run


def bucket_round(
    method: Method,
    federation: Federation,
    bucket: Bucket,
    channel: Channel,
    score: Callable | None = None,
) -> Callable:
    """Returns the round of a bucket on one device.

    Args:
      method, federation, bucket, channel: arguments that the function binds.
      score: scores the trained state: (client, participant, server, data, round,
        EvaluationRequest) -> scores. Given if clients keep nothing between rounds and their states
        are (); without it scores are ().

    Returns:
      (states, schedule of Participant, RunServer, data, (round, EvaluationRequest)) -> (states,
      (ClientResult, scores) [P]).
    """
    run_client = client_round(method, federation, bucket, channel, keeps=score is None)

    def run(states, schedule: Schedule, server: RunServer, data: Data, when):
        def train(client, participant: Participant):
            client, result = run_client(client, participant, server, data, when[0])
            if score is None:
                return client, (result, ())
            return (), (result, score(client, participant, server, data, *when))

        return run_clients(train, states, schedule)

    return run
