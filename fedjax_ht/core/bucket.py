"""A bucket, all clients of one architecture, and the functions that run its models."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.core.inputs import InputShape, zeros
from fedjax_ht.core.trees import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Bucket:
    """All clients of one architecture.

    A bucket is static and hashable: compiled functions are kept by it. It holds no client.

    Attributes:
      name: unique in the federation.
      module: a `models.SplitModel`, or any flax module with `__call__(x)`, `features(x, train,
        mask)` [B, feature_dim] and `classify(features)` [B, num_classes], whose parameters have the
        entries "base" and "head".
      input_shape: shape of one sample, such as (H, W, C), see `core.inputs.InputShape`.
      num_classes: columns of `classify`.
      feature_dim: columns of `features`.
      shared: the auxiliary model that every client may hold beside its own, as a bucket by itself
        (so that all functions below take it); None in that bucket.
      width: width rate of a sliced model, 1.0 for a whole one.
      weights: NumPy arrays that its models start from instead of random values: a part of the tree
        of `init_variables`, such as {"params": {"base"}, "stats": {"base"}}; None without. Equality
        and hash leave them out, and no program holds them as constants: compiled functions take
        them as an argument (`weights_of`).
    """

    name: str
    module: nn.Module
    input_shape: InputShape = dataclasses.field(hash=False)  # a dict has no hash
    num_classes: int
    feature_dim: int
    shared: "Bucket | None" = None
    width: float = 1.0
    weights: PyTree = dataclasses.field(default=None, compare=False, repr=False)


def make_bucket(
    name: str, module: nn.Module, input_shape: InputShape, num_classes: int
) -> tuple[Bucket, int]:
    """Makes the bucket of a module, and counts the module's parameters."""
    _check_module(name, module)
    try:
        hash(module)
    except TypeError:  # compiled programs are kept by the module
        raise ValueError(
            f"model {name!r} has no hash: give its modules tuples where they have lists"
        ) from None

    def outputs(key):
        x = zeros(input_shape)
        variables = module.init(key, x)
        batch = x, True, jnp.ones(1, bool)
        run = functools.partial(module.apply, method="features", mutable=["batch_stats"])
        features, changed = run(variables, *batch)
        if not getattr(module, "stateful", True) and _rewrites(variables, changed):
            raise ValueError(
                f"model {name!r} normalises by the batch that it sees, its padding included, and "
                "would be scored so: wrap it as SplitModel(base, head, stateful=True), whose base "
                "takes (x, train, mask)"
            )
        return variables["params"], features, module.apply(variables, features, method="classify")

    params, features, logits = jax.eval_shape(outputs, jax.random.key(0))
    if features.ndim != 2 or logits.shape != (1, num_classes):
        raise ValueError(
            f"model {name!r} returns features {features.shape} and logits {logits.shape} for one "
            f"sample; expected (1, K) and (1, {num_classes})"
        )
    if set(params) != {"base", "head"}:
        raise ValueError(
            f"model {name!r} has parameters {sorted(params)}; expected 'base' and 'head' (use "
            "SplitModel)"
        )
    size = sum(x.size for x in jax.tree.leaves(params))
    return Bucket(name, module, input_shape, num_classes, features.shape[-1]), size


def _check_module(name: str, module: Any) -> None:
    """Raises a ValueError unless a value is a Flax module with an extractor and a head."""
    kind = module if isinstance(module, type) else type(module)
    if isinstance(module, type):
        raise ValueError(
            f"model {name!r} is the class {kind.__name__}; give an instance: {kind.__name__}(...)"
        )
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"model {name!r} is a {kind.__module__}.{kind.__name__}; "
            "it must be a Flax module (flax.linen): fl.SplitModel(base, head)"
        )
    if not (hasattr(kind, "features") and hasattr(kind, "classify")):
        raise ValueError(
            f"model {name!r} is a {kind.__name__} without features and classify; "
            "wrap a feature extractor and a head: fl.SplitModel(base, head)"
        )


def _rewrites(variables: PyTree, changed: PyTree) -> bool:
    """Returns whether a traced call has changed batch statistics."""
    # Statistics that a module only reads come back as the same objects.
    before = jax.tree.leaves(variables.get("batch_stats", {}))
    after = jax.tree.leaves(changed.get("batch_stats", {}))
    return any(old is not new for old, new in zip(before, after, strict=True))


def init_variables(bucket: Bucket, key: jax.Array) -> PyTree:
    """Draws a client's first model.

    Args:
      bucket: the client's.
      key: of the random values.

    Returns:
      {"params": {"base", "head"}, "stats": batch statistics, {} where the model keeps none}. Parts
      that `Bucket.weights` has are these, others random.
    """
    variables = bucket.module.init(key, zeros(bucket.input_shape))
    model = {"params": variables["params"], "stats": variables.get("batch_stats", {})}
    return start_from(bucket.weights, model)


def start_from(weights: PyTree, variables: PyTree) -> PyTree:
    """Puts weights into variables, part by part.

    Args:
      weights: `Bucket.weights`, or None.
      variables: collection -> part -> tree, such as `init_variables` returns.

    Returns:
      The variables; a part that `weights` has with the same structure and shapes comes from there.
      Others stay: a method may give models heads of its own (FedKTL's have as many outputs as its
      ETF).
    """
    started = {}
    for collection, parts in variables.items():
        started[collection] = dict(parts)
        for part, tree in parts.items():
            stored = (weights or {}).get(collection, {}).get(part)
            if stored is not None and _form(stored) == _form(tree):
                started[collection][part] = stored
    return started


def _form(tree: PyTree) -> PyTree:
    return jax.tree.structure(tree), [x.shape for x in jax.tree.leaves(tree)]


def weights_of(bucket: Bucket | None) -> PyTree:
    """Returns the weights of a bucket and of its auxiliary model, as an argument of a program."""
    return None if bucket is None else (bucket.weights, weights_of(bucket.shared))


def put_weights(bucket: Bucket | None, weights: PyTree) -> Bucket | None:
    """Puts the result of `weights_of` back into the bucket, inside a compiled function."""
    if bucket is None:
        return None
    return dataclasses.replace(
        bucket, weights=weights[0], shared=put_weights(bucket.shared, weights[1])
    )


def features(
    bucket: Bucket,
    params: PyTree,
    stats: PyTree,
    x: jax.Array,
    mask: jax.Array,
    train: bool,
    key: jax.Array | None = None,
):
    """Runs the feature extractor.

    Args:
      bucket: the client's; its module runs.
      params, stats: one client's model.
      x: the model's input, such as images float [B, H, W, C].
      mask: bool [B], the real samples.
      train: normalise by batch statistics, and drop out where there is a key; False normalises by
        running statistics.
      key: of the module's dropout; None drops nothing.

    Returns:
      float [B, K], and the new batch statistics.
    """
    return _features(bucket.module, params, stats, x, mask, train, key)


@functools.partial(jax.jit, static_argnames=("module", "train"), inline=True)
def _features(module: nn.Module, params, stats, x, mask, train: bool, key):
    # Inlined, it leaves no call in a program; as a jit, it is traced once for a module and not at
    # every use.
    rngs = None if key is None else {"dropout": key}
    run = functools.partial(module.apply, method="features", mutable=["batch_stats"], rngs=rngs)
    out, changed = run({"params": params, "batch_stats": stats}, x, train, mask)
    return out, changed.get("batch_stats", stats)


def own_features(bucket: Bucket, client: PyTree, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Runs a client's feature extractor in evaluation mode.

    Args:
      bucket: the client's.
      client: its state, with the model as "params" and "stats".
      x: the model's input, such as images float [B, H, W, C].
      mask: bool [B], the real samples.

    Returns:
      float [B, K].
    """
    return features(bucket, client["params"], client["stats"], x, mask, train=False)[0]


def logits(bucket: Bucket, params: PyTree, representations: jax.Array) -> Array:
    """Runs the head: float [B, K] -> [B, num_classes]."""
    return bucket.module.apply({"params": params}, representations, method="classify")


def head_scores(bucket: Bucket, client: PyTree, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes a client's logits in evaluation mode, [B, num_classes]; as `own_features`."""
    return logits(bucket, client["params"], own_features(bucket, client, x, mask))


def count_parameters(bucket: Bucket) -> dict[str, int]:
    """Counts the parameters of a model's base and of its head."""
    variables = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    return {
        part: sum(x.size for x in jax.tree.leaves(tree))
        for part, tree in variables["params"].items()
    }
