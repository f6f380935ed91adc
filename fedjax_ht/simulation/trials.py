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
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import PyTree, join_trees, take


def over_trials(fn: Callable[[Any, Any], PyTree], host: bool = False) -> Callable:
    """Maps fn(one trial's part, shared) over the leading axis of its first argument, that of
    trials.

    Compiled, unless `host`: then a loop that stacks the results. One after another on CPU, as
    clients are (`lanes.choose_lanes`), else vmapped.
    """

    def loop(stacked, shared):
        results = []
        for trial in range(len(jax.tree.leaves(stacked)[0])):
            results.append(fn(of_trial(stacked, trial), shared))
        return join_trees(jnp.stack, results)

    def mapped(stacked, shared):
        def of_one_trial(part):
            return fn(part, shared)

        return each(of_one_trial, stacked)

    if host:
        return loop
    return jax.jit(mapped, compiler_options=compiler_options(jax.default_backend()))


def of_trial(tree: PyTree, trial: int) -> PyTree:
    """Takes a trial's part of a tree that is stacked over trials."""
    return take(tree, trial)


def first_server(method: Method, federation: Federation) -> Callable:
    """Returns ((seeds, settings), `all_weights` of the federation) -> server states, over trials;
    compiled."""

    def init(seed_and_settings, weights):
        seed, settings = seed_and_settings
        key = round_key(jax.random.key(seed), Purpose.INIT_SERVER, 0)
        return method.at(settings).init_server(put_all_weights(federation, weights), key)

    return over_trials(init)
