"""Rounds of a few clients with few samples, for `checking`.

Beside the clients and the method's compiled functions there are samples that no client may read.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.aggregation import server_step
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import ClientInfo, Received
from fedjax_ht.core.federation import Federation, PublicSet, make_federation
from fedjax_ht.core.inputs import InputShape, abstract, usual_rule
from fedjax_ht.core.keys import Purpose, client_key, round_key
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Channel, client_step, send
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.core.states import any_state
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import sent
from fedjax_ht.models import mlp

CLIENTS = 3  # clients played of each bucket
BRIGHT = 100.0  # a masked sample's pixels: not NaN, since zero times NaN is NaN in any gradient


class Player(NamedTuple):
    """A client that is played: its bucket, its `ClientInfo` and its samples."""

    bucket: Bucket
    info: ClientInfo
    split: Split


class Pool(NamedTuple):
    """The samples of all players, with the public set as a split; the last sample is no client's,
    and differs in `spoiled`."""

    plain: Data
    spoiled: Data


def small_federation() -> Federation:
    """Makes six clients with two perceptrons of one feature width, for grey 4x4 images."""
    models = {"narrow": mlp(3, (8,)), "wide": mlp(3, (12, 8))}
    return make_federation(models, (4, 4, 1), 3, num_clients=2 * CLIENTS)


def with_public_set(federation: Federation, method: Method) -> Federation:
    """Returns the federation with a public set as large as the method needs, unless it has one."""
    if not method.needs.public_samples or federation.public is not None:
        return federation
    return dataclasses.replace(federation, public=PublicSet(method.needs.public_samples))


def cast(method: Method, federation: Federation) -> tuple[list[Player], Pool]:
    """Chooses the first clients of every bucket and draws their samples; no two clients share one.

    Indices past a split's count point to the last sample, which is no client's.
    """
    batch = method.training.batch_size
    counts = (max(1, batch // 2), batch + (batch + 1) // 2, 0)
    places = []
    for bucket in federation.buckets:
        members = federation.members(bucket)[:CLIENTS]
        places += [(bucket, i, count) for i, count in zip(members, counts)]
    shape, owned = federation.buckets[0].input_shape, sum(count for _, _, count in places)
    public = np.arange(0 if federation.public is None else federation.public.samples)
    total = owned + len(public)
    width, start, players = max(counts) + batch, 0, []
    for bucket, i, count in places:
        info = ClientInfo(np.int32(i), np.int32(count), np.int32(-1))
        indices = np.arange(start, start + count, dtype=np.int32)
        split = filled(Split(indices, np.int32(count)), width - count, np.full(width, total))
        players.append(Player(bucket, info, split))
        start += count
    rng = np.random.default_rng(0)
    labels = rng.integers(0, federation.num_classes, total + 1).astype(np.int32)
    inputs = _samples(shape, total + 1, rng)
    splits = {}
    if method.needs.public_samples:
        splits[PUBLIC] = Split(owned + public.astype(np.int32), np.int32(len(public)))
    plain = Data(inputs=inputs, labels=labels, preprocess=usual_rule(shape), splits=splits)
    inputs, labels = jax.tree.map(np.copy, (inputs, labels))
    for x in jax.tree.leaves((inputs, labels)):
        x[-1] = BRIGHT if x.dtype.kind == "f" else 1 - x[-1]
    return players, Pool(plain, plain._replace(inputs=inputs, labels=labels))


def _samples(shape: InputShape, count: int, rng: np.random.Generator) -> PyTree:
    """Draws samples: floats in [0, 1), integers 0 or 1."""

    def draw(x):
        if jnp.issubdtype(x.dtype, jnp.floating):
            return rng.random(x.shape).astype(x.dtype)
        return rng.integers(0, 2, x.shape).astype(x.dtype)

    return jax.tree.map(draw, abstract(shape, count))


def filled(split: Split, columns: int, filler: np.ndarray) -> Split:
    """Widens splits [..., max] by some columns and puts `filler` past every count.

    Args:
      split: one client's, or stacked.
      columns: number of columns to add.
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
      values: kind -> value; arrays of a kind without a value stay.
    """
    kinds = {"f": jnp.floating, "i": jnp.integer, "b": jnp.bool_}

    def with_values(x):
        for kind, dtype in kinds.items():
            if kind in values and jnp.issubdtype(x.dtype, dtype):
                flags = jnp.reshape(where, where.shape + (1,) * (x.ndim - where.ndim))
                return jnp.where(flags, values[kind], x)
        return x

    return jax.tree.map(with_values, tree)


SEEN = 4  # samples that are scored, beside as many masked ones
# values put where nothing may be read, by kind of dtype
HIDDEN = {"f": np.nan, "i": 1000, "b": True}
NOTHING = {"f": 0.0, "i": 0, "b": False}


class Game(NamedTuple):
    """A method's compiled functions, and who is played.

    Attributes:
      method, federation: the method and its federation.
      players, pool: the clients, and their samples.
      first: (root key) -> the first server state.
      starts: bucket name -> `_first_state`.
      plays: bucket name -> `_client_round`.
      serve: the server's step, `core.aggregation.server_step`.
      data: the samples that the server reads, None without.
      root: the root key.
    """

    method: Method
    federation: Federation
    players: list[Player]
    pool: Pool
    first: Callable
    starts: dict[str, Callable]
    plays: dict[str, Callable]
    serve: Callable
    data: Data | None
    root: jax.Array


def make_game(method: Method, federation: Federation) -> Game:
    players, pool = cast(method, federation)
    plays, starts = {}, {}
    for bucket in federation.buckets:
        plays[bucket.name] = _client_round(method, federation, bucket)
        starts[bucket.name] = _first_state(method, federation, bucket)
    serve = server_step(method, federation)
    if not method.needs.pretrained.host:
        serve = jax.jit(serve)

    def first(key):
        return method.init_server(federation, round_key(key, Purpose.INIT_SERVER, 0))

    splits = pool.plain.splits
    if method.needs.clients_data:
        total = sum(int(player.split.count) for player in players)
        splits = splits | {"train": Split(np.arange(total, dtype=np.int32), np.int32(total))}
    return Game(
        method,
        federation,
        players,
        pool,
        first=jax.jit(first),
        starts=starts,
        plays=plays,
        serve=serve,
        data=pool.plain._replace(splits=splits) if splits else None,
        root=jax.random.key(0),
    )


def begin(game: Game) -> tuple[PyTree, list[PyTree]]:
    """Returns the first states of the server and of the players."""
    clients = [game.starts[p.bucket.name](game.root, p.info.id) for p in game.players]
    return game.first(game.root), clients


def _first_state(method: Method, federation: Federation, bucket: Bucket) -> Callable:
    """Compiles (root, client id) -> the first state of one of the bucket's clients."""

    def init(root, client_id):
        key = client_key(root, Purpose.INIT_CLIENT, 0, client_id)
        return any_state(method, bucket, key, federation)

    return jax.jit(init)


def _client_round(method: Method, federation: Federation, bucket: Bucket) -> Callable:
    """Compiles a round of one of the bucket's clients.

    Returns:
      (server, client, samples, split, info, root, round) -> {"client_update": its three values,
      "predict": scores}, with zeros where a value may not be read.
    """
    channel = Channel()

    def run(server, client, samples: Data, split: Split, info: ClientInfo, root, round):
        splits = dict.fromkeys(("train", "val", "test"), split)
        data = samples._replace(splits=samples.splits | splits)
        downlink = send(
            method, federation, bucket, channel, server=server, root=root, round=round, info=info
        )
        step = client_step(method, bucket, channel)
        trained, result = step(client, downlink, data, root, round, info)
        last = len(samples.labels) - 1
        mask = np.arange(2 * SEEN) < SEEN
        chosen = np.where(mask, np.arange(2 * SEEN) % last, last)
        x = data.preprocess(jax.tree.map(lambda leaf: leaf[chosen], data.inputs))
        scores = method.predict(bucket, trained, downlink, x, jnp.asarray(mask))
        # A score of -inf says "no prediction", and is large here: only NaN is wrong.
        scores = {rule: jnp.nan_to_num(s[:SEEN], nan=jnp.nan) for rule, s in scores.items()}
        update = trained, result.uplink, result.metrics
        return sent({"client_update": update, "predict": scores})

    return jax.jit(run)


def rows_of(game: Game, uplinks: list[PyTree]) -> dict[str, list[tuple[PyTree, ClientInfo]]]:
    """Groups the players' uplinks and infos by bucket."""
    rows = {bucket.name: [] for bucket in game.federation.buckets}
    for uplink, player in zip(uplinks, game.players, strict=True):
        rows[player.bucket.name].append((uplink, player.info))
    return rows


@functools.partial(jax.jit, static_argnames="hidden")
def _received(
    rows: dict[str, list[tuple[PyTree, ClientInfo]]], arrived: dict[str, jax.Array], hidden: bool
) -> dict[str, Received]:
    """Stacks the uplinks and infos of each bucket, with `HIDDEN` or `NOTHING` in absent rows."""
    buckets = {}
    for name, pairs in rows.items():
        uplink, info = jax.tree.map(lambda *xs: jnp.stack(xs), *pairs)
        uplink = replaced(uplink, ~arrived[name], HIDDEN if hidden else NOTHING)
        buckets[name] = Received(uplink, info, arrived[name])
    return buckets


def serve(
    game: Game, server: PyTree, rows: PyTree, arrived: PyTree, round: jax.Array, hidden: bool = True
) -> tuple[PyTree, PyTree]:
    """Plays the server's step; arguments as of `_served` and `_received`."""
    received = _received(rows, arrived, hidden)
    variables = game.method.needs.pretrained.variables
    return game.serve(server, received, game.root, round, variables, game.data)
