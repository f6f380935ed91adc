"""Checks that a method keeps the contract of `core.method`.

The check runs rounds of a few clients with few samples, and spoils all values that must not be
read. The data also holds samples that no client may read.
"""

import contextlib
import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.options import checked
from fedjax_ht.core.aggregation import server_step
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import ClientInfo, Received, Turn
from fedjax_ht.core.contract import guarded, one_line, require_public_set, require_task
from fedjax_ht.core.counts import counts_fit
from fedjax_ht.core.federation import Federation, PublicSet, make_federation, with_frozen_variables
from fedjax_ht.core.inputs import InputShape, abstract, usual_rule
from fedjax_ht.core.keys import Purpose, client_key, round_key
from fedjax_ht.core.method import Method
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.core.round import Channel, any_state, client_step, send
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.core.task import CLASSIFICATION
from fedjax_ht.core.trees import PyTree, join_trees
from fedjax_ht.core.wire import Metadata, sent
from fedjax_ht.models import mlp

CLIENTS = 3  # players per bucket
BRIGHT = 100.0  # pixels of a masked sample; not NaN, since 0 * NaN is NaN in any gradient


class Player(NamedTuple):
    """A client of the check: its bucket, its `ClientInfo` and its samples."""

    bucket: Bucket
    info: ClientInfo
    split: Split


class Pool(NamedTuple):
    """The samples of all players, with the public set as a split.

    The last sample belongs to no client, and differs in `spoiled`.
    """

    plain: Data
    spoiled: Data


def small_federation() -> Federation:
    """Makes six clients with two perceptrons of equal feature width, for grey 4x4 images."""
    models = {"narrow": mlp(3, (8,)), "wide": mlp(3, (12, 8))}
    return make_federation(models, (4, 4, 1), 3, num_clients=2 * CLIENTS)


def with_public_set(federation: Federation, method: Method) -> Federation:
    """Returns the federation with a public set as large as the method needs, unless it has one."""
    if not method.needs.public_samples or federation.public is not None:
        return federation
    return dataclasses.replace(federation, public=PublicSet(method.needs.public_samples))


def cast(method: Method, federation: Federation) -> tuple[list[Player], Pool]:
    """Chooses the first clients of every bucket and draws their samples; no two clients share one.

    Indices past a split's count point to the last sample, which belongs to no client.
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
    target, dtype = federation.task.target
    values = federation.num_classes if federation.task == CLASSIFICATION else 2
    labels = rng.integers(0, values, (total + 1, *target)).astype(dtype)
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
    """Widens splits [..., max] by `columns` and writes `filler` past every count.

    Args:
      split: the split of a client, or stacked splits.
      columns: number of columns to add.
      filler: int [max + columns], or with the leading axes of the split.
    """
    indices, count = np.asarray(split.indices), np.asarray(split.count)
    indices = np.pad(indices, [(0, 0)] * (indices.ndim - 1) + [(0, columns)])
    real = np.arange(indices.shape[-1]) < count[..., None]
    return Split(np.where(real, indices, filler).astype(np.int32), count)


def replaced(tree: PyTree, where: jax.Array, values: Mapping[str, Any]) -> PyTree:
    """Replaces values where a flag is set, by kind of dtype ("f", "i", "b").

    Args:
      tree: arrays; those of other kinds are unchanged.
      where: bool, a scalar or one for each row of all arrays.
      values: kind -> value; arrays of a kind without a value are unchanged.
    """
    kinds = {"f": jnp.floating, "i": jnp.integer, "b": jnp.bool_}

    def with_values(x):
        for kind, dtype in kinds.items():
            if kind in values and jnp.issubdtype(x.dtype, dtype):
                flags = jnp.reshape(where, where.shape + (1,) * (x.ndim - where.ndim))
                return jnp.where(flags, values[kind], x)
        return x

    return jax.tree.map(with_values, tree)


SEEN = 4  # scored samples, next to as many masked ones
# values written where nothing may be read, by kind of dtype
HIDDEN = {"f": np.nan, "i": 1000, "b": True}
NOTHING = {"f": 0.0, "i": 0, "b": False}


class Game(NamedTuple):
    """A method's compiled functions, and the players.

    Attributes:
      method, federation: the method and its federation.
      players, pool: the clients, and their samples.
      first: (root key) -> the initial server state.
      starts: bucket name -> `_first_state`.
      plays: bucket name -> `_client_round`.
      serve: the server's step, `core.aggregation.server_step`.
      data: the samples that the server reads; None if it reads none.
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
    """Returns the initial states of the server and of the players."""
    clients = [game.starts[p.bucket.name](game.root, p.info.id) for p in game.players]
    return game.first(game.root), clients


def _first_state(method: Method, federation: Federation, bucket: Bucket) -> Callable:
    """Compiles (root, client id) -> the initial state of a client of the bucket."""

    def init(root, client_id):
        key = client_key(root, Purpose.INIT_CLIENT, 0, client_id)
        return any_state(method, bucket, key, federation)

    return jax.jit(init)


def _client_round(method: Method, federation: Federation, bucket: Bucket) -> Callable:
    """Compiles a round of a client of the bucket.

    Returns:
      (server, client, samples, split, info, root, round) -> {"client_update": its three values,
      "predict": scores}, with zeros where a value may not be read.
    """
    channel = Channel()

    def run(server, client, samples: Data, split: Split, info: ClientInfo, root, round):
        splits = dict.fromkeys(("train", "val", "test"), split)
        data = samples._replace(splits=samples.splits | splits)
        turn = Turn(root, round, info)
        downlink = send(method, federation, bucket, channel, server=server, turn=turn)
        trained, result = client_step(method, bucket, channel)(client, downlink, data, turn)
        last = len(samples.labels) - 1
        mask = np.arange(2 * SEEN) < SEEN
        chosen = np.where(mask, np.arange(2 * SEEN) % last, last)
        x = data.preprocess(jax.tree.map(lambda leaf: leaf[chosen], data.inputs))
        scores = method.predict(bucket, trained, downlink, x, jnp.asarray(mask))
        # -inf means "no prediction" and becomes a large number here; only NaN is an error.
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
    """Runs the server's step; arguments as for `_served` and `_received`."""
    received = _received(rows, arrived, hidden)
    variables = game.method.needs.pretrained.variables
    return game.serve(server, received, game.root, round, variables, game.data)


ROUNDS = 2  # many methods send an empty downlink in the first round
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@checked
@standard_numerics()
def check_method(method: Method, federation: Federation | None = None) -> None:
    """Runs two rounds of a tiny federation and rejects a method that breaks the contract.

    The first client has less than a batch, the second a batch and a half, and the third no samples.
    The checks are:

    * functions return the right forms, see `core.contract`;
    * results of clients and server are finite;
    * counts in uplinks match the client's samples, see `Wire.counts`;
    * samples under `batch.mask`, and beyond a split's count, change nothing;
    * np.random and random are not used, because their numbers would be constants when compiled;
    * rows that have not `arrived` do not change the server;
    * a server that reads "sums" (`Wire.server_reads`) depends only on sums of uploads;
    * `View.invariant`, if there is one, holds while every upload arrives.

    The check takes a few seconds for small models.

    Args:
      method: the method, as a factory returns it.
      federation: a federation for the method, with any inputs and task; None for two small
        perceptrons with three clients each.

    Raises:
      ValueError: the method breaks the contract, or does not support the federation. One line.

    Example:
      >>> federation = fl.make_federation({"a": fl.mlp(2, (3,))}, (2, 2, 1), 2, num_clients=3)
      >>> method = fl.local(fl.LocalTraining(optax.sgd(0.1), batch_size=2))
      >>> fl.check_method(method, federation)
      >>> def no_rule(bucket, client, downlink, x, mask):
      ...     return {}
      >>> fl.check_method(method._replace(predict=no_rule), federation)
      Traceback (most recent call last):
      ...
      ValueError: predict of 'local' lacks the rule 'head'; it returns none, ...
    """
    method = guarded(method)
    federation = small_federation() if federation is None else federation
    federation = with_frozen_variables(with_public_set(federation, method))
    require_public_set(method, federation)
    require_task(method, federation)
    method.check(federation)
    with no_host_draws(method.name):
        game = make_game(method, federation)
        server, clients = begin(game)
        for number in range(ROUNDS):
            round = jnp.int32(number)
            uplinks = _played(game, server, clients, round)
            server = _served(game, server, uplinks, round)
    if method.view.invariant is not None:
        _require_invariant(game)


def _played(game: Game, server: PyTree, clients: list[PyTree], round: jax.Array) -> list[PyTree]:
    """Runs a round of all clients; raises a ValueError if masked samples change a result.

    Args:
      game: the method and its players.
      server: the server's state.
      clients: states of the players; the list is updated in place.
      round: the round.

    Returns:
      The players' uplinks.
    """
    method, uplinks = game.method, []
    for i, player in enumerate(game.players):
        play = functools.partial(game.plays[player.bucket.name], server, clients[i])
        arguments = player.split, player.info, game.root, round
        where = f"client {player.info.id} in bucket {player.bucket.name}, round {round}"
        plain, spoiled = play(game.pool.plain, *arguments), play(game.pool.spoiled, *arguments)
        for stage, part in plain.items():
            _require_finite(f"{stage} of {method.name!r}, {where},", part)
            _require_equal(
                f"{stage} of {method.name!r}, {where}, reads samples that the mask or the split's "
                "count excludes; weight them by batch.mask, as fl.losses.masked_mean does",
                part,
                spoiled[stage],
            )
        clients[i], uplink, _ = plain["client_update"]
        uplinks.append(uplink)
        rows, infos = jax.tree.map(lambda x: jnp.asarray(x)[None], (uplink, player.info))
        arrived = Received(rows, infos, jnp.ones(1, bool))
        if not counts_fit(method, arrived, player.bucket.name).all():
            raise ValueError(
                f"client_update of {method.name!r}, {where}, counts (fl.Metadata) more samples "
                "than the client has, so the upload would be refused; set wire=fl.Wire(counts=...) "
                "if it counts something else"
            )
    return uplinks


def _served(game: Game, server: PyTree, uplinks: list[PyTree], round: jax.Array) -> PyTree:
    """Runs the server's step with every second client; raises a ValueError if absent rows count.

    Args:
      game: the method and its players.
      server: the server's state.
      uplinks: uplinks of the players, in order.
      round: the round.

    Returns:
      The server's next state.
    """
    rows = rows_of(game, uplinks)
    step = functools.partial(serve, game, server, round=round)
    some, idle = {}, {}
    for name, pairs in rows.items():
        some[name] = np.arange(len(pairs)) % 2 == 0
        idle[name] = np.array([info.num_samples == 0 for _, info in pairs])
    what = f"server_update of {game.method.name!r}, round {round}"
    out = step(rows, some, hidden=False)
    _require_finite(what, out)
    _require_equal(
        f"{what}, reads rows of clients that have not `arrived`; mask them with jnp.where",
        out,
        step(rows, some),
    )
    if any(flags.any() for flags in idle.values()):
        _require_finite(f"{what}, where only clients without samples arrive,", step(rows, idle))
    if game.method.wire.server_reads == "sums":
        two = {name: np.arange(len(pairs)) < 2 for name, pairs in rows.items()}
        _require_equal(
            f"{what}, depends on more than the sum of uploads, but declares "
            'fl.Wire(server_reads="sums"), on which secure sums and noise on sums rely; keep '
            '"uploads"',
            step(twins(rows, 0.0), two),
            step(twins(rows, 0.125), two),
        )
    return out[0]


def _require_invariant(game: Game) -> None:
    """Runs rounds in which every upload arrives; raises a ValueError if the invariant fails."""
    invariant = game.method.view.invariant
    assert invariant is not None  # `check_method` has checked it
    server, clients = begin(game)
    for number in range(ROUNDS):
        round = jnp.int32(number)
        rows = rows_of(game, _played(game, server, clients, round))
        everyone = {name: np.ones(len(pairs), bool) for name, pairs in rows.items()}
        server, _ = serve(game, server, rows, everyone, round)
        states = {bucket.name: [] for bucket in game.federation.buckets}
        for client, player in zip(clients, game.players, strict=True):
            states[player.bucket.name].append(client)
        stacked = {name: join_trees(jnp.stack, members) for name, members in states.items()}
        left = invariant(game.federation, server, stacked)
        _require_equal(
            f"View.invariant of {game.method.name!r}, after round {round}, in which every upload "
            "arrived, is not zero; the states of server and clients do not match",
            left,
            jax.tree.map(jnp.zeros_like, left),
        )


def _numbers(tree: PyTree) -> PyTree:
    """Converts a tree's random keys to numbers, and its other leaves to arrays."""

    def number(x):
        x = jnp.asarray(x)
        return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return jax.tree.map(number, tree)


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


@contextlib.contextmanager
def no_host_draws(name: str) -> Iterator[None]:
    """Rejects a method that draws from np.random or random.

    Raises:
      ValueError: the state of either has changed in the block. One line.
    """
    before = _generators()
    yield
    if _generators() != before:
        raise ValueError(
            f"{name!r} draws from np.random or random: its functions are traced once, so every "
            "round and client would see the same numbers; use jax.random with ctx.key"
        )


def _generators() -> tuple:
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest


def twins(rows: dict[str, list[tuple]], change: float) -> dict[str, list[tuple]]:
    """Replaces each bucket's first two uploads by two with the same sum for every `change`.

    Both are the first upload, with each number scaled by 1 + change in one and 1 - change in the
    other.

    Args:
      rows: bucket name -> (uplink, info) of its clients, two or more.
      change: relative change of each number; its sign alternates between entries.
    """
    changed = {}
    for name, pairs in rows.items():
        (uplink, info), (_, second) = pairs[:2]
        twin = second._replace(num_samples=info.num_samples)
        first = _moved(uplink, change), info
        changed[name] = [first, (_moved(uplink, -change), twin), *pairs[2:]]
    return changed


def _moved(uplink: PyTree, share: float) -> PyTree:
    """Multiplies the numbers of an uplink, except metadata, by 1 + share and 1 - share in turn.

    The numbers are first rounded to bfloat16. With a share of 1/8 the sum of two is then exact,
    and a server that solves a linear system of sums has no rounding error to amplify.
    """

    def moved(leaf):
        if isinstance(leaf, Metadata) or not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            return leaf
        signs = jnp.where(jnp.arange(leaf.size).reshape(leaf.shape) % 2 == 0, 1, -1)
        return leaf.astype(jnp.bfloat16).astype(leaf.dtype) * (1 + share * signs)

    return jax.tree.map(moved, uplink, is_leaf=lambda x: isinstance(x, Metadata))
