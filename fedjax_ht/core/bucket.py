"""A bucket (all clients of one architecture) and the functions that run its models."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Bool, Float, Key

from fedjax_ht.core.inputs import InputShape, zeros
from fedjax_ht.core.module_checks import FROZEN, STREAM, check_module, keep_all, traced
from fedjax_ht.core.task import CLASSIFICATION, Task
from fedjax_ht.core.trees import Array, PyTree, zeros_of


@dataclasses.dataclass(frozen=True)
class Bucket:
    """All clients of one architecture.

    A bucket is static and hashable, so that it can key compiled functions. It contains no clients.

    Attributes:
      name: the architecture's name, unique in the federation.
      module: a `models.SplitModel`, or any flax module with `__call__(x)`, `features(x, train,
        mask)` [B, feature_dim] and `classify(features)` [B, num_classes], whose parameters have the
        entries "base" and "head".
      input_shape: shape of one sample, such as (H, W, C), see `core.inputs.InputShape`.
      num_classes: columns of `classify`, the outputs of its task.
      feature_dim: columns of `features`.
      shared: the auxiliary model that every client may hold besides its own. It is a separate
        bucket, so that all functions below accept it; None in that bucket.
      width: width rate of a sliced model, 1.0 for a whole one.
      task: the meaning of the outputs.
      draws, flat_norms, freezes: results of tracing the module, see `module_checks.Traced`.
      weights: initial values of its models, as NumPy arrays: a subtree of `init_variables`, such as
        {"params": {"base"}, "stats": {"base"}}; None for random values. Equality and hash ignore
        them. Compiled functions take them as an argument, not as constants (`weights_of`). The
        entry "frozen" has the module's non-trainable variables, one copy for all clients
        (`with_frozen`).
    """

    name: str
    module: nn.Module
    input_shape: InputShape = dataclasses.field(hash=False)  # a dict has no hash
    num_classes: int
    feature_dim: int
    shared: "Bucket | None" = None
    width: float = 1.0
    draws: bool = False
    flat_norms: tuple[str, ...] = ()
    freezes: bool = False
    task: Task = CLASSIFICATION
    weights: PyTree = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def auxiliary(self) -> "Bucket":
        """The auxiliary model, which every bucket of clients has."""
        assert self.shared is not None  # only the auxiliary model has none
        return self.shared


def make_bucket(
    name: str,
    module: Any,
    input_shape: InputShape,
    num_classes: int,
    task: Task = CLASSIFICATION,
) -> tuple[Bucket, int]:
    """Checks a module, and returns its bucket and its number of parameters."""
    check_module(name, module)
    trace = traced(name, module, input_shape)
    features, logits = trace.features, trace.logits
    if features.ndim != 2 or logits.shape != (1, num_classes):
        raise ValueError(
            f"model {name!r} returns features {features.shape} and logits {logits.shape} for one "
            f"sample; expected (1, K) and (1, {num_classes})"
        )
    size = sum(x.size for x in jax.tree.leaves(trace.params))
    bucket = Bucket(
        name,
        module,
        input_shape,
        num_classes,
        feature_dim=features.shape[-1],
        draws=trace.draws,
        flat_norms=trace.flat_norms,
        freezes=trace.freezes,
        task=task,
    )
    return bucket, size


def init_variables(bucket: Bucket, key: Key[Array, ""]) -> PyTree:
    """Initialises a client's model.

    Args:
      bucket: the client's bucket.
      key: key of the random values.

    Returns:
      {"params": {"base", "head"}, "stats": batch statistics, {} if the model has none}. Parts in
      `Bucket.weights` are copied from there; the others are random.
    """
    variables = bucket.module.init(key, zeros(bucket.input_shape))
    model = {"params": variables["params"], "stats": variables.get("batch_stats", {})}
    return start_from(bucket.weights, model)


def model_form(bucket: Bucket) -> PyTree:
    """Returns the shapes and dtypes of `init_variables`."""
    return jax.eval_shape(functools.partial(init_variables, bucket), jax.random.key(0))


def start_from(weights: PyTree, variables: PyTree) -> PyTree:
    """Replaces parts of variables by weights.

    Args:
      weights: `Bucket.weights`, or None.
      variables: collection -> part -> tree, such as `init_variables` returns.

    Returns:
      The variables, in which each part that `weights` has with the same structure and shapes is
      replaced. Other parts stay: a method may replace the heads (FedKTL's have as many outputs as
      its ETF).
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
    """Returns the weights of a bucket and its auxiliary model, as an argument of a program."""
    return None if bucket is None else (bucket.weights, weights_of(bucket.shared))


def put_weights(bucket: Bucket, weights: PyTree) -> Bucket:
    """Puts the result of `weights_of` back into the bucket, inside a compiled function."""
    of_bucket, of_shared = weights
    shared = None if bucket.shared is None else put_weights(bucket.shared, of_shared)
    return dataclasses.replace(bucket, weights=of_bucket, shared=shared)


def with_frozen(bucket: Bucket) -> Bucket:
    """Draws the frozen variables of a bucket and its auxiliary model that the weights lack.

    The key is fixed, the same for all clients, seeds and processes. A bucket whose module has no
    frozen variables is returned unchanged.
    """
    if bucket.shared is not None:
        bucket = dataclasses.replace(bucket, shared=with_frozen(bucket.shared))
    if not bucket.freezes or FROZEN in (bucket.weights or {}):
        return bucket
    drawn = jax.jit(functools.partial(_init_frozen, bucket))(jax.random.key(0))
    return _put_frozen(bucket, jax.tree.map(np.asarray, drawn))


def frozen_form(bucket: Bucket) -> PyTree:
    """Returns the shapes and dtypes of a module's frozen variables; {} if it has none."""
    if not bucket.freezes:
        return {}
    return jax.eval_shape(functools.partial(_init_frozen, bucket), jax.random.key(0))


def traceable(bucket: Bucket) -> Bucket:
    """Sets the frozen variables of a bucket and its auxiliary model to zeros.

    For traces of programs that are inspected and never run.
    """
    if bucket.shared is not None:
        bucket = dataclasses.replace(bucket, shared=traceable(bucket.shared))
    if not bucket.freezes:
        return bucket
    form = frozen_form(bucket)
    return _put_frozen(bucket, zeros_of(form))


def _init_frozen(bucket: Bucket, key: Key[Array, ""]) -> PyTree:
    return bucket.module.init(key, zeros(bucket.input_shape))[FROZEN]


def frozen_of(bucket: Bucket | None) -> PyTree:
    """Returns the frozen variables of a bucket and its auxiliary model, {} if a module has none.

    They are an argument of a program.
    """
    if bucket is None:
        return None
    return (bucket.weights or {}).get(FROZEN, {}), frozen_of(bucket.shared)


def put_frozen(bucket: Bucket, frozen: PyTree) -> Bucket:
    """Puts the result of `frozen_of` back into the bucket, inside a compiled function."""
    of_bucket, of_shared = frozen
    if bucket.shared is not None:
        bucket = dataclasses.replace(bucket, shared=put_frozen(bucket.shared, of_shared))
    return _put_frozen(bucket, of_bucket) if of_bucket else bucket


def frozen_collection(bucket: Bucket) -> PyTree:
    """Returns {"frozen": frozen variables}, to apply a bucket's module with; {} if it has none."""
    weights = bucket.weights or {}
    return {FROZEN: weights[FROZEN]} if FROZEN in weights else {}


def _put_frozen(bucket: Bucket, frozen: PyTree) -> Bucket:
    return dataclasses.replace(bucket, weights=(bucket.weights or {}) | {FROZEN: frozen})


def features(
    bucket: Bucket,
    params: PyTree,
    stats: PyTree,
    x: PyTree,
    mask: Bool[Array, " B"],
    *,
    train: bool,
    key: Key[Array, ""] | None = None,
) -> tuple[Float[Array, "B K"], PyTree]:
    """Runs the feature extractor; returns its features and the new batch statistics.

    Args:
      bucket: the client's bucket.
      params, stats: parameters and batch statistics of one client's model.
      x: the model's input, such as images float [B, H, W, C].
      mask: bool [B], True for real samples.
      train: True normalises by batch statistics, and applies dropout if there is a key; False
        normalises by running statistics.
      key: the key of the module's dropout; None disables dropout.
    """
    out, changed = run_features(
        bucket, params, stats, x, mask, train=train, key=key, mutable=("batch_stats",)
    )
    return out, changed.get("batch_stats", stats)


def counting_key(bucket: Bucket) -> Key[Array, ""] | None:
    """Returns a key for training traces that are counted and not run.

    None disables dropout. It suits all modules except those that draw by more than nn.Dropout.
    """
    return jax.random.key(0) if bucket.draws else None


def run_features(
    bucket: Bucket,
    params: PyTree,
    stats: PyTree,
    x: PyTree,
    mask: Bool[Array, " B"],
    *,
    train: bool,
    key: Key[Array, ""] | None,
    mutable: tuple[str, ...],
) -> tuple[Float[Array, "B K"], PyTree]:
    """Runs the feature extractor; returns its features and the collections that it changed.

    Args:
      bucket, params, stats, x, mask, train, key: arguments as for `features`.
      mutable: names of the collections that it may change.
    """
    frozen = frozen_collection(bucket)
    return _run(bucket.module, mutable, params, stats, frozen, x, mask, train=train, key=key)


@functools.partial(jax.jit, static_argnames=("module", "mutable", "train"), inline=True)
def _run(module, mutable, params, stats, frozen, x, mask, *, train: bool, key):
    # jit traces the module once instead of at every use; inlining leaves no call in the program.
    run = functools.partial(module.apply, method="features", mutable=list(mutable))
    variables = {"params": params, "batch_stats": stats} | frozen
    if key is None:
        with nn.intercept_methods(keep_all):
            return run(variables, x, train, mask)
    return run(variables, x, train, mask, rngs={STREAM: key})


def own_features(
    bucket: Bucket, client: PyTree, x: PyTree, mask: Bool[Array, " B"]
) -> Float[Array, "B K"]:
    """Runs a client's feature extractor in evaluation mode: float [B, K].

    Args:
      bucket: the client's bucket.
      client: the client's state, with the model as "params" and "stats".
      x: the model's input, such as images float [B, H, W, C].
      mask: bool [B], True for real samples.
    """
    return features(bucket, client["params"], client["stats"], x, mask, train=False)[0]


def logits(
    bucket: Bucket, params: PyTree, representations: Float[Array, "B K"]
) -> Float[Array, "B C"]:
    """Runs the head: float [B, K] -> [B, num_classes]."""
    variables = {"params": params} | frozen_collection(bucket)
    scores: PyTree = bucket.module.apply(variables, representations, method="classify")
    return scores


def head_scores(
    bucket: Bucket, client: PyTree, x: PyTree, mask: Bool[Array, " B"]
) -> Float[Array, "B C"]:
    """Computes a client's logits [B, num_classes] in evaluation mode; see `own_features`."""
    return logits(bucket, client["params"], own_features(bucket, client, x, mask))
