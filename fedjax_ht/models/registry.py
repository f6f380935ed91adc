"""Builds the modules of a model group, and checks that the group fits the samples.

A user's own modules go to `make_federation` and need no entry here.
"""

import pkgutil
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import checked
from fedjax_ht.core.inputs import InputShape, described, is_array, is_image, plain
from fedjax_ht.core.module_checks import check_module
from fedjax_ht.core.numerics import standard_numerics
from fedjax_ht.core.user_code import call_user_function, names_user_function
from fedjax_ht.models.groups import (
    GROUPS,
    HETEROGENEOUS_HEADS,
    PIXEL_GROUPS,
    SENSORS,
    TEXT_GROUPS,
    GroupArguments,
    Modules,
)
from fedjax_ht.models.layers import NormKind
from fedjax_ht.models.split import SplitModel

__all__ = [
    "GROUPS",
    "SENSORS",
    "example",
    "model_group",
    "sliced_network",
]


_FOLDER_GROUP = "fedjax_ht.lab.weights.hugging_face.folder:folder_group"
"""The builder of groups "hf:FOLDER", loaded on demand."""


def names_folder(group: str) -> bool:
    """Returns whether a model group is a Hugging Face folder, "hf:FOLDER"."""
    return group.startswith("hf:")


class Example(NamedTuple):
    """Samples of ten classes to describe a group of `GROUPS` with."""

    input_shape: InputShape = (32, 32, 3)
    vocabulary: int | None = None
    num_outputs: int = 10


def example(name: str) -> Example:
    """Returns samples that a group takes."""
    if name in TEXT_GROUPS:
        return Example(jax.ShapeDtypeStruct((200,), jnp.int32), 32_000)
    if name in SENSORS:
        return Example((128, 9))
    if name in PIXEL_GROUPS:
        return Example(num_outputs=32 * 32 * 10)
    return Example()


@checked
@standard_numerics()
def model_group(
    name: str,
    num_classes: int,
    input_shape: InputShape,
    feature_dim: int | None = None,
    norm: NormKind = "batch",
    output_relu: bool = False,
    vocabulary: int | None = None,
    preprocess: Callable | None = None,
) -> Modules:
    """Builds the modules of a group, in the order of clients.

    Client i has module i mod their number.

    Args:
      name: the group's name, one of `GROUPS`; or "hf:FOLDER", whose config.json describes a BERT,
        ViT, GPT-2 or Llama of Hugging Face; or "module:function", a function of yours
        (num_classes, input_shape, feature_dim or None) -> {name: module}, each a `SplitModel` or a
        module with the same `features` and `classify`.
      num_classes, input_shape: number of classes (`Dataset.num_outputs` for tasks other than
        classification) and shape of one sample: (H, W, C) of images, (T, signals) or (T, units,
        signals) of windows for `SENSORS`, int32 tokens (L,) for `TEXT_GROUPS`, any one float array
        for mlp2; see `Dataset.input_shape`.
      feature_dim: width of the features; None for the group's default.
      norm: the kind of norm of every model with batch norms.
      output_relu: True adds a ReLU after the output layers of the htc4 groups' heads, as in
        HtFLlib's released code.
      vocabulary: number of token ids, which text groups need (`Dataset.vocabulary`).
      preprocess: the data's rule (`Dataset.preprocess`), by default `Pixels()`. Warns if the folder
        of "hf:FOLDER" normalises its images by another rule.

    Returns:
      {name: module}.

    Raises:
      ValueError: the group is unknown, the samples do not fit it or are too small, or it does not
        use `norm`, `output_relu` or `feature_dim`. `make_federation` checks a ViT's patches.

    Example:
      >>> import fedjax_ht as fl
      >>> sorted(fl.model_group("cnn5", num_classes=10, input_shape=(28, 28, 1)))
      ['cnn1', 'cnn2', 'cnn3', 'cnn4', 'cnn5']

      Your own group is a function in a module that Python can import; configs use the same name,
      `--config.model.group=my_models:two`:

      >>> import sys, types
      >>> def two(num_classes, input_shape, feature_dim):
      ...     return {
      ...         "narrow": fl.mlp(num_classes, (8, feature_dim or 4)),
      ...         "wide": fl.mlp(num_classes, (16, feature_dim or 4)),
      ...     }
      >>> sys.modules["my_models"] = types.ModuleType("my_models")  # stands for my_models.py
      >>> sys.modules["my_models"].two = two
      >>> list(fl.model_group("my_models:two", 10, (28, 28, 1)))
      ['narrow', 'wide']
    """
    input_shape = plain(input_shape)
    if names_folder(name) or names_user_function(name):
        if norm != "batch" or output_relu:
            raise ValueError(
                f"norm and output_relu are for the library's own models, not for {name!r}"
            )
        if names_folder(name):
            folder_group = pkgutil.resolve_name(_FOLDER_GROUP)
            return folder_group(name, num_classes, input_shape, feature_dim, vocabulary, preprocess)
        return _users_group(name, num_classes, input_shape, feature_dim)
    if name not in GROUPS:
        raise ValueError(f"unknown model group {name!r}; the groups are {', '.join(GROUPS)}")
    _check_kind(name, input_shape)
    modules = GROUPS[name](
        GroupArguments(
            num_classes=num_classes,
            input_shape=input_shape,
            feature_dim=feature_dim,
            norm=norm,
            output_relu=output_relu,
            vocabulary=vocabulary,
        )
    )
    if name in SENSORS:
        from fedjax_ht.models.sensors import require_windows

        shortest = max(module.base.shortest for module in modules.values())
        require_windows(f"model group {name!r}", input_shape, shortest)
    _check_size(name, input_shape, modules)
    _check_options(name, modules, norm, output_relu)
    return modules


def _users_group(
    name: str, num_classes: int, input_shape: InputShape, feature_dim: int | None
) -> Modules:
    """Returns the modules of a user's function, checked to be a dict of split models."""
    modules = call_user_function("model group", name, num_classes, input_shape, feature_dim)
    if not isinstance(modules, dict) or not modules:
        returned = "an empty dict" if modules == {} else type(modules).__name__
        raise ValueError(
            f"model group {name!r} returns {returned}; it must return a dict of flax modules by "
            "name"
        )
    for key, module in modules.items():
        check_module(f"{name}: {key}", module)
    return modules


@checked
def sliced_network(
    name: str,
    num_classes: int,
    input_shape: InputShape,
    norm: NormKind = "static_batch",
    scaler: bool = True,
) -> Callable[[float], SplitModel]:
    """Returns a network as a function of its width rate, for `make_sliced_federation`.

    Args:
      name: the network's name, one of `SLICED`.
      num_classes, input_shape: number of classes, and shape (H, W, C) of the images.
      norm: the kind of norm. "batch" has running statistics for each width, which only FjORD
        averages; other slicing methods reject it.
      scaler: True divides by the width rate before norms in training, see `ConvNet`.

    Returns:
      Width rate, in (0, 1] -> the model whose hidden layers have this share of their channels.

    Raises:
      ValueError: the network is unknown, or the images do not fit it.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import fedjax_ht as fl
      >>> network = fl.sliced_network("conv4_quarter", num_classes=10, input_shape=(16, 16, 1))
      >>> images = jax.ShapeDtypeStruct((1, 16, 16, 1), jnp.float32)
      >>> half = jax.eval_shape(network(0.5).init, jax.random.key(0), images)
      >>> half["params"]["base"]["conv4"]["kernel"].shape  # at rate 1: (3, 3, 64, 128)
      (3, 3, 32, 64)
    """
    from fedjax_ht.models.sliced import SLICED, sliced_model

    if name not in SLICED:
        raise ValueError(f"model group {name!r} cannot be sliced; {', '.join(SLICED)} can")
    _check_image(name, plain(input_shape))
    _check_size(name, input_shape, (name,))
    base = SLICED[name].clone(norm=norm, scaler=scaler)

    def at_rate(rate: float) -> SplitModel:
        return sliced_model(base.clone(rate=float(rate)), num_classes)

    return at_rate


def _check_kind(name: str, shape: InputShape) -> None:
    """Rejects samples of another kind than the group takes; text groups check their own."""
    if name == "mlp2":
        if not is_array(shape):
            raise ValueError(
                f"model group {name!r} needs one float array; a sample is {described(shape)}"
                f"{_suited(shape)}"
            )
    elif name not in SENSORS and name not in TEXT_GROUPS:
        _check_image(name, shape)


def _check_image(name: str, shape: InputShape) -> None:
    if not is_image(shape):
        raise ValueError(
            f"model group {name!r} needs images, float [H, W, 1 or 3]; a sample is "
            f"{described(shape)}{_suited(shape)}"
        )


def _suited(shape: InputShape) -> str:
    """Returns a hint such as "; take 'mlp2'", with groups for samples that are not images."""
    if isinstance(shape, jax.ShapeDtypeStruct):
        return "; use 'htfe_txt2' or another group for texts"
    if not is_array(shape):
        return ""
    return "; use 'htfe_sen2' or 'mlp2'" if len(shape) == 2 else "; use 'mlp2'"


_SMALLEST = {"cnn": 16, "conv": 16, "googlenet": 15}
"""Prefix of an architecture's name -> side of the smallest images that survive its pooling."""


def _check_size(name: str, input_shape: InputShape, architectures: Iterable[str]) -> None:
    smallest = 0
    for architecture in architectures:
        for start, side in _SMALLEST.items():
            if architecture.startswith(start):
                smallest = max(smallest, side)
    if smallest and min(input_shape[:2]) < smallest:
        raise ValueError(
            f"model group {name!r} needs images of at least {smallest}x{smallest} pixels, got "
            f"{tuple(input_shape[:2])}"
        )


def _check_options(name: str, modules: Modules, norm: NormKind, output_relu: bool) -> None:
    """Rejects options that no model of the group uses."""
    normalised = any(hasattr(module.base, "norm") for module in modules.values())
    if norm != "batch" and not normalised:
        raise ValueError(
            f"norm is {norm!r}, but model group {name!r} has no batch norm; leave it at 'batch'"
        )
    if output_relu and name not in HETEROGENEOUS_HEADS:
        raise ValueError(
            f"output_relu is for the groups {', '.join(HETEROGENEOUS_HEADS)}, not for {name!r}"
        )
