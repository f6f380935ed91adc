"""Checks that a method keeps the contract of `core.method`: plays a tiny federation in which all
that must not be read is spoiled."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.contract import guarded, one_line
from fedjax_ht.core.federation import Bucket, Federation, make_federation
from fedjax_ht.core.inputs import InputShape, abstract, usual_rule
from fedjax_ht.core.keys import Purpose, client_key, round_key
from fedjax_ht.core.method import ClientInfo, Context, Data, Method, PyTree, Received, Split
from fedjax_ht.core.round import Channel, client_step, send, server_step
from fedjax_ht.core.wire import chain, sent
from fedjax_ht.models import mlp

ROUNDS = 2  # much of a method begins in the second, when something has come down
CLIENTS = 3  # of a bucket that are played
SEEN = 4  # samples that are scored, beside as many masked ones
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
# by kind of dtype, what is put where nothing may be read
HIDDEN = {"f": np.nan, "i": 1000, "b": True}
NOTHING = {"f": 0.0, "i": 0, "b": False}
BRIGHT = 100.0  # of a masked sample: not NaN, since zero times NaN is NaN in any gradient


class Player(NamedTuple):
    """A client that is played: its bucket, what the system knows of it, and its samples."""

    bucket: Bucket
    info: ClientInfo
    split: Split


class Pool(NamedTuple):
    """The samples of all players, of which the last is no client's; `spoiled` differs in that
    one."""

    plain: Data
    spoiled: Data


def check_method(method: Method, federation: Federation | None = None) -> None:
    """Plays two rounds of a tiny federation and refuses a method that breaks the contract.

    The first client fills no batch, the second a batch and a half, and the third has no samples. It
    is checked that

    * functions return what they should, see `core.contract`;
    * what clients and server compute is finite;
    * samples under `batch.mask`, and beyond a split's count, change nothing;
    * at the server, rows that have not `arrived` change nothing.

    It takes some seconds for small models.

    Args:
      method: such as a factory's result.
      federation: what the method runs on, with inputs of any kind; None takes two small perceptrons
        with three clients each.

    Raises:
      ValueError: the method breaks the contract, or does not run on such a federation. One line.

    Example:
      >>> fl.check_method(mine(fl.LocalTraining(optax.sgd(0.1), batch_size=8)))
    """
    method = guarded(method)
    federation = small_federation() if federation is None else federation
    method.check(federation)
    players, pool = _cast(method, federation)
    root = jax.random.key(0)
    plays = {b.name: _client_round(method, federation, b) for b in federation.buckets}
    starts = {b.name: _first_state(method, b) for b in federation.buckets}
    serve = server_step(method, federation)
    if not method.pretrained.host:
        serve = jax.jit(serve)

    def first(key):
        return method.init_server(federation, round_key(key, Purpose.INIT_SERVER, 0))

    server = jax.jit(first)(root)
    clients = [starts[player.bucket.name](root, player.info.id) for player in players]
    for number in range(ROUNDS):
        round, uplinks = jnp.int32(number), []
        for i, player in enumerate(players):
            play = functools.partial(plays[player.bucket.name], server, clients[i])
            clients[i], uplink = _played(method, play, pool, player, root, round)
            uplinks.append(uplink)
        server = _served(method, players, uplinks, pool, (serve, server, root, round))


def small_federation() -> Federation:
    """Two perceptrons with one feature width on grey 4x4 images of three classes; six clients."""
    models = {"narrow": mlp(3, (8,)), "wide": mlp(3, (12, 8))}
    return make_federation(models, (4, 4, 1), 3, num_clients=2 * CLIENTS)


def filled(split: Split, columns: int, filler: np.ndarray) -> Split:
    """Widens splits [..., max] by some columns and puts `filler` past every count.

    Args:
      split: of one client, or stacked.
      columns: how many are added.
      filler: int [max + columns], or with the leading axes of the split.
    """
    indices, count = np.asarray(split.indices), np.asarray(split.count)
    indices = np.pad(indices, [(0, 0)] * (indices.ndim - 1) + [(0, columns)])
    real = np.arange(indices.shape[-1]) < count[..., None]
    return Split(np.where(real, indices, filler).astype(np.int32), count)


def replaced(tree: PyTree, where: jax.Array, values: Mapping[str, Any]) -> PyTree:
    """Puts values in place of all numbers, by kind of dtype ("f", "i", "b"), where a flag is set.

    Args:
      tree: arrays; those of other kinds stay.
      where: bool, a scalar or one for each row of all arrays.
      values: kind -> value; arrays of a kind that is not there stay.
    """

    def one(x):
        kinds = {"f": jnp.floating, "i": jnp.integer, "b": jnp.bool_}
        kind = next((kind for kind, dtype in kinds.items() if jnp.issubdtype(x.dtype, dtype)), None)
        if kind not in values:
            return x
        flags = jnp.reshape(where, where.shape + (1,) * (x.ndim - where.ndim))
        return jnp.where(flags, values[kind], x)

    return jax.tree.map(one, tree)


def _cast(method: Method, federation: Federation) -> tuple[list[Player], Pool]:
    """Chooses the first clients of every bucket and draws their samples, which no two clients
    share."""
    batch = method.training.batch_size
    counts = (max(1, batch // 2), batch + (batch + 1) // 2, 0)
    places = [
        (b, i, counts[n])
        for b in federation.buckets
        for n, i in enumerate(federation.members(b)[:CLIENTS])
    ]
    shape, total = federation.buckets[0].input_shape, sum(count for _, _, count in places)
    width, start, players = max(counts) + batch, 0, []
    for bucket, i, count in places:
        info = ClientInfo(np.int32(i), np.int32(count), np.int32(-1))
        indices = np.arange(start, start + count, dtype=np.int32)
        split = filled(Split(indices, np.int32(count)), width - count, np.full(width, total))
        players.append(Player(bucket, info, split))
        start += count
    rng = np.random.default_rng(0)
    labels = rng.integers(0, federation.num_classes, total + 1).astype(np.int32)
    plain = Data(_samples(shape, total + 1, rng), labels, usual_rule(shape), {})
    others = jax.tree.map(lambda x: x.copy(), (plain.inputs, labels))
    for x in jax.tree.leaves(others):
        x[-1] = BRIGHT if x.dtype.kind == "f" else 1 - x[-1]
    return players, Pool(plain, plain._replace(inputs=others[0], labels=others[1]))


def _samples(shape: InputShape, count: int, rng: np.random.Generator) -> PyTree:
    def one(x):
        values = (
            rng.random(x.shape)
            if jnp.issubdtype(x.dtype, jnp.floating)
            else rng.integers(0, 2, x.shape)
        )
        return values.astype(x.dtype)

    return jax.tree.map(one, abstract(shape, count))


def _first_state(method: Method, bucket: Bucket) -> Callable:
    """(root, client id) -> the state of one of the bucket's clients, compiled."""

    def init(root, client_id):
        key = client_key(root, Purpose.INIT_CLIENT, 0, client_id)
        return method.init_client(bucket, Context(key, jnp.int32(0), None))

    return jax.jit(init)


def _client_round(method: Method, federation: Federation, bucket: Bucket) -> Callable:
    """(server, client, samples, split, info, root, round) -> {"client_update": its three values,
    "predict": scores}, compiled: what may be read of a round of one of the bucket's clients."""
    channel = Channel(chain(()), chain(()))

    def run(server, client, samples: Data, split: Split, info: ClientInfo, root, round):
        data = samples._replace(splits=dict.fromkeys(("train", "val", "test"), split))
        downlink = send(method, federation, bucket, channel, server, root, round, info)
        step = client_step(method, bucket, channel)
        taught = step(client, downlink, data, root, round, info)
        last = len(samples.labels) - 1
        mask = np.arange(2 * SEEN) < SEEN
        chosen = np.where(mask, np.arange(2 * SEEN) % last, last)
        x = data.preprocess(jax.tree.map(lambda leaf: leaf[chosen], data.inputs))
        scores = method.predict(bucket, taught.client, downlink, x, jnp.asarray(mask))
        # A score of -inf says "no prediction", and is large here: only NaN is wrong.
        scores = {rule: jnp.nan_to_num(s[:SEEN], nan=jnp.nan) for rule, s in scores.items()}
        trained = taught.client, taught.uplink, taught.metrics
        return sent({"client_update": trained, "predict": scores})

    return jax.jit(run)


def _played(
    method: Method, play: Callable, pool: Pool, player: Player, root: jax.Array, round: jax.Array
) -> tuple[PyTree, PyTree]:
    """A client's new state and its uplink, if no sample that is ruled out has changed them."""
    where = f"client {player.info.id} in bucket {player.bucket.name}, round {round}"
    arguments = player.split, player.info, root, round
    plain = play(pool.plain, *arguments)
    for stage, part in plain.items():
        _require_finite(f"{stage} of {method.name!r}, {where},", part)
    spoiled = play(pool.spoiled, *arguments)
    for stage, part in plain.items():
        _require_equal(
            f"{stage} of {method.name!r}, {where}, reads samples that the mask or the split's "
            "count rules out; weigh by batch.mask, as fl.masked_mean does",
            part,
            spoiled[stage],
        )
    client, uplink, _ = plain["client_update"]
    return client, uplink


@functools.partial(jax.jit, static_argnames="hidden")
def _received(
    rows: dict[str, list[tuple[PyTree, ClientInfo]]], arrived: dict[str, jax.Array], hidden: bool
) -> dict[str, Received]:
    """Stacks the uplinks and infos of each bucket; absent rows hold `HIDDEN`, or else `NOTHING`."""
    buckets = {}
    for name, pairs in rows.items():
        uplink, info = jax.tree.map(lambda *xs: jnp.stack(xs), *pairs)
        uplink = replaced(uplink, ~arrived[name], HIDDEN if hidden else NOTHING)
        buckets[name] = Received(uplink, info, arrived[name])
    return buckets


def _served(
    method: Method, players: list[Player], uplinks: list[PyTree], pool: Pool, step: tuple
) -> PyTree:
    """The server's next state, every second client having arrived; `step` is what `server_step`
    makes, and its state, the root key and the round."""
    serve, server, root, round = step
    total = len(pool.plain.labels) - 1
    pooled = {"train": Split(np.arange(total, dtype=np.int32), np.int32(total))}
    data = pool.plain._replace(splits=pooled) if method.sees_data else None
    rows = {player.bucket.name: [] for player in players}
    for uplink, player in zip(uplinks, players):
        rows[player.bucket.name].append((uplink, player.info))

    def served(arrived: dict[str, np.ndarray], hidden: bool) -> PyTree:
        return serve(
            server, _received(rows, arrived, hidden), root, round, method.pretrained.variables, data
        )

    some = {name: np.arange(len(pairs)) % 2 == 0 for name, pairs in rows.items()}
    idle = {name: np.array([info.num_samples == 0 for _, info in rows[name]]) for name in rows}
    what = f"server_update of {method.name!r}, round {round}"
    out = served(some, hidden=False)
    _require_finite(what, out)
    _require_equal(
        f"{what}, reads rows of clients that have not `arrived`; leave them out by jnp.where",
        out,
        served(some, hidden=True),
    )
    if any(flags.any() for flags in idle.values()):
        _require_finite(f"{what}, where only clients without samples arrive,", served(idle, True))
    return out[0]


def _numbers(tree: PyTree) -> PyTree:
    """The tree with random keys as numbers."""

    def one(x):
        return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return jax.tree.map(one, jax.tree.map(jnp.asarray, tree))


def _require_finite(what: str, tree: PyTree) -> None:
    for path, leaf in jax.tree.leaves_with_path(_numbers(sent(tree))):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        try:
            chex.assert_tree_all_finite(leaf)
        except AssertionError as error:
            raise ValueError(f"{what} is not finite at {name}") from error


def _require_equal(what: str, before: PyTree, after: PyTree) -> None:
    with one_line(what):
        chex.assert_trees_all_close(*map(_numbers, (sent(before), sent(after))), **CLOSE)
