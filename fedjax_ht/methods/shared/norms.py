"""Finds a model's normalisation layers by the types of its modules, not by their names."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax.flatten_util import ravel_pytree

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.inputs import zeros
from fedjax_ht.core.trees import PyTree
from fedjax_ht.models.layers import Norm

KINDS = (Norm, nn.BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm, nn.RMSNorm)
Path = tuple[str, ...]


def is_norm(module: nn.Module) -> bool:
    """Returns True for a module of `KINDS`, and for one with batch statistics of its own."""
    statistics = module.variables.get("batch_stats", {}) if module.scope is not None else {}
    keeps = any(not isinstance(value, Mapping) for value in statistics.values())
    return keeps or isinstance(module, KINDS)


def norm_paths(bucket: Bucket) -> list[Path]:
    """Lists the paths of a model's norms in its parameters, such as ("base", "norm1")."""
    paths: dict[Path, None] = {}

    def note(next_function, args: tuple, kwargs: dict, context: Any) -> Any:
        result = next_function(*args, **kwargs)  # statistics exist once the module has run
        if is_norm(context.module):
            paths[context.module.path] = None
        return result

    def init(key):
        return bucket.module.init(key, zeros(bucket.input_shape))

    with nn.intercept_methods(note):
        jax.eval_shape(init, jax.random.key(0))
    return list(paths)


def without(tree: PyTree, paths: Iterable[Path]) -> PyTree:
    """Returns nested dicts without the subtrees at these paths."""
    kept = {}
    for name, subtree in tree.items():
        below = [path[1:] for path in paths if path[:1] == (name,)]
        if () in below:
            continue
        kept[name] = without(subtree, below) if below else subtree
    return kept


def filled_in(tree: PyTree, part: PyTree) -> PyTree:
    """Replaces the leaves of nested dicts by those of a part, such as `without` returns."""
    if not isinstance(part, Mapping):
        return part
    return dict(tree) | {name: filled_in(tree[name], below) for name, below in part.items()}


class Entries(NamedTuple):
    """The parameters of a model as vectors.

    Attributes:
      weights: float32 [W], the parameters outside norms.
      norms: float32 [N], the parameters of norms.
      model: (weights, norms) -> the parameters.
    """

    weights: jax.Array
    norms: jax.Array
    model: Callable[[jax.Array, jax.Array], PyTree]


def in_norms(bucket: Bucket, params: PyTree) -> PyTree:
    """Marks the leaves of a model's parameters that belong to norms, one bool per leaf."""
    norms = norm_paths(bucket)

    def is_in_norm(path, leaf):
        names = tuple(entry.key for entry in path)
        return any(names[: len(norm)] == norm for norm in norms)

    return jax.tree_util.tree_map_with_path(is_in_norm, params)


def entries_of(bucket: Bucket, params: PyTree) -> Entries:
    """Splits a model's parameters into those of norms and all others."""
    leaves, structure = jax.tree.flatten(params)
    flags = jax.tree.leaves(in_norms(bucket, params))
    weights, to_weights = ravel_pytree([x for x, norm in zip(leaves, flags) if not norm])
    norms, to_norms = ravel_pytree([x for x, norm in zip(leaves, flags) if norm])

    def model(weights, norms):
        rest = {False: iter(to_weights(weights)), True: iter(to_norms(norms))}
        return jax.tree.unflatten(structure, [next(rest[norm]) for norm in flags])

    return Entries(weights, norms, model)
