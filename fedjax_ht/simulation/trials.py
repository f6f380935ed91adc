"""Trials as an axis: several seeds of one experiment in one program, each with a server and clients
of its own.

Clients of all trials share the rows of a bucket; what happens once per trial is mapped here.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_ht.core.compiling import compiler_options
from fedjax_ht.core.executor import each
from fedjax_ht.core.federation import Federation, put_all_weights
from fedjax_ht.core.keys import Purpose, round_key
from fedjax_ht.core.method import Method, PyTree


def over_trials(fn: Callable[[Any, Any], PyTree], host: bool = False) -> Callable:
    """Maps fn(own, shared) over the leading axis of `own`, that of trials.

    Compiled, unless `host`: then a loop that stacks the results. One after another on CPU, as
    clients are (`lanes.choose_lanes`), else vmapped.
    """

    def loop(own, shared):
        trials = range(len(jax.tree.leaves(own)[0]))
        return jax.tree.map(
            lambda *xs: jnp.stack(xs), *(fn(of_trial(own, t), shared) for t in trials)
        )

    def mapped(own, shared):
        return each(lambda one: fn(one, shared), own)

    return (
        loop if host else jax.jit(mapped, compiler_options=compiler_options(jax.default_backend()))
    )


def of_trial(tree: PyTree, trial: int) -> PyTree:
    """A trial's part of what is stacked over them."""
    return jax.tree.map(lambda x: x[trial], tree)


def first_server(method: Method, federation: Federation) -> Callable:
    """((seeds, settings), `all_weights` of the federation) -> server state."""

    def one(own, weights):
        (seed, settings), given = own, put_all_weights(federation, weights)
        return method.at(settings).init_server(
            given, round_key(jax.random.key(seed), Purpose.INIT_SERVER, 0)
        )

    return over_trials(one)
