"""A check that a method keeps the contract of `core.method`.

It plays a tiny federation in which all values that must not be read are spoiled.
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.aggregation import server_step
from fedjax_ht.core.bounds import checked
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.contract import guarded, one_line
from fedjax_ht.core.counts import counts_fit
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose, client_key, round_key
from fedjax_ht.core.method import Method
from fedjax_ht.core.numerics import with_standard_numerics
from fedjax_ht.core.public_set import require_public_set
from fedjax_ht.core.round import Channel, client_step, send
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import chain, sent
from fedjax_ht.methods.shared.players import (
    Player,
    Pool,
    cast,
    replaced,
    small_federation,
    with_public_set,
)

ROUNDS = 2  # many methods have a downlink with content in the second round only
SEEN = 4  # samples that are scored, beside as many masked ones
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
# values put where nothing may be read, by kind of dtype
HIDDEN = {"f": np.nan, "i": 1000, "b": True}
NOTHING = {"f": 0.0, "i": 0, "b": False}


@checked
@with_standard_numerics
def check_method(method: Method, federation: Federation | None = None) -> None:
    """Plays two rounds of a tiny federation and refuses a method that breaks the contract.

    The first client fills no batch, the second a batch and a half, and the third has no samples. It
    is checked that

    * functions return what they should, see `core.contract`;
    * what clients and server compute is finite;
    * counts in uplinks are those of the client's samples, as `Wire.counts` says;
    * samples under `batch.mask`, and beyond a split's count, change nothing;
    * at the server, rows that have not `arrived` change nothing.

    It takes some seconds for small models.

    Args:
      method: a factory's result.
      federation: a federation that the method runs on, with inputs of any kind; None takes two
        small perceptrons with three clients each.

    Raises:
      ValueError: the method breaks the contract, or does not run on such a federation. One line.

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
    federation = with_public_set(federation, method)
    require_public_set(method, federation)
    method.check(federation)
    players, pool = cast(method, federation)
    root = jax.random.key(0)
    plays, starts = {}, {}
    for bucket in federation.buckets:
        plays[bucket.name] = _client_round(method, federation, bucket)
        starts[bucket.name] = _first_state(method, bucket)
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


def _first_state(method: Method, bucket: Bucket) -> Callable:
    """Compiles (root, client id) -> the first state of one of the bucket's clients."""

    def init(root, client_id):
        key = client_key(root, Purpose.INIT_CLIENT, 0, client_id)
        return method.init_client(bucket, Context(key, jnp.int32(0), None))

    return jax.jit(init)


def _client_round(method: Method, federation: Federation, bucket: Bucket) -> Callable:
    """Compiles a round of one of the bucket's clients.

    Returns:
      (server, client, samples, split, info, root, round) -> {"client_update": its three values,
      "predict": scores}, with zeros where a value may not be read.
    """
    channel = Channel(chain(()), chain(()))

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


def _played(
    method: Method, play: Callable, pool: Pool, player: Player, root: jax.Array, round: jax.Array
) -> tuple[PyTree, PyTree]:
    """Plays a client's round, and refuses it where a sample that is ruled out changes anything.

    Args:
      method: the method.
      play: the compiled round, see `_client_round`, with server and client.
      pool, player, root, round: further arguments of the function.

    Returns:
      The client's new state, and its uplink.
    """
    where = f"client {player.info.id} in bucket {player.bucket.name}, round {round}"
    arguments = player.split, player.info, root, round
    plain = play(pool.plain, *arguments)
    for stage, part in plain.items():
        _require_finite(f"{stage} of {method.name!r}, {where},", part)
    spoiled = play(pool.spoiled, *arguments)
    for stage, part in plain.items():
        _require_equal(
            f"{stage} of {method.name!r}, {where}, reads samples that the mask or the split's "
            "count rules out; weigh by batch.mask, as fl.losses.masked_mean does",
            part,
            spoiled[stage],
        )
    client, uplink, _ = plain["client_update"]
    uplinks, infos = jax.tree.map(lambda x: jnp.asarray(x)[None], (uplink, player.info))
    if not counts_fit(method, Received(uplinks, infos, jnp.ones(1, bool))).all():
        raise ValueError(
            f"client_update of {method.name!r}, {where}, counts (fl.Metadata) more samples than "
            "the client has, and such an upload is refused; set wire=fl.Wire(counts=...) if it "
            "counts something else"
        )
    return client, uplink


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


def _served(
    method: Method, players: list[Player], uplinks: list[PyTree], pool: Pool, step: tuple
) -> PyTree:
    """Plays the server's round with every second client, and refuses it where absent rows count.

    Args:
      method: the method.
      players, uplinks: the clients, and their uplinks in the same order.
      pool: the clients' samples.
      step: the server's compiled step (`core.aggregation.server_step`), its state, the root key
        and the round.

    Returns:
      The server's next state.
    """
    serve, server, root, round = step
    data, splits = None, pool.plain.splits
    if method.sees_data:
        total = sum(int(player.split.count) for player in players)
        splits = splits | {"train": Split(np.arange(total, dtype=np.int32), np.int32(total))}
    if splits:
        data = pool.plain._replace(splits=splits)
    rows = {player.bucket.name: [] for player in players}
    for uplink, player in zip(uplinks, players):
        rows[player.bucket.name].append((uplink, player.info))

    def served(arrived: dict[str, np.ndarray], hidden: bool) -> PyTree:
        return serve(
            server, _received(rows, arrived, hidden), root, round, method.pretrained.variables, data
        )

    some, idle = {}, {}
    for name, pairs in rows.items():
        some[name] = np.arange(len(pairs)) % 2 == 0
        idle[name] = np.array([info.num_samples == 0 for _, info in pairs])
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
    """Turns a tree's random keys into numbers, and its other leaves into arrays."""

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
