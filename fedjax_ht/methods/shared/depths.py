"""Models of several depths, each the first stages of the deepest one, and means over them."""

from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp

from fedjax_ht.core.bucket import Bucket, init_variables
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import zeros
from fedjax_ht.core.programs import influences
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.stages import stage_features, stage_widths
from fedjax_ht.core.trees import PyTree

Path = tuple[str, ...]


def flattened(tree: PyTree) -> dict[Path, Any]:
    """Returns the leaves of nested dicts by their paths."""
    leaves: dict = flax.traverse_util.flatten_dict(tree)
    return leaves


def deepest(federation: Federation) -> Bucket:
    """Returns the bucket with the most stages, of equals that of the lowest client id."""
    buckets = sorted(federation.buckets, key=federation.members)
    return max(buckets, key=lambda bucket: len(stage_widths(bucket)))


def like(tree: PyTree, form: PyTree) -> PyTree:
    """Takes the entries of nested dicts that another tree of dicts has."""
    if not isinstance(form, Mapping):
        return tree
    return {name: like(tree[name], below) for name, below in form.items()}


def require_depths(federation: Federation) -> None:
    """Checks that all models are the first stages of the deepest one.

    Raises:
      ValueError: a model notes no stages, has layers behind its last one, or differs from the
        deepest model's stages. One line.
    """
    for bucket in federation.buckets:
        if not stage_widths(bucket):
            raise ValueError(
                f"depthfl needs models in stages, and {bucket.name!r} has none; take a group such "
                "as resnet18_depths, or call fl.models.note_stage after each stage of your own"
            )
    whole = deepest(federation)
    shapes, read = extractor_shapes(whole), read_by_stage(whole)
    for bucket in federation.buckets:
        stage, here = len(stage_widths(bucket)), extractor_shapes(bucket)
        different = {path for path, shape in here.items() if shape != shapes.get(path)}
        different |= set(here) ^ read[stage - 1]
        if different:
            path = "/".join(min(different))
            raise ValueError(
                f"depthfl needs models that are the first stages of {whole.name!r}, and "
                f"{bucket.name!r} differs in base/{path} from its stages 1 to {stage}; take a "
                "group such as resnet18_depths"
            )


def extractor_shapes(bucket: Bucket) -> dict[Path, tuple[int, ...]]:
    """Returns the shapes of a feature extractor's parameters by their paths."""
    model = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    base = flattened(model["params"]["base"])
    return {path: leaf.shape for path, leaf in base.items()}


def read_by_stage(bucket: Bucket) -> list[set[Path]]:
    """Returns the paths of the extractor's parameters that the features after each stage depend
    on."""
    model = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    base = flattened(model["params"]["base"])
    x, mask = zeros(bucket.input_shape), jnp.ones(1, bool)

    def run(*leaves):
        params = {"base": flax.traverse_util.unflatten_dict(dict(zip(base, leaves)))}
        stats = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), model["stats"])
        return stage_features(bucket, params, stats, x, mask, train=False)[0]

    _, sources = influences(run, *base.values())
    paths = list(base)
    return [
        {paths[number] for number in of_stage if number in range(len(paths))}
        for of_stage in sources
    ]


def holders_mean(tree: PyTree, uploads: list[tuple[PyTree, jax.Array]]) -> tuple[PyTree, PyTree]:
    """Averages each tensor over the clients that have it; one that nobody has stays.

    Args:
      tree: nested dicts of all tensors, as they are.
      uploads: a part of the tree with a leading axis [P], and the clients' weights [P], 1 or 0, a
        pair for each bucket; rows of weight 0 are never read.

    Returns:
      The means, and the number of clients behind each, float32 scalars.
    """
    means, counts = {}, {}
    flat = [(flattened(part), weights) for part, weights in uploads]
    for path, old in flattened(tree).items():
        total, count = jnp.zeros_like(old), jnp.float32(0)
        for part, weights in flat:
            if path in part:
                total, count = total + weighted_sum(part[path], weights), count + weights.sum()
        means[path] = jnp.where(count > 0, total / jnp.maximum(count, 1), old)
        counts[path] = count
    return flax.traverse_util.unflatten_dict(means), flax.traverse_util.unflatten_dict(counts)
