"""Checks a model's module before compilation: its methods, and how it uses what clients pass.

Each fault is a one-line message with the model, the part at fault, and the remedy.
"""

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import errors

from fedjax_ht.core.inputs import InputShape, described, zeros
from fedjax_ht.core.trees import PyTree

FROZEN = "frozen"
"""Collection of non-trainable variables, one copy for all clients."""

COLLECTIONS = ("params", "batch_stats", FROZEN)
"""Collections that a module may have; a client keeps the first two."""

STREAM = "dropout"
"""Name of the random stream that a module gets in training."""

STATEFUL = "SplitModel(base, head, stateful=True), whose base takes (x, train, mask)"


class Traced(NamedTuple):
    """The trace of a module on one sample.

    Attributes:
      params: forms of its parameters.
      features, logits: forms of its outputs.
      draws: True if it draws random numbers in training by more than nn.Dropout, so that its
        training cannot be traced without a key.
      flat_norms: paths of norms whose input has one value per sample and channel, such as those
        behind a dense layer.
      freezes: True if it has variables in the collection `FROZEN`.
    """

    params: PyTree
    features: jax.ShapeDtypeStruct
    logits: jax.ShapeDtypeStruct
    draws: bool
    flat_norms: tuple[str, ...]
    freezes: bool


def keep_all(next_function: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
    """Intercepts nn.Dropout: without a key for its stream, it drops nothing."""
    module = context.module
    is_dropout = isinstance(module, nn.Dropout) and context.method_name == "__call__"
    if not is_dropout or module.rng_collection != STREAM or module.has_rng(STREAM):
        return next_function(*args, **kwargs)
    return args[0] if args else kwargs["inputs"]


def require_linen(subject: str, module: Any) -> None:
    """Raises ValueError, which begins with `subject`, unless `module` is an nn.Module."""
    if isinstance(module, type):
        name = module.__name__
        raise ValueError(f"{subject} is the class {name}; give an instance: {name}(...)")
    if not isinstance(module, nn.Module):
        kind = type(module)
        raise ValueError(
            f"{subject} is a {kind.__module__}.{kind.__name__}; it must be a Flax module "
            f"(flax.linen), for models fl.SplitModel(base, head){of_nnx(module)}"
        )


def check_module(name: str, module: Any) -> None:
    """Raises ValueError unless a value is a hashable Flax module with an extractor and a head."""
    require_linen(f"model {name!r}", module)
    kind = type(module)
    if not (hasattr(kind, "features") and hasattr(kind, "classify")):
        raise ValueError(
            f"model {name!r} is a {kind.__name__} without features and classify; "
            "wrap a feature extractor and a head: fl.SplitModel(base, head)"
        )
    try:
        hash(module)
    except TypeError:  # the module is part of the key of compiled programs
        raise ValueError(
            f"model {name!r} is not hashable: replace lists by tuples in its modules"
        ) from None


def of_nnx(module: Any) -> str:
    """Returns a hint on how a flax.nnx module becomes a model; "" for other values."""
    bases = type(module).__mro__
    if not any(base.__module__.startswith("flax.nnx") for base in bases):
        return ""
    return f"; write the whole model in flax.nnx: fl.from_nnx({type(module).__name__}, ..., head=)"


def traced(name: str, module: nn.Module, input_shape: InputShape) -> Traced:
    """Traces a module on one sample, the way clients run it.

    Args:
      name: the model's name, for messages.
      module: a Flax module with `features` and `classify`.
      input_shape: the shape of one sample, see `Bucket.input_shape`.

    Raises:
      ValueError: it keeps, draws or needs something that clients do not provide. One line.
    """
    key = jax.eval_shape(jax.random.key, 0)
    refuse = functools.partial(_refuse_unbatched, name)
    with _told(name, input_shape), nn.intercept_methods(refuse):
        variables = jax.eval_shape(lambda key: module.init(key, zeros(input_shape)), key)
    _check_variables(name, variables)
    flat_norms: list[str] = []
    trace = functools.partial(_trace, name, module, input_shape, flat_norms)
    with _told(name, input_shape):
        try:
            features, logits = jax.eval_shape(functools.partial(trace, None), variables)
            draws = False
        except errors.InvalidRngError:  # drawing in training, with a key, is allowed
            features, logits = jax.eval_shape(trace, key, variables)
            draws = True
    return Traced(
        variables["params"],
        features,
        logits,
        draws=draws,
        flat_norms=tuple(dict.fromkeys(flat_norms)),
        freezes=FROZEN in variables,
    )


def _trace(
    name: str,
    module: nn.Module,
    input_shape: InputShape,
    flat_norms: list[str],
    key: jax.Array | None,
    variables: PyTree,
) -> tuple[jax.Array, jax.Array]:
    """Runs a module in training and evaluation; returns the features and logits of one sample.

    Without a key, a module without running statistics only runs in training.
    """
    x, mask = zeros(input_shape), jnp.ones(1, bool)
    rngs = None if key is None else {STREAM: key}
    run = functools.partial(module.apply, variables, method="features", mutable=["batch_stats"])
    note = functools.partial(_note_flat_norm, flat_norms)
    is_stateless = not getattr(module, "stateful", True)
    require = functools.partial(_require_mask, name)
    masks = contextlib.nullcontext() if is_stateless else nn.intercept_methods(require)
    with nn.intercept_methods(note), nn.intercept_methods(keep_all), masks:
        features, changed = run(x, True, mask, rngs=rngs)
        # A module that draws in training might also draw in evaluation, and one with running
        # statistics might not use them there.
        if key is not None or not is_stateless:
            with nn.intercept_methods(functools.partial(_refuse_by_batch, name)):
                run(x, False, mask)
    base = type(getattr(module, "base", None))
    if is_stateless and "train" in inspect.signature(base.__call__).parameters:
        raise ValueError(
            f"model {name!r}: {base.__name__}.__call__() takes train, which would stay at its "
            f"default in training; wrap it as {STATEFUL}"
        )
    if is_stateless and _rewrites(variables, changed):
        raise ValueError(
            f"model {name!r} normalises by the current batch, padding included, also in "
            f"evaluation: wrap it as {STATEFUL}"
        )
    logits: Any = module.apply(variables, features, method="classify")  # nothing is mutable
    return features, logits


def _refuse_unbatched(
    name: str, next_function: Callable, args: tuple, kwargs: dict, context: Any
) -> Any:
    """Intercepts layers that would treat the batch as an axis of one sample, and mix samples."""
    module = context.module
    is_layer = isinstance(module, nn.Conv | nn.ConvTranspose | nn.RNN)
    if is_layer and context.method_name == "__call__" and args:
        shape = args[0].shape
        axes = len(getattr(module, "kernel_size", (1,)))  # a recurrent layer has no kernel
        if len(shape) < axes + 2 and shape[0] == 1:  # a longer first axis comes from a vmap
            raise ValueError(
                f"model {name!r}: {'/'.join(module.path)} takes samples with {axes + 1} axes, "
                f"channels last; found {shape[1:]}; add a channel axis to the inputs, "
                "inputs[..., None], or use another module"
            )
    return next_function(*args, **kwargs)


def _note_flat_norm(
    flat_norms: list[str], next_function: Callable, args: tuple, kwargs: dict, context: Any
) -> Any:
    """Intercepts modules with batch statistics; records the paths of `Traced.flat_norms`.

    Their input has a single value per channel, for one sample.
    """
    module = context.module
    kept = module.variables.get("batch_stats", {}) if module.scope is not None else {}
    own_statistics = any(not hasattr(value, "items") for value in kept.values())
    if own_statistics and context.method_name == "__call__" and args:
        x = args[0]
        if hasattr(x, "shape") and x.ndim and x.size == x.shape[-1]:
            flat_norms.append("/".join(module.path))
    return next_function(*args, **kwargs)


def _refuse_by_batch(
    name: str, next_function: Callable, args: tuple, kwargs: dict, context: Any
) -> Any:
    """Intercepts nn.BatchNorm in evaluation; refuses one that normalises by the current batch."""
    if _call_by_batch(args, kwargs, context) is not None:
        raise ValueError(
            f"model {name!r}: {'/'.join(context.module.path)} normalises by the current batch in "
            "evaluation; give it use_running_average=not train"
        )
    return next_function(*args, **kwargs)


def _require_mask(
    name: str, next_function: Callable, args: tuple, kwargs: dict, context: Any
) -> Any:
    """Intercepts nn.BatchNorm; refuses one whose batch statistics would include padding.

    So they might with a mask of fewer axes, which broadcasts along others than that of samples.
    """
    given = _call_by_batch(args, kwargs, context)
    if given is not None:
        mask, axes = given.get("mask"), given["x"].ndim
        if mask is None or mask.ndim != axes:
            raise ValueError(
                f"model {name!r}: {'/'.join(context.module.path)} averages the padding of the last "
                "batch; give its call mask=None if mask is None else "
                f"mask[:{', None' * (axes - 1)}], with as many axes as x"
            )
    return next_function(*args, **kwargs)


def _call_by_batch(args: tuple, kwargs: dict, context: Any) -> dict[str, Any] | None:
    """Returns the arguments of a call of nn.BatchNorm by the batch's statistics, else None."""
    module = context.module
    if not isinstance(module, nn.BatchNorm) or context.method_name != "__call__":
        return None
    given = inspect.signature(module.__call__).bind(*args, **kwargs).arguments
    return None if given.get("use_running_average", module.use_running_average) else given


def _check_variables(name: str, variables: PyTree) -> None:
    """Raises ValueError for unknown collections, other parameters, or batch statistics of the head.

    Parameters must be those of "base" and "head".
    """
    for collection in variables:
        if collection not in COLLECTIONS:
            path = jax.tree_util.keystr(
                jax.tree.leaves_with_path(variables[collection])[0][0], simple=True, separator="/"
            )
            raise ValueError(
                f"model {name!r} keeps {path} in the collection {collection!r}, but clients only "
                "keep 'params' and 'batch_stats'; use self.param(...) for trained weights, "
                "self.variable('batch_stats', ...) for running statistics, and a plain "
                "jax.numpy array for a constant, or the collection 'frozen' for fixed weights"
            )
    params = variables.get("params", {})
    if set(params) != {"base", "head"}:
        raise ValueError(
            f"model {name!r} has parameters {sorted(params)}; expected 'base' and 'head' (use "
            "SplitModel)"
        )
    statistics = variables.get("batch_stats", {})
    if "head" in statistics:
        path = jax.tree.leaves_with_path(statistics["head"])[0][0][:-1]
        place = "/".join(["head", *(str(entry.key) for entry in path)])
        raise ValueError(
            f"model {name!r} keeps batch statistics in its head ({place}), which is called without "
            f"train and mask; move the norm to the end of the base: {STATEFUL}"
        )


def _rewrites(variables: PyTree, changed: PyTree) -> bool:
    """Returns whether a traced call has changed batch statistics."""
    # Statistics that a module only reads are returned as the same objects.
    before = jax.tree.leaves(variables.get("batch_stats", {}))
    after = jax.tree.leaves(changed.get("batch_stats", {}))
    return any(old is not new for old, new in zip(before, after, strict=True))


@contextlib.contextmanager
def _told(name: str, input_shape: InputShape) -> Iterator[None]:
    """Turns errors of a module into one-line errors that name the model."""
    try:
        yield
    except Exception as error:
        line = (str(error).splitlines() or [""])[0]
        if isinstance(error, ValueError) and line.startswith(f"model {name!r}"):
            raise
        if reason := _reason(error, line):
            raise ValueError(f"model {name!r}: {reason}") from error
        raise ValueError(
            f"model {name!r} fails on a sample of shape {described(input_shape)}, "
            f"{type(error).__name__}: {line.rstrip('. ')}; give a module for such samples"
        ) from error


def _reason(error: Exception, line: str) -> str | None:
    """Translates an error of Flax or JAX into the library's terms, with a remedy; None for others.

    `line` is the error's first line.
    """
    drawn = re.match(r'(\S+) needs PRNG for "(\w+)"', line)
    if drawn and drawn[2] == STREAM:
        return (
            f"{drawn[1]} draws random numbers in evaluation or in the head, where there is no key; "
            f"write deterministic=not train in the base: {STATEFUL}"
        )
    if drawn:
        return (
            f"{drawn[1]} draws from the stream {drawn[2]!r}, but clients only provide 'dropout', "
            "in training; write self.make_rng('dropout') if self.has_rng('dropout')"
        )
    axis = re.search(r"unbound axis name: (\w+)", line)
    if axis:
        return (
            f"it sums over the device axis {axis[1]!r}, but a client trains on one device; "
            "remove axis_name"
        )
    if "RngStream" in line:
        return (
            f"its flax.nnx module needs an RNG stream, {line}; write the whole model in "
            "flax.nnx: fl.from_nnx(..., head=)"
        )
    if isinstance(error, TypeError) and "positional argument" in line:
        return f"{line}; a base is called as base(x), with stateful=True as base(x, train, mask)"
    if isinstance(error, errors.FlaxError):
        return re.sub(r" \(https?://.*", "", line)
    return None
