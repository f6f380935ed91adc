"""Trials as an axis: several seeds of one experiment in one program, each with a server and clients of its own.

Clients of all trials share the rows of a bucket; what happens once per trial is mapped here.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_ht.core.compiling import compiler_options
from fedjax_ht.core.executor import each
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose, round_key
from fedjax_ht.core.method import ClientInfo, Method, PyTree, Received
from fedjax_ht.core.round import Channel, downlink_costs, server_round


def over_trials(fn: Callable[[Any, Any], PyTree], trials: int | None, host: bool = False) -> Callable:
    """Maps fn(own, shared) over the leading axis of `own`; without trials it takes `own` as it is.

    Compiled, unless `host`: then a loop that stacks the results. One after another on CPU, as clients are
    (`lanes.choose_lanes`), else vmapped.
    """
    compiled = functools.partial(jax.jit, compiler_options=compiler_options(jax.default_backend()))
    if trials is None:
        return fn if host else compiled(fn)
    if host:

        def loop(own, shared):
            found = [fn(jax.tree.map(lambda x, t=t: x[t], own), shared) for t in range(trials)]
            return jax.tree.map(lambda *xs: jnp.stack(xs), *found)

        return loop
    return compiled(lambda own, shared: each(lambda one: fn(one, shared), own))


def first_server(method: Method, federation: Federation, trials: int | None) -> Callable:
    """(seeds, ()) -> server state."""
    return over_trials(
        lambda seed, _: method.init_server(federation, round_key(jax.random.key(seed), Purpose.INIT_SERVER, 0)), trials
    )


def serve(method: Method, federation: Federation, trials: int | None) -> Callable:
    """((server, seeds, rows, splits), ({bucket: Received}, round, Method.frozen, images)) -> (server, metrics).

    `rows` are {bucket: int32 [m]}, a trial's rows in what was received, negative for padding; {} takes all of it.
    `splits` and `images`, a `Data` without splits, make up `Context.data`; {} and () of methods that do not see it.
    """
    step = server_round(method, federation)

    def one(own, shared):
        (server, seed, rows, splits), (received, round, frozen, images) = own, shared
        mine = {name: pick(r, rows[name]) if rows else r for name, r in received.items()}
        data = images._replace(splits=splits) if splits else None
        return step(server, mine, jax.random.key(seed), round, frozen, data)

    return over_trials(one, trials, method.host_server)


def pick(received: Received, rows: jax.Array) -> Received:
    """Some rows; a negative one has not arrived."""
    mine = jax.tree.map(lambda x: x[jnp.maximum(rows, 0)], received)
    return mine._replace(arrived=mine.arrived & (rows >= 0))


def charge_all(method: Method, federation: Federation, channel: Channel, trials: int | None) -> Callable:
    """((server, seeds, ClientInfo [num_clients]), round) -> WireCost [num_clients] of a downlink to everyone."""
    costs = downlink_costs(method, federation, channel)

    def one(own: tuple[PyTree, jax.Array, ClientInfo], round):
        server, seed, infos = own
        return costs(server, infos, jax.random.key(seed), round)

    return over_trials(one, trials)
