"""Gradient corrections: terms added to gradients before clipping and the optimiser's step.

An example is the gradient of a pull towards the server's model.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.options import traced
from fedjax_ht.core.local_training import LocalTraining, descend
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree

LARGE = 1e6
"""A gradient above every clipping norm in use."""


def corrected(
    optimizer: optax.GradientTransformation, correction: Callable[[PyTree], PyTree]
) -> optax.GradientTransformation:
    """Adds a correction to every gradient before the optimizer.

    The reported training loss is then the task's alone.

    Args:
      optimizer: takes the step.
      correction: (parameters) -> their correction, of the same structure.
    """

    def add(gradients: PyTree, params: PyTree = None) -> PyTree:
        return jax.tree.map(jnp.add, gradients, correction(params))

    return optax.chain(optax.stateless(add), optimizer)


def train_corrected(
    training: LocalTraining, correction: Callable[[PyTree], PyTree]
) -> LocalTraining:
    """Returns the recipe with `corrected` gradients."""
    return dataclasses.replace(training, optimizer=corrected(training.optimizer, correction))


def pull(strength: float, anchor: PyTree) -> Callable[[PyTree], PyTree]:
    """Makes the gradient of (strength / 2) |w - anchor|^2 in w, a correction."""

    def correction(params: PyTree) -> PyTree:
        return jax.tree.map(lambda w, a: strength * (w - a), params, anchor)

    return correction


def dynamic_pull(strength: float, anchor: PyTree, slope: PyTree) -> Callable[[PyTree], PyTree]:
    """Makes FedDyn's correction strength (w - anchor) - slope (Acar et al., ICLR 2021)."""

    def correction(params: PyTree) -> PyTree:
        return jax.tree.map(lambda w, a, s: strength * (w - a) - s, params, anchor, slope)

    return correction


def in_unit_interval(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Wraps an optimizer so that each step clips the parameters to [0, 1].

    A schedule's factor is behind the clip; above 1 it may leave the interval by a step.
    """

    def update(updates, state, params=None):
        updates, state = optimizer.update(updates, state, params)
        return jax.tree.map(lambda p, u: jnp.clip(p + u, 0, 1) - p, params, updates), state

    return optax.GradientTransformation(optimizer.init, update)


def learning_rate(training: LocalTraining, data: Data) -> jax.Array:
    """Computes the learning rate of plain SGD in round `data.round`, a float32 scalar."""
    gradient, weight = jnp.float32(1), jnp.float32(0)
    state = training.optimizer.init(weight)
    return -descend(training, data, gradient, state, weight)[0]


def require_plain_sgd(name: str, training: LocalTraining) -> None:
    """Raises a ValueError unless the optimizer is SGD without momentum, decay and clipping.

    Args:
      name: name of the method; it infers gradients from a client's update and learning rate.
      training: the recipe.
    """
    reason = _not_plain(training.optimizer)
    if reason is not None:
        raise ValueError(
            f"the optimizer {reason}; {name} needs plain SGD, to infer gradients from a client's "
            "update: set training.optimizer='sgd', momentum=0, "
            "weight_decay=0 and clip_norm=0"
        )


def _not_plain(optimizer: optax.GradientTransformation) -> str | None:
    """Describes what an optimizer does besides plain gradient steps; None if nothing."""
    weight = jnp.float32(1)
    state = optimizer.init(weight)
    if jax.tree.leaves(state):
        return "keeps a state, such as momentum or a count of steps"

    def way(gradient: float) -> Any:
        return optimizer.update(jnp.float32(gradient), state, weight)[0]

    decay, step, long_step = way(0), way(1), way(LARGE)
    if any(map(traced, (decay, step, long_step))):
        return None  # traced hyperparameters were checked where they were chosen
    if decay != 0:
        return "decays weights"
    if abs(long_step) < 0.99 * LARGE * abs(step):
        return "does not scale with the gradient, for example because of clipping"
    return None
