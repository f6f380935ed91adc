"""One round, compiled: a bucket's participants, the server, and evaluation."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from fedjax_ht.core import wire
from fedjax_ht.core.compiling import compiler_options, platform_of
from fedjax_ht.core.executor import Schedule, run_clients
from fedjax_ht.core.federation import Bucket, Federation
from fedjax_ht.core.keys import Purpose, client_key, round_key
from fedjax_ht.core.local_training import take_batch
from fedjax_ht.core.mesh import SHARDED
from fedjax_ht.core.method import ClientInfo, Context, Data, Method, PyTree, Received, Split


class Row(NamedTuple):
    """A participant's own arguments.

    Attributes:
      member: its row in the bucket's stacked splits.
      trial: which trial it belongs to.
      info: what the system knows of it.
      valid: False for padding.
      dropped: True if its uplink gets lost.
    """

    member: jax.Array
    trial: jax.Array
    info: ClientInfo
    valid: jax.Array
    dropped: jax.Array


class Servers(NamedTuple):
    """The servers of all trials, as every client's call gets them.

    Attributes:
      state: the server state; with several trials, stacked over them.
      seeds: uint32 scalar, or [trials].
    """

    state: PyTree
    seeds: jax.Array

    def of(self, trial: jax.Array) -> tuple[PyTree, jax.Array]:
        """The state and the root key of one trial."""
        if self.seeds.ndim == 0:
            return self.state, jax.random.key(self.seeds)
        return jax.tree.map(lambda x: x[trial], self.state), jax.random.key(self.seeds[trial])


class ClientResult(NamedTuple):
    """What one client's round leaves behind, beside its state."""

    uplink: PyTree
    arrived: jax.Array  # bool
    finite: jax.Array  # bool
    metrics: dict[str, jax.Array]
    uplink_cost: wire.WireCost
    downlink_cost: wire.WireCost


class Channel(NamedTuple):
    """Transforms of what crosses the wire, each (key, message) -> message."""

    uplink: wire.Transform
    downlink: wire.Transform


def all_finite(tree: PyTree) -> jax.Array:
    """True if every float that would be read is finite; masked-out entries are not read."""
    checks = [jnp.array(True)]
    for leaf in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, wire.Masked)):
        if isinstance(leaf, wire.Masked):
            rows = leaf.mask.reshape(leaf.mask.shape + (1,) * (leaf.values.ndim - leaf.mask.ndim))
            leaf = jnp.where(rows, leaf.values, 0)
        if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            checks.append(jnp.all(jnp.isfinite(leaf)))
    return jnp.stack(checks).all()


def select(condition: jax.Array, yes: PyTree, no: PyTree) -> PyTree:
    """`yes` where a scalar condition holds, else `no`, leaf by leaf; typed keys included."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def view(data: Data, row: Row) -> Data:
    """The bucket's stacked data as one client sees it; padding has no samples."""
    one = lambda split: Split(split.indices[row.member], jnp.where(row.valid, split.count[row.member], 0))  # noqa: E731
    return data._replace(splits={name: one(split) for name, split in data.splits.items()})


def client_context(purpose: Purpose, root: jax.Array, round: jax.Array, info: ClientInfo) -> Context:
    """Where a client's call of a round stands."""
    shared = round_key(root, Purpose.SHARED, round)
    return Context(client_key(root, purpose, round, info.id), round, info, shared_key=shared)


def send(method: Method, federation: Federation, bucket: Bucket, channel: Channel, server, root, round, info) -> PyTree:
    """The downlink as a client receives it."""
    ctx = client_context(Purpose.BROADCAST, root, round, info)
    downlink = method.broadcast(federation, bucket, server, ctx)
    return channel.downlink(client_key(root, Purpose.DOWNLINK, round, info.id), downlink)


def receive(method: Method, bucket: Bucket, client, downlink, data: Data, root, round, info) -> PyTree:
    """The client's state after receipt."""
    ctx = client_context(Purpose.RECEIVE, root, round, info)
    return method.receive(bucket, client, downlink, data, ctx)


def client_round(method: Method, federation: Federation, bucket: Bucket, channel: Channel) -> Callable:
    """(client, row, servers, data, round) -> (client, ClientResult), for one client."""

    def run(client, row: Row, servers: Servers, data: Data, round):
        own = view(data, row)
        server, root = servers.of(row.trial)
        downlink = send(method, federation, bucket, channel, server, root, round, row.info)
        received = receive(method, bucket, client, downlink, own, root, round, row.info)
        ctx = client_context(Purpose.TRAIN, root, round, row.info)
        trained, uplink, metrics = method.client_update(bucket, received, downlink, own._replace(round=round), ctx)
        uplink = channel.uplink(client_key(root, Purpose.UPLINK, round, row.info.id), uplink)
        finite = all_finite((trained, uplink))
        # A client whose result is not finite keeps its old state and does not arrive.
        client = select(row.valid & finite, trained, client)
        arrived = row.valid & finite & ~row.dropped
        cost = lambda message: jax.tree.map(jnp.int32, wire.wire_elements(message))  # noqa: E731
        return client, ClientResult(uplink, arrived, finite | ~row.valid, metrics, cost(uplink), cost(downlink))

    return run


def first_states(method: Method, bucket: Bucket, mesh: Mesh) -> Callable:
    """(seeds uint32 [P], client ids int32 [P]), sharded -> the clients' first states, sharded; compiled."""

    def one(args):
        seed, client_id = args
        ctx = Context(client_key(jax.random.key(seed), Purpose.INIT_CLIENT, 0, client_id), jnp.int32(0), None)
        return method.init_client(bucket, ctx)

    run = jax.shard_map(
        lambda args: lax.map(one, args), mesh=mesh, in_specs=SHARDED, out_specs=SHARDED, check_vma=False
    )
    return jax.jit(run, compiler_options=compiler_options(platform_of(mesh)))


def bucket_round(method: Method, federation: Federation, bucket: Bucket, channel: Channel, lanes: int) -> Callable:
    """(states, schedule of Row, servers, data, round) -> (states, ClientResult [P]), on one device."""
    one = client_round(method, federation, bucket, channel)

    def run(states, schedule: Schedule, servers: Servers, data: Data, round):
        return run_clients(lambda client, row: one(client, row, servers, data, round), states, schedule, lanes)

    return run


def server_round(method: Method, federation: Federation) -> Callable:
    """(server, {bucket: Received}, root, round, Method.frozen, Context.data) -> (server, metrics); nothing changes if
    nobody arrives."""

    def run(server, received: dict[str, Received], root, round, frozen=(), data=None):
        shared = round_key(root, Purpose.SHARED, round)
        ctx = Context(round_key(root, Purpose.SERVER, round), round, None, frozen, shared, data)
        new, metrics = method.server_update(federation, server, received, ctx)
        anyone = jnp.stack([r.arrived.any() for r in received.values()]).any()
        return select(anyone, new, server), metrics

    return run


def gather_received(received: dict[str, Received]) -> Received:
    """All buckets' uplinks as one, ordered by client id with the absent last; for uplinks of bucket-free shapes.

    Order and padding then cannot leak into what the server computes.
    """
    joined = jax.tree.map(lambda *xs: jnp.concatenate(xs), *received.values())
    rank = jnp.where(joined.arrived, joined.info.id, jnp.iinfo(jnp.int32).max)
    return jax.tree.map(lambda x: x[jnp.argsort(rank, stable=True)], joined)


def downlink_costs(method: Method, federation: Federation, channel: Channel) -> Callable:
    """(server, ClientInfo [num_clients], root, round) -> WireCost [num_clients] of a downlink to everyone."""

    def run(server, infos: ClientInfo, root, round):
        parts = []
        for bucket in federation.buckets:

            def one(info, bucket=bucket):
                message = send(method, federation, bucket, channel, server, root, round, info)
                return jax.tree.map(jnp.int32, wire.wire_elements(message))

            members = jnp.asarray(federation.members(bucket))
            parts.append(lax.map(one, jax.tree.map(lambda x, m=members: x[m], infos)))
        return jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)

    return run


class Scores(NamedTuple):
    """Per rule the number of correctly classified samples; and how many samples there were."""

    correct: dict[str, jax.Array]
    count: jax.Array


def score(predict: Callable, data: Data, split: Split, batch_size: int) -> Scores:
    """Counts correct predictions over a split.

    Args:
      predict: (x, mask) -> {rule: scores [B, C]}, or None. A score of -inf says "no prediction"; a sample whose scores
        are all -inf is wrong.
      data: holds the images.
      split: which samples.
      batch_size: samples a call.
    """

    def scored(x, mask):
        return predict(x, mask) or {}

    def body(i, correct):
        batch = take_batch(data, split.indices, split.count, i * batch_size, batch_size)
        hits = {
            rule: (jnp.argmax(s, -1) == batch.y) & jnp.isfinite(jnp.max(s, -1)) & batch.mask
            for rule, s in scored(batch.x, batch.mask).items()
        }
        return {rule: correct[rule] + jnp.sum(h, dtype=jnp.int32) for rule, h in hits.items()}

    x = jax.ShapeDtypeStruct((batch_size, *data.images.shape[1:]), jnp.float32)
    rules = jax.eval_shape(scored, x, jax.ShapeDtypeStruct((batch_size,), jnp.bool_))
    batches = (split.count + batch_size - 1) // batch_size
    correct = lax.fori_loop(0, batches, body, {rule: jnp.int32(0) for rule in rules})
    return Scores(correct, split.count)


def bucket_evaluation(
    method: Method,
    federation: Federation,
    bucket: Bucket,
    channel: Channel,
    lanes: int,
    received: bool,
    batch_size: int,
    splits: tuple[str, ...],
) -> Callable:
    """(states, schedule of Row, servers, data, round) -> {split: Scores [P]}, on one device; the states stay.

    Args:
      received: score the clients after `receive` with the newest downlink, else as they were trained.
      splits: which of the clients' sets.
      Others as `bucket_round`.
    """

    def one(client, row: Row, servers: Servers, data: Data, round):
        own = view(data, row)
        server, root = servers.of(row.trial)
        downlink = send(method, federation, bucket, channel, server, root, round, row.info)
        if received:
            client = receive(method, bucket, client, downlink, own, root, round, row.info)
        predict = lambda x, mask: method.predict(bucket, client, downlink, x, mask)  # noqa: E731
        return {name: score(predict, own, own.splits[name], batch_size) for name in splits}

    def run(states, schedule: Schedule, servers: Servers, data: Data, round):
        # The states are read, not carried through the loop: evaluation changes none and must not copy them.
        def score_one(_, row):
            slot, own = row
            client = jax.tree.map(lambda x: x[jnp.minimum(slot, x.shape[0] - 1)], states)
            return (), one(client, own, servers, data, round)

        plan = schedule._replace(rows=(schedule.slots, schedule.rows))
        return run_clients(score_one, (), plan, lanes)[1]

    return run
