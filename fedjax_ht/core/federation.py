"""A federation: architecture buckets, and which client lives in which."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.core.inputs import InputShape, plain, zeros

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Bucket:
    """All clients of one architecture. Static and hashable: it names a compiled function, and knows
    no client.

    Attributes:
      name: unique in the federation.
      module: a `models.SplitModel`, or any flax module with `__call__(x)`, `features(x, train,
        mask)` [B, feature_dim] and `classify(features)` [B, num_classes], whose parameters have the
        entries "base" and "head".
      input_shape: of one sample, such as (H, W, C), see `core.inputs.InputShape`.
      num_classes, feature_dim: what `classify` and `features` return.
      shared: the auxiliary model that every client may hold beside its own, as a bucket of its own
        (so that all functions below take it); None in that bucket itself.
      width: width rate of a sliced model, 1.0 for a whole one.
      weights: what its models start from instead of random values, NumPy arrays: a part of what
        `init_variables` returns, such as {"params": {"base"}, "stats": {"base"}}; None where there
        is nothing. They name no function and stand in none as constants: what compiles takes them
        as an argument (`weights_of`).
    """

    name: str
    module: nn.Module
    input_shape: InputShape = dataclasses.field(hash=False)  # a dict has no hash
    num_classes: int
    feature_dim: int
    shared: "Bucket | None" = None
    width: float = 1.0
    weights: PyTree = dataclasses.field(default=None, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Federation:
    """The buckets in order, and per client its bucket. Client ids run from 0 to num_clients - 1.

    Attributes:
      buckets: the architectures in use.
      assignment: position i is the index in `buckets` of client i.
      num_classes: classes of the task.
      global_model: a model that only the server holds, as a bucket without clients, or None.
    """

    buckets: tuple[Bucket, ...]
    assignment: tuple[int, ...]
    num_classes: int
    global_model: Bucket | None = None

    @property
    def num_clients(self) -> int:
        return len(self.assignment)

    def members(self, bucket: Bucket) -> tuple[int, ...]:
        """Client ids of a bucket, ascending."""
        index = self.buckets.index(bucket)
        return tuple(i for i, b in enumerate(self.assignment) if b == index)

    @property
    def shared(self) -> Bucket:
        """The auxiliary model of all buckets."""
        return self.buckets[0].shared

    @property
    def feature_dim(self) -> int:
        """The feature width that all buckets share; ValueError where they do not share one."""
        dims = {b.name: b.feature_dim for b in self.buckets}
        if len(set(dims.values())) != 1:
            raise ValueError(
                f"all models must have one feature width, got {dims}; set one feature_dim for the "
                "group"
            )
        return self.buckets[0].feature_dim


def make_federation(
    modules: dict[str, nn.Module],
    input_shape: InputShape,
    num_classes: int,
    num_clients: int | None = None,
    assignment: Sequence[str] | None = None,
    shared: nn.Module | None = None,
    **options,
) -> Federation:
    """Builds a federation from modules by name; a user's own modules need no registry.

    Args:
      modules: name -> module (see `Bucket.module`).
      input_shape: `Dataset.input_shape`: of one sample as a model sees it, such as (H, W, C).
      num_classes: classes of the task.
      num_clients: with it, client i takes module i mod len(modules), as the papers deal them out.
      assignment: the module's name for each client, instead of `num_clients`.
      shared: the auxiliary model, used only by methods that train one beside the client's own; None
        takes the module with the fewest parameters, the first of equals.
      **options: further fields of `Federation`.

    Raises:
      ValueError: a module does not return [B, features] and [B, num_classes], or has no hash; or
        the assignment names no module.
    """
    if (num_clients is None) == (assignment is None):
        raise ValueError("give either num_clients or assignment, not both or neither")
    names = list(modules)
    if (
        not names
        or (num_clients is not None and num_clients < 1)
        or (assignment is not None and not len(assignment))
    ):
        raise ValueError(
            f"a federation needs a model and a client, got {len(names)} models and {num_clients=}"
        )
    if assignment is None:
        assignment = [names[i % len(names)] for i in range(num_clients)]
    if unknown := sorted(set(assignment) - set(names)):
        raise ValueError(f"assignment names {unknown[0]!r}, but the modules are {', '.join(names)}")
    task = plain(input_shape), num_classes
    group = {name: _bucket(name, module, *task) for name, module in modules.items()}
    if shared is None:
        auxiliary, _ = min(group.values(), key=lambda entry: entry[1])
    else:
        auxiliary, _ = _bucket("shared", shared, *task)
    used = [name for name in names if name in set(assignment)]  # no bucket without clients
    buckets = tuple(dataclasses.replace(group[name][0], shared=auxiliary) for name in used)
    return Federation(
        buckets, tuple(used.index(name) for name in assignment), num_classes, **options
    )


def make_sliced_federation(
    network: Callable[[float], nn.Module],
    rates: Sequence[float],
    input_shape: InputShape,
    num_classes: int,
) -> Federation:
    """A federation whose clients train slices of one network: one bucket a width rate, widest
    first.

    Args:
      network: (rate) -> a module as in `Bucket.module`, such as `models.sliced_network` returns;
        network(1.0) is what the server holds, `Federation.global_model`.
      rates: client i has width rate rates[i], above 0 and at most 1; it is its bucket's `width`.
      input_shape, num_classes: as in `make_federation`.

    Raises:
      ValueError: there is no client, or a rate is out of range.
    """
    for i, rate in enumerate(rates):
        if not 0 < rate <= 1:
            raise ValueError(
                f"the width rate of client {i} is {rate}; it must be above 0 and at most 1"
            )
    names = {float(rate): f"rate{float(rate)}" for rate in sorted(set(rates), reverse=True)}
    modules = {name: network(rate) for rate, name in names.items()}
    assignment = [names[float(rate)] for rate in rates]
    federation = make_federation(modules, input_shape, num_classes, assignment=assignment)
    buckets = tuple(
        dataclasses.replace(b, width=rate) for b, rate in zip(federation.buckets, names)
    )
    whole, _ = _bucket("global", network(1.0), plain(input_shape), num_classes)
    return dataclasses.replace(federation, buckets=buckets, global_model=whole)


def _bucket(
    name: str, module: nn.Module, input_shape: InputShape, num_classes: int
) -> tuple[Bucket, int]:
    """The bucket of a module, and its number of parameters."""
    _check_module(name, module)
    try:
        hash(module)
    except TypeError:  # jax keeps compiled programs by it
        raise ValueError(
            f"model {name!r} has no hash: give its modules tuples where they have lists"
        ) from None

    def outputs(key):
        x = zeros(input_shape)
        variables = module.init(key, x)
        seen = x, True, jnp.ones(1, bool)
        features, changed = module.apply(
            variables, *seen, method="features", mutable=["batch_stats"]
        )
        if not getattr(module, "stateful", True) and _rewrites(variables, changed):
            raise ValueError(
                f"model {name!r} normalises by the batch that it sees, its padding included, and "
                "would be "
                "scored so: wrap it as SplitModel(base, head, stateful=True), whose base takes "
                "(x, train, mask)"
            )
        return variables["params"], features, module.apply(variables, features, method="classify")

    params, features, logits = jax.eval_shape(outputs, jax.random.key(0))
    if features.ndim != 2 or logits.shape != (1, num_classes):
        raise ValueError(
            f"model {name!r} returns features {features.shape} and logits {logits.shape} for one "
            "sample; "
            f"expected (1, K) and (1, {num_classes})"
        )
    if set(params) != {"base", "head"}:
        raise ValueError(
            f"model {name!r} has parameters {sorted(params)}; expected 'base' and 'head' (use "
            "SplitModel)"
        )
    size = sum(x.size for x in jax.tree.leaves(params))
    return Bucket(name, module, input_shape, num_classes, features.shape[-1]), size


def _check_module(name: str, module: Any) -> None:
    """Refuses what is no Flax module with an extractor and a head, in one line."""
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
    # Those that a module only reads come back as the same objects.
    before, after = (jax.tree.leaves(tree.get("batch_stats", {})) for tree in (variables, changed))
    return any(old is not new for old, new in zip(before, after, strict=True))


def init_variables(bucket: Bucket, key: jax.Array) -> PyTree:
    """A client's model: {"params": {"base", "head"}, "stats": batch statistics, {} where the model
    keeps none}. It has the bucket's weights where there are any, and is random elsewhere."""
    variables = bucket.module.init(key, zeros(bucket.input_shape))
    return start_from(
        bucket.weights, {"params": variables["params"], "stats": variables.get("batch_stats", {})}
    )


def start_from(weights: PyTree, variables: PyTree) -> PyTree:
    """Variables with those parts (`variables[collection][part]`) that `weights` has in the same
    form. A method may give models heads of its own (FedKTL's has as many outputs as its ETF): those
    stay as they are."""

    def chosen(collection: str, part: str, tree: PyTree) -> PyTree:
        given = (weights or {}).get(collection, {}).get(part)
        return given if given is not None and _form(given) == _form(tree) else tree

    return {
        c: {part: chosen(c, part, tree) for part, tree in parts.items()}
        for c, parts in variables.items()
    }


def _form(tree: PyTree) -> PyTree:
    return jax.tree.structure(tree), [x.shape for x in jax.tree.leaves(tree)]


def weights_of(bucket: Bucket | None) -> PyTree:
    """The weights of a bucket and of its auxiliary model, to be handed to a compiled function."""
    return None if bucket is None else (bucket.weights, weights_of(bucket.shared))


def put_weights(bucket: Bucket | None, weights: PyTree) -> Bucket | None:
    """The bucket with what `weights_of` gave, inside of that function."""
    if bucket is None:
        return None
    return dataclasses.replace(
        bucket, weights=weights[0], shared=put_weights(bucket.shared, weights[1])
    )


def all_weights(federation: Federation) -> PyTree:
    """As `weights_of`, of all buckets and the global model."""
    return [weights_of(bucket) for bucket in (*federation.buckets, federation.global_model)]


def put_all_weights(federation: Federation, weights: PyTree) -> Federation:
    """As `put_weights`, with what `all_weights` gave."""
    *buckets, whole = map(put_weights, (*federation.buckets, federation.global_model), weights)
    return dataclasses.replace(federation, buckets=tuple(buckets), global_model=whole)


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
      bucket: whose module.
      params, stats: of one client's model.
      x: what a model sees, such as images float [B, H, W, C].
      mask: bool [B], the real samples.
      train: by batch statistics, and with dropout where there is a key; else by running statistics.
      key: of the module's dropout; None drops nothing.

    Returns:
      float [B, K], and the new batch statistics.
    """
    return _features(bucket.module, params, stats, x, mask, train, key)


@functools.partial(jax.jit, static_argnames=("module", "train"), inline=True)
def _features(module: nn.Module, params, stats, x, mask, train: bool, key):
    # Inlined, it leaves no call in a program; being a jit, it is traced once a module and not once
    # a use.
    rngs = None if key is None else {"dropout": key}
    run = functools.partial(module.apply, method="features", mutable=["batch_stats"], rngs=rngs)
    out, changed = run({"params": params, "batch_stats": stats}, x, train, mask)
    return out, changed.get("batch_stats", stats)


def own_features(bucket: Bucket, client: PyTree, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Features in evaluation mode, float [B, K], of a client whose state has its model as "params"
    and "stats"."""
    return features(bucket, client["params"], client["stats"], x, mask, train=False)[0]


def logits(bucket: Bucket, params: PyTree, representations: jax.Array) -> jax.Array:
    """Runs the head: float [B, K] -> [B, num_classes]."""
    return bucket.module.apply({"params": params}, representations, method="classify")


def head_scores(bucket: Bucket, client: PyTree, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Logits in evaluation mode, float [B, num_classes], of a client as of `own_features`."""
    return logits(bucket, client["params"], own_features(bucket, client, x, mask))


def count_parameters(bucket: Bucket) -> dict[str, int]:
    """Parameters of the base and of the head."""
    variables = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    return {
        part: sum(x.size for x in jax.tree.leaves(tree))
        for part, tree in variables["params"].items()
    }


def require_equal_heads(federation: Federation) -> None:
    """For methods that exchange heads.

    Raises:
      ValueError: the heads of two buckets differ in the names or the shapes of their parameters.
    """
    first, *others = federation.buckets
    for bucket in others:
        if (one := _head_shapes(first)) != (other := _head_shapes(bucket)):
            raise ValueError(
                f"the heads of all models must be equal, but that of {first.name!r} is {one} "
                f"and that of {bucket.name!r} is {other}; choose a group whose models share one "
                "head"
            )


def _head_shapes(bucket: Bucket) -> dict[str, tuple[int, ...]]:
    def init(key):
        return bucket.module.init(key, jnp.zeros((1, bucket.feature_dim)), method="classify")

    leaves = jax.tree.leaves_with_path(jax.eval_shape(init, jax.random.key(0))["params"]["head"])
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves
    }
