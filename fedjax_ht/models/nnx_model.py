"""flax.nnx modules as models: cut at a submodule, and run as functions of their variables."""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_ht.core.module_checks import STREAM
from fedjax_ht.core.trees import PyTree

KINDS = {"params": nnx.Param, "batch_stats": nnx.BatchStat}
"""Collection -> type of the variables that clients keep in it."""

NO_KEY = 0  # seeds random streams that nothing draws from

Variables = Mapping[tuple, nnx.Variable]  # by path, such as ("layers", 0, "kernel")


class Part(NamedTuple):
    """The base or the head of a module, without values.

    Attributes:
      graph: the part's structure; the base's has None in place of the head.
      variables: the part's variables, with shapes and dtypes as values.
    """

    graph: nnx.GraphDef
    variables: Variables


class Cut:
    """Replaces the head, and stores its input."""

    features: jax.Array | None = None

    def __call__(self, features: jax.Array) -> jax.Array:
        self.features = features
        return features


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A module class, its arguments, and where to cut; equal recipes make equal models.

    Attributes:
      make: the module's class, or a function that returns a module.
      arguments, options: positional arguments and keywords of `make`, besides `rngs`.
      head: path of the submodule that is the head.
    """

    make: Callable[..., nnx.Module]
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    head: str

    @property
    def name(self) -> str:
        """The name of the class or function, for messages."""
        return getattr(self.make, "__name__", repr(self.make))


class NnxModel(nn.Module):
    """A flax.nnx module as clients run it; made by `from_nnx`."""

    recipe: Recipe

    def features(
        self, x: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns the features [B, K] of samples x: the head's input."""
        drops = train and self.has_rng(STREAM)
        key = self.make_rng(STREAM) if drops else jax.random.key(NO_KEY)
        model = self._part("base", key, train, deterministic=not drops)
        cut = Cut()
        replace(model, self.recipe.head, cut)
        known = {"mask": mask} if takes_mask(model) else {}
        features = model(x, **known)
        replace(model, self.recipe.head, None)
        if features is not cut.features:
            raise ValueError(
                f"{self.recipe.head!r} is not the last step of its call; the head must be the "
                "submodule that returns the logits: fl.from_nnx(..., head=)"
            )
        statistics = tree_of(variables_of(model), "batch_stats")
        if train and statistics and self.is_mutable_collection("batch_stats"):
            self.put_variable("batch_stats", "base", statistics)
        return features

    def classify(self, features: jax.Array) -> jax.Array:
        """Returns the logits [B, num_classes] of features [B, K]."""
        return self._part("head", jax.random.key(NO_KEY), train=False)(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the logits [B, num_classes] of samples x, normalised as in evaluation."""
        return self.classify(self.features(x))

    def _part(self, name: str, key: jax.Array, train: bool, deterministic: bool = True) -> Any:
        """Returns a part with this client's values, and with random streams from a key."""
        if self.is_initializing() and not self.has_variable("params", name):
            drawn = variables_of(cut_apart(self.recipe, self.make_rng("params"))[name])
            for collection in KINDS:
                if tree := tree_of(drawn, collection):
                    self.put_variable(collection, name, tree)
        trees = {collection: self.get_variable(collection, name) for collection in KINDS}
        model = merged(forms(self.recipe)[name], trees, key)
        model.set_attributes(
            deterministic=deterministic, use_running_average=not train, raise_if_not_found=False
        )
        return model


def from_nnx(
    make: Callable[..., nnx.Module], *arguments: Any, head: str, **options: Any
) -> NnxModel:
    """Makes a model from a flax.nnx module, without changes to the module's code.

    Each client has its own random initial values: `make` is called as make(*arguments,
    rngs=nnx.Rngs, **options). Dropout draws at each training step, and is off in evaluation.

    Args:
      make: the module's class, or a function that returns a module; its instances are called as
        module(x), x [B, ...], and return logits [B, num_classes].
      *arguments: positional arguments of `make`, which must be hashable to identify programs.
      head: path of the submodule that is the head, such as "classifier" or "layers.3". Its input
        is the features [B, K], and it is the last step of the module's call.
      **options: keyword arguments of `make`, which must be hashable as well.

    Raises:
      ValueError: there is no such submodule; the module keeps variables other than `nnx.Param` and
        `nnx.BatchStat`, or shares one between base and head; the head has dropout; or the module
        keeps batch statistics and its call takes no `mask` (bool [B], the real samples), which
        `nnx.BatchNorm` must be given: a short batch is padded. One line.

    Example:
      >>> import fedjax_ht as fl
      >>> from flax import nnx
      >>> class Net(nnx.Module):
      ...     def __init__(self, width, *, rngs):
      ...         self.layer = nnx.Linear(6, width, rngs=rngs)
      ...         self.dropout = nnx.Dropout(0.5, rngs=rngs)
      ...         self.classifier = nnx.Linear(width, 3, rngs=rngs)
      ...     def __call__(self, x):
      ...         return self.classifier(self.dropout(nnx.relu(self.layer(x))))
      >>> models = {f"net{width}": fl.from_nnx(Net, width, head="classifier") for width in (8, 16)}
      >>> federation = fl.make_federation(models, (6,), 3, num_clients=2)
      >>> [bucket.feature_dim for bucket in federation.buckets]
      [8, 16]
    """
    if isinstance(make, nnx.Module):
        kind = type(make).__name__
        raise ValueError(
            f"from_nnx got an instance of {kind}, but each client initialises its own; give the "
            f"class and its arguments: fl.from_nnx({kind}, ..., head={head!r})"
        )
    recipe = Recipe(make, arguments, tuple(sorted(options.items())), head)
    try:
        hash(recipe)
    except TypeError:
        raise ValueError(
            f"arguments of {recipe.name} are not hashable, so compiled programs cannot be cached; "
            "replace lists and dicts by tuples"
        ) from None
    forms(recipe)
    return NnxModel(recipe)


@functools.lru_cache(256)
def forms(recipe: Recipe) -> dict[str, Part]:
    """Returns the parts of a recipe's module, "base" and "head"; raises as `from_nnx` does."""
    whole, apart = nnx.eval_shape(lambda: (made(recipe, NO_KEY), cut_apart(recipe, NO_KEY)))
    parts = {}
    for name, module in apart.items():
        parts[name] = Part(nnx.split(module)[0], variables_of(module))
        check_variables(recipe.name, parts[name].variables)
    kept = [variables_of(module) for module in (whole, *apart.values())]
    if len(kept[0]) < len(kept[1]) + len(kept[2]):
        raise ValueError(
            f"{recipe.name}'s {recipe.head!r} shares variables with the rest, but a method "
            "may send one without the other; give each its own"
        )
    if any(isinstance(each, nnx.RngKey) for each in parts["head"].variables.values()):
        raise ValueError(
            f"{recipe.name}'s {recipe.head!r} has dropout, but heads get no key; move it before "
            "the head"
        )
    if tree_of(parts["base"].variables, "batch_stats") and not takes_mask(whole):
        raise ValueError(
            f"{recipe.name} keeps batch statistics, but its call takes no mask for padded "
            "batches; write __call__(self, x, mask=None), and pass the mask to nnx.BatchNorm"
        )
    return parts


def made(recipe: Recipe, key: jax.Array | int) -> nnx.Module:
    """Initialises the whole module from a key or a seed."""
    return recipe.make(*recipe.arguments, rngs=nnx.Rngs(key), **dict(recipe.options))


def cut_apart(recipe: Recipe, key: jax.Array | int) -> dict[str, nnx.Module]:
    """Initialises the module and cuts it: "base", with None in place of the head, and "head"."""
    base = made(recipe, key)
    try:
        head = replace(base, recipe.head, None)
    except (AttributeError, IndexError, KeyError, TypeError):
        head = None
    if not isinstance(head, nnx.Module):
        parts = [name for name, part in vars(base).items() if isinstance(part, nnx.Module)]
        raise ValueError(
            f"{recipe.name} has no submodule {recipe.head!r}; it has {', '.join(parts)}"
        )
    return {"base": base, "head": head}


def replace(module: nnx.Module, path: str, new: Any) -> Any:
    """Sets the value at a path of submodules, such as "blocks.3.out"; returns the old one."""
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    parent = functools.reduce(_below, way, module)
    before = _below(parent, last)
    if isinstance(last, int):
        operator.setitem(parent, last, new)
    else:
        setattr(parent, last, new)
    return before


def _below(parent: Any, step: str | int) -> Any:
    return parent[step] if isinstance(step, int) else getattr(parent, step)


def merged(part: Part, trees: Mapping[str, PyTree], key: jax.Array) -> Any:
    """Puts values into a part.

    Args:
      part: the part.
      trees: collection -> its values, as `tree_of` returns them.
      key: the key from which each random stream derives its own.
    """
    values = []
    for index, (path, variable) in enumerate(part.variables.items()):
        if isinstance(variable, nnx.RngKey):
            value = jax.random.fold_in(key, index)
        elif isinstance(variable, nnx.RngCount):
            value = jnp.zeros((), jnp.uint32)
        else:
            value = functools.reduce(
                operator.getitem, map(str, path), trees[collection_of(variable)]
            )
        values.append((path, variable.replace(value)))
    return nnx.merge(part.graph, nnx.from_flat_state(values))


def variables_of(module: nnx.Module) -> Variables:
    """Returns the variables of a module by path."""
    return dict(nnx.to_flat_state(nnx.state(module)))


def tree_of(variables: Variables, collection: str) -> PyTree:
    """Returns the values of the variables of a collection as nested dicts, {} without any."""
    tree: dict[str, Any] = {}
    for path, variable in variables.items():
        if collection_of(variable) == collection:
            *way, last = map(str, path)
            below = functools.reduce(lambda tree, step: tree.setdefault(step, {}), way, tree)
            below[last] = value_of(variable)
    return tree


def collection_of(variable: nnx.Variable) -> str:
    """Returns the collection that a variable is kept in, "" for others."""
    for collection, kind in KINDS.items():
        if isinstance(variable, kind):
            return collection
    return ""


def value_of(variable: nnx.Variable) -> jax.Array:
    """Returns the value of a variable, also with flax before 0.12."""
    return variable.get_value() if hasattr(variable, "get_value") else variable.value


def check_variables(name: str, variables: Variables) -> None:
    """Raises a ValueError for a variable that clients do not keep."""
    for path, variable in variables.items():
        known = collection_of(variable) or isinstance(variable, nnx.RngKey | nnx.RngCount)
        if not known:
            raise ValueError(
                f"{name} keeps {'.'.join(map(str, path))}, an nnx.{type(variable).__name__}, but "
                "clients only keep nnx.Param and nnx.BatchStat; use a plain array for a constant"
            )


def takes_mask(module: nnx.Module) -> bool:
    """Returns whether the call of a module takes `mask`."""
    return "mask" in inspect.signature(type(module).__call__).parameters
