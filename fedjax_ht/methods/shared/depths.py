"""Models of several depths: each the first stages of the deepest one."""

from collections.abc import Mapping

import flax.traverse_util
import jax
import jax.numpy as jnp

from fedjax_ht.core.bucket import Bucket, init_variables
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import zeros
from fedjax_ht.core.programs import influences
from fedjax_ht.core.stages import stage_features, stage_widths
from fedjax_ht.core.trees import PyTree

Path = tuple[str, ...]


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
        own = extractor_shapes(bucket)
        stage = len(stage_widths(bucket))
        different = {path for path in own | shapes if path in own and own[path] != shapes.get(path)}
        different |= set(own) ^ read[stage - 1]
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
    base = flax.traverse_util.flatten_dict(model["params"]["base"])
    return {path: leaf.shape for path, leaf in base.items()}


def read_by_stage(bucket: Bucket) -> list[set[Path]]:
    """Returns the paths of the extractor's parameters that the features after each stage depend
    on."""
    model = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    base = flax.traverse_util.flatten_dict(model["params"]["base"])
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
