"""A check that a method keeps the contract of `core.method`.

It plays a tiny federation in which all values that must not be read are spoiled.
"""

import contextlib
import functools
import random
from collections.abc import Iterator

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.options import checked
from fedjax_ht.core.context import Received
from fedjax_ht.core.contract import guarded, one_line, require_public_set
from fedjax_ht.core.counts import counts_fit
from fedjax_ht.core.federation import Federation, with_frozen_variables
from fedjax_ht.core.method import Method
from fedjax_ht.core.numerics import with_standard_numerics
from fedjax_ht.core.trees import PyTree, join_trees
from fedjax_ht.core.wire import Metadata, sent
from fedjax_ht.methods.shared.small_rounds import (
    Game,
    begin,
    make_game,
    rows_of,
    serve,
    small_federation,
    with_public_set,
)

ROUNDS = 2  # many methods have a downlink with content in the second round only
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


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
    * nothing is drawn by np.random or random, whose numbers would be constants of a program;
    * at the server, rows that have not `arrived` change nothing;
    * what a server that reads "sums" (`Wire.server_reads`) makes of uploads depends on their sum;
    * `View.invariant`, if there is one, holds while every upload arrives.

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
    federation = with_frozen_variables(with_public_set(federation, method))
    require_public_set(method, federation)
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
    """Plays a round of all clients, and refuses it where a sample that is ruled out changes
    anything.

    Args:
      game: the method and its players.
      server: the server's state.
      clients: states of the players, which become the new ones.
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
                "count rules out; weigh by batch.mask, as fl.losses.masked_mean does",
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
                "than the client has, and such an upload is refused; set wire=fl.Wire(counts=...) "
                "if it counts something else"
            )
    return uplinks


def _served(game: Game, server: PyTree, uplinks: list[PyTree], round: jax.Array) -> PyTree:
    """Plays the server's round with every second client, and refuses it where absent rows count.

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
        f"{what}, reads rows of clients that have not `arrived`; leave them out by jnp.where",
        out,
        step(rows, some),
    )
    if any(flags.any() for flags in idle.values()):
        _require_finite(f"{what}, where only clients without samples arrive,", step(rows, idle))
    if game.method.wire.server_reads == "sums":
        two = {name: np.arange(len(pairs)) < 2 for name, pairs in rows.items()}
        _require_equal(
            f"{what}, makes something else of uploads that have the same sum, though it says "
            'fl.Wire(server_reads="sums"), by which secure sums and noise on sums go; leave it at '
            '"uploads"',
            step(twins(rows, 0.0), two),
            step(twins(rows, 0.1), two),
        )
    return out[0]


def _require_invariant(game: Game) -> None:
    """Plays rounds in which every upload arrives, and refuses a method whose own invariant does not
    hold after one."""
    invariant = game.method.view.invariant
    assert invariant is not None  # as `check_method` asks
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
            "arrived, is not zero; the states of server and clients do not fit together",
            left,
            jax.tree.map(jnp.zeros_like, left),
        )


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


@contextlib.contextmanager
def no_host_draws(name: str) -> Iterator[None]:
    """Refuses a method that draws by np.random or random.

    Raises:
      ValueError: the state of one of the two has changed meanwhile. One line.
    """
    before = _generators()
    yield
    if _generators() != before:
        raise ValueError(
            f"{name!r} draws by np.random or random: its functions are traced once, so that every "
            "round and client would see the same numbers; draw by jax.random from ctx.key"
        )


def _generators() -> tuple:
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest


def twins(rows: dict[str, list[tuple]], change: float) -> dict[str, list[tuple]]:
    """Returns each bucket's rows with two uploads of one sum in place of the first two: the first
    one, more and less by this share of itself.

    Args:
      rows: bucket name -> (uplink, info) of its clients, two or more.
      change: share of each number by which the two differ from their mean, up in some entries of
        the first, down in others.
    """
    changed = {}
    for name, pairs in rows.items():
        (uplink, info), (_, second) = pairs[:2]
        twin = second._replace(num_samples=info.num_samples)
        first = _moved(uplink, change), info
        changed[name] = [first, (_moved(uplink, -change), twin), *pairs[2:]]
    return changed


def _moved(uplink: PyTree, share: float) -> PyTree:
    """Multiplies the numbers of an uplink by 1 + share and 1 - share in turn; metadata stay."""

    def moved(leaf):
        if isinstance(leaf, Metadata) or not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
            return leaf
        signs = jnp.where(jnp.arange(leaf.size).reshape(leaf.shape) % 2 == 0, 1, -1)
        return leaf * (1 + share * signs)

    return jax.tree.map(moved, uplink, is_leaf=lambda x: isinstance(x, Metadata))
