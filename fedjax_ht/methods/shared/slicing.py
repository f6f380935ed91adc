"""Slices of a global model: choosing their channels, cutting them out and putting them back.

    plan:         group -> the global index of each of the slice's channels, ceil(R K) of K
        static    0, 1, ...: smaller slices lie in larger ones; HeteroFL (Diao et al., ICLR 2021)
        random    drawn for a client and a round; Federated Dropout (Caldas et al., 2018)
        rolling   t, t + 1, ... modulo K in round t; FedRolex (Alam et al., NeurIPS 2022)
    extract:      the parameters at these indices
    scatter_mean: entry by entry the weighted mean over the clients that hold it; the rest stays

All three use the description of `models.sliced`: groups of channels with their widths, and the
group along each axis of each parameter.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.trees import Array, PyTree
from fedjax_ht.models.sliced import CLASSES, sliced_width

Mode = Literal["static", "random", "rolling"]
Plan = dict[str, jax.Array]
"""Group -> int32 [m], distinct global indices of a slice's channels in the slice's order; m is
static, the values are traced."""


def require_slices(name: str, federation: Federation) -> None:
    """Checks that a federation has a global model to slice; `name` is the method's.

    Raises:
      ValueError: it has none. One line.
    """
    if federation.global_model is None:
        raise ValueError(
            f"{name} trains slices of one network; make the federation with make_sliced_federation "
            "(in a config: set model.rates)"
        )


class Slices(NamedTuple):
    """The trained slices of P clients of one width rate.

    Attributes:
      params: parameters with a leading axis [P].
      weights: float32 [P], the clients' weights in the mean; slices of weight 0 are never read.
      classes: bool [P, C], the rows of the head that count.
      plan: one plan for all clients, or with a leading axis [P] one per client.
    """

    params: PyTree
    weights: jax.Array
    classes: jax.Array
    plan: Plan


def widest_first(federation: Federation) -> list[Bucket]:
    """Sorts the buckets by width, descending.

    Sums of floats depend on the order, which must not be that of the federation.
    """
    return sorted(federation.buckets, key=lambda bucket: -bucket.width)


def make_plan(
    widths: dict[str, int], rate: float, mode: Mode, round: jax.Array, key: Array | None = None
) -> Plan:
    """Chooses the channels of a slice.

    Args:
      widths: group -> number of channels of the whole model.
      rate: width rate of the slice.
      mode: the rule that chooses channels, see the module's docstring.
      round: the number of the round, an int32 scalar; only mode "rolling" reads it.
      key: the key for drawing each group's channels in mode "random"; None for other modes.
    """

    def indices(number: int, width: int) -> jax.Array:
        kept = sliced_width(width, rate)
        if mode == "random":
            assert key is not None
            channels = jax.random.permutation(jax.random.fold_in(key, number), width)
            return channels[:kept].astype(jnp.int32)
        first = jnp.arange(kept, dtype=jnp.int32)
        return first if mode == "static" else (first + round) % width

    return {group: indices(number, width) for number, (group, width) in enumerate(widths.items())}


def extract(params: PyTree, axes: PyTree, plan: Plan) -> PyTree:
    """Cuts a slice out of a model; channels at indices past the end are 0.

    Args:
      params: the model's parameters.
      axes: the group along each of their axes, see `models.sliced.parameter_axes`.
      plan: the slice's channels.
    """

    def cut(leaf, names):
        for axis, group in enumerate(names):
            if group in plan:
                leaf = jnp.take(leaf, plan[group], axis=axis, mode="fill", fill_value=0)
        return leaf

    return jax.tree.map(cut, params, axes)


def spread(part: PyTree, axes: PyTree, plan: Plan, widths: dict[str, int]) -> PyTree:
    """Writes a slice into a model of zeros; inverts `extract`.

    Args:
      part: the slice's parameters.
      axes, plan: arguments as for `extract`.
      widths: group -> number of channels of the whole model.
    """
    places = {group: _places(indices, widths[group]) for group, indices in plan.items()}
    return extract(part, axes, places)


def first_channels(params: PyTree, axes: PyTree, widths: dict[str, int], rate: float) -> PyTree:
    """Cuts out the first channels of every group, the slice of a width rate.

    Args:
      params: the parameters of the model, or of a slice that is at least as wide.
      axes: the group along each of their axes, see `models.sliced.parameter_axes`.
      widths: group -> number of channels of the whole model.
      rate: width rate of the slice.
    """

    def cut(leaf, names):
        # static ends: the gradient is padded with zeros, whereas a gather's is a scatter
        ends = [sliced_width(widths[name], rate) if name in widths else None for name in names]
        return leaf[tuple(map(slice, ends))]

    return jax.tree.map(cut, params, axes)


def scatter_mean(
    params: PyTree, axes: PyTree, widths: dict[str, int], slices: Sequence[Slices]
) -> PyTree:
    """Sets each entry to the weighted mean over the clients that hold it; others stay.

    In the head, a client holds only the rows of its `classes`. Clients that share a plan are summed
    before they are put in place. Others are put in place one by one, so that memory holds two
    global models whatever the number of clients. Sums follow the order of `slices`.

    Args:
      params: the global model.
      axes: the group along each axis of its parameters.
      widths: group -> its number of channels.
      slices: one entry for each width rate.

    Returns:
      The new global model.
    """

    def no_weight(leaf, names):
        return jnp.zeros(_held_shape(leaf, names))

    def add_one(total, client):  # one client, with a client axis of length 1
        part = Slices(*client)
        part = part._replace(
            params=jax.tree.map(lambda x: x[None], part.params),
            weights=part.weights[None],
            classes=part.classes[None],
        )
        return _add(total, axes, widths, part), None

    def mean(old, num, den):
        # Entries that no client holds are not divided by 0: jax_debug_nans would report them.
        return jnp.where(den > 0, num / jnp.where(den > 0, den, 1), old)

    total = jax.tree.map(jnp.zeros_like, params), jax.tree.map(no_weight, params, axes)
    for part in slices:
        if jax.tree.leaves(part.plan)[0].ndim == 1:
            total = _add(total, axes, widths, part)
        else:
            total, _ = lax.scan(add_one, total, tuple(part))
    return jax.tree.map(mean, params, *total)


def _held_shape(leaf: jax.Array, names: tuple[str | None, ...]) -> tuple[int, ...]:
    """Returns the shape of a leaf's sums of weights: axes that are never cut have length 1."""
    return tuple(size if name else 1 for size, name in zip(leaf.shape, names))


def _add(
    total: tuple[PyTree, PyTree], axes: PyTree, widths: dict[str, int], part: Slices
) -> tuple[PyTree, PyTree]:
    """Adds slices of one plan to the sums of weighted entries and to those of weights."""
    place = {group: _places(indices, widths[group]) for group, indices in part.plan.items()}

    def along(x, names, group) -> jax.Array:
        return x.reshape([-1 if name == group else 1 for name in names])

    def add(num, den, values, names):
        weight = part.weights.reshape(-1, *(1,) * len(names))
        if CLASSES in names:
            rows = jax.vmap(lambda row: along(row, names, CLASSES))(part.classes)
            weight = jnp.where(rows, weight, 0)
        sums = weighted_sum(values, weight)
        held = weight.sum(0)
        for axis, group in enumerate(names):
            if group in place:
                # A gather by the inverse plan, not a scatter: XLA's scatter on CPU is sequential,
                # entry by entry.
                sums = jnp.take(sums, place[group], axis=axis, mode="fill", fill_value=0)
                held = held * along(place[group] < part.plan[group].shape[0], names, group)
        return num + sums, den + held

    pairs = jax.tree.map(add, *total, part.params, axes)
    return jax.tree.transpose(jax.tree.structure(total[0]), jax.tree.structure((0, 0)), pairs)


def _places(indices: jax.Array, width: int) -> jax.Array:
    """Inverts a plan: int32 [width], each global channel's position in the slice.

    Channels that the slice lacks have positions past its end.
    """
    missing = jnp.full(width, indices.shape[0], jnp.int32)
    return missing.at[indices].set(
        jnp.arange(indices.shape[0], dtype=jnp.int32), unique_indices=True
    )
