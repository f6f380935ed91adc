"""The compiled functions of a method that is checked, and rounds of its players."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.aggregation import server_step
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import ClientInfo, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose, client_key, round_key
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Channel, client_step, send
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.states import any_state
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import sent
from fedjax_ht.methods.shared.players import Player, Pool, cast, replaced

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
    if not method.pretrained.host:
        serve = jax.jit(serve)

    def first(key):
        return method.init_server(federation, round_key(key, Purpose.INIT_SERVER, 0))

    splits = pool.plain.splits
    if method.sees_data:
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
    variables = game.method.pretrained.variables
    return game.serve(server, received, game.root, round, variables, game.data)
