"""Model groups by the names that configs use. A user's own modules go to `make_federation` and need
no entry here."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.core.inputs import InputShape, described, is_array, is_image, plain
from fedjax_ht.core.user_code import call_own, is_own
from fedjax_ht.models.cnn import cnn4, cnn5_group, mlp
from fedjax_ht.models.heads import htc4_heads
from fedjax_ht.models.inception import googlenet
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.mobilenet import mobilenet_v2
from fedjax_ht.models.norm import NormKind
from fedjax_ht.models.resnets import RESNET_STAGES, resnet
from fedjax_ht.models.sensors import harcnn, require_windows
from fedjax_ht.models.sliced import PREACT_STAGES, WIDTHS, ConvNet, PreActResNet, sliced_model
from fedjax_ht.models.split import SplitModel
from fedjax_ht.models.text_groups import TEXT_GROUPS, text_group
from fedjax_ht.models.vits import VITS, vit


class Task(NamedTuple):
    """What the models of a group are made for: the arguments of `model_group`."""

    num_classes: int
    input_shape: InputShape
    feature_dim: int | None
    norm: NormKind
    output_relu: bool
    vocabulary: int | None = None


Group = Callable[[Task], dict[str, nn.Module]]


def _architecture(name: str, task: Task) -> SplitModel:
    size = task.num_classes, task.feature_dim or 512
    if name == "cnn":
        return cnn4(*size)
    if name in VITS:
        return vit(name, *size)
    if name.startswith("resnet"):
        return resnet(int(name.removeprefix("resnet")), *size, task.norm)
    return {"googlenet": googlenet, "mobilenet_v2": mobilenet_v2}[name](*size, task.norm)


def _dealt(names: tuple[str, ...], task: Task) -> dict[str, nn.Module]:
    return {name: _architecture(name, task) for name in names}


def _dealt_linear(names: tuple[str, ...], task: Task) -> dict[str, nn.Module]:
    """One linear head for all, transformers too, so that methods that exchange heads take the
    group."""
    return {
        name: module.clone(head=Linear(task.num_classes))
        for name, module in _dealt(names, task).items()
    }


def _dealt_with_heads(names: tuple[str, ...], task: Task) -> dict[str, nn.Module]:
    """Client i takes architecture i mod X and head i mod 4: the combinations repeat after lcm(X, 4)
    clients."""
    heads = htc4_heads(task.num_classes, task.output_relu)
    bases = _dealt(names, task)
    turns = [
        (names[i % len(names)], i % len(heads)) for i in range(math.lcm(len(names), len(heads)))
    ]
    return {f"{name}_head{head + 1}": bases[name].clone(head=heads[head]) for name, head in turns}


def _cnn5(task: Task) -> dict[str, nn.Module]:
    return cnn5_group(task.num_classes, task.input_shape[-1], task.feature_dim)


def _cnn1(task: Task) -> dict[str, nn.Module]:
    return {"cnn1": _cnn5(task)["cnn1"]}


def _sensors(names: tuple[str, ...], task: Task) -> dict[str, nn.Module]:
    """Of names that end in the stride."""
    parts = {name: name.split("_s") for name in names}
    size = task.num_classes, task.feature_dim or 512
    return {name: harcnn(kind, int(stride), *size) for name, (kind, stride) in parts.items()}


def _mlp2(task: Task) -> dict[str, nn.Module]:
    width = task.feature_dim or 32
    return {
        "mlp_narrow": mlp(task.num_classes, (32, width)),
        "mlp_wide": mlp(task.num_classes, (64, width)),
    }


_RESNETS = tuple(f"resnet{depth}" for depth in RESNET_STAGES)
_HTFE8 = (
    "cnn",
    "googlenet",
    "mobilenet_v2",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
)
_DEALT = {
    "htfe2": ("cnn", "resnet18"),
    "htfe3": ("resnet10", "resnet18", "resnet34"),
    "htfe4": ("cnn", "googlenet", "mobilenet_v2", "resnet18"),
    "htfe5": ("googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50"),
    "htfe8": _HTFE8,
    "htfe9": _RESNETS,
    "htm10": (*_HTFE8, "vit_b16", "vit_b32"),
    "fedral5": _RESNETS[4:],  # Tiny-ImageNet
} | {name: (name,) for name in (*_RESNETS, "googlenet", "mobilenet_v2", *VITS)}
# CIFAR-100, "high heterogeneity". The paper does not say which ViT; its Table 6 has methods that
# exchange heads.
_DEALT_LINEAR = {"fedral11": (*_RESNETS, "cnn", "vit_b16")}
_DEALT_WITH_HEADS = {"res34_htc4": ("resnet34",), "htfe8_htc4": _HTFE8}
_SEN3 = ("harcnn_s1", "harcnn_s2", "harcnn_s3")
_SEN8 = (*_SEN3, "harcnn1_s1", "harcnn1_s2", "harcnn1_s3", "harcnn3_s1", "harcnn3_s2")
SENSORS: dict[str, tuple[str, ...]] = {
    "htfe_sen2": _SEN3[:2],
    "htfe_sen3": _SEN3,
    "htfe_sen5": (*_SEN3, "harcnn1_s1", "harcnn3_s1"),
    "htfe_sen8": _SEN8,
} | {name: (name,) for name in _SEN8}
"""Groups for windows of sensor signals -> their architectures."""

ARCHITECTURES = (
    "cnn4",
    "cnn5",
    "mlp2",
    *(name for name, members in _DEALT.items() if members == (name,)),
    *_SEN8,
)
"""Groups in which every architecture is but those of `SLICED`."""

SLICED: dict[str, ConvNet | PreActResNet] = {
    "conv4": ConvNet(),
    "conv4_quarter": ConvNet(tuple(width // 4 for width in WIDTHS)),
    **{f"preact_resnet{depth}": PreActResNet(stages) for depth, stages in PREACT_STAGES.items()},
}
"""Networks of which clients may train slices; as groups, whole ones."""


def _whole(name: str, task: Task) -> dict[str, nn.Module]:
    if task.feature_dim:
        raise ValueError(
            f"feature_dim is {task.feature_dim}, but the features of {name} are its last channels"
        )
    return {name: sliced_model(SLICED[name].clone(norm=task.norm), task.num_classes)}


def _text(name: str, task: Task) -> dict[str, nn.Module]:
    return text_group(name, task.num_classes, task.input_shape, task.feature_dim, task.vocabulary)


GROUPS: dict[str, Group] = {
    "cnn4": functools.partial(_dealt, ("cnn",)),
    "cnn5": _cnn5,
    "fedssa_cnn1": _cnn1,
    "mlp2": _mlp2,
    **{name: functools.partial(_dealt, names) for name, names in _DEALT.items()},
    **{name: functools.partial(_dealt_linear, names) for name, names in _DEALT_LINEAR.items()},
    **{
        name: functools.partial(_dealt_with_heads, names)
        for name, names in _DEALT_WITH_HEADS.items()
    },
    **{name: functools.partial(_whole, name) for name in SLICED},
    **{name: functools.partial(_sensors, names) for name, names in SENSORS.items()},
    **{name: functools.partial(_text, name) for name in TEXT_GROUPS},
}
"""HtFLlib's groups htfeX (X extractors), htm10, htc4 (four heads), htfe_senX (of sensors) and
htfe_txtX (of tokens); FedSSA's and FedRAL's CNN-1..5, CNN-1 alone (FedSSA's Table 1) and FedRAL's
other groups; two perceptrons; every architecture by itself, the sliceable ones among them."""


def example(name: str) -> tuple[InputShape, int | None]:
    """Shape and vocabulary of samples that a group of `GROUPS` takes, to describe the group by."""
    if name in TEXT_GROUPS:
        return jax.ShapeDtypeStruct((200,), jnp.int32), 32_000
    return ((128, 9) if name in SENSORS else (32, 32, 3)), None


def _own_group(name: str, *task) -> dict[str, nn.Module]:
    modules = call_own("model group", name, *task)
    if not isinstance(modules, dict) or not modules:
        returned = "an empty dict" if modules == {} else type(modules).__name__
        raise ValueError(
            f"model group {name!r} returns {returned}; it must return a dict of flax modules by "
            "name"
        )
    for key, module in modules.items():
        if not isinstance(module, nn.Module) or not all(
            hasattr(module, part) for part in ("features", "classify")
        ):
            raise ValueError(
                f"model group {name!r}: {key!r} is {type(module).__name__}; it must be a "
                "SplitModel, or like one"
            )
    return modules


def model_group(
    name: str,
    num_classes: int,
    input_shape: InputShape,
    feature_dim: int | None = None,
    norm: NormKind = "batch",
    output_relu: bool = False,
    vocabulary: int | None = None,
) -> dict[str, nn.Module]:
    """The modules of a group, in the order in which clients take them: client i module i mod their
    number.

    Args:
      name: one of `GROUPS`; or "module:function", a function of yours (num_classes, input_shape,
        feature_dim or None) -> {name: module}, each a `SplitModel` or what has `features` and
        `classify` as it has.
      num_classes, input_shape: of the task; (H, W, C) of images, (T, signals) or (T, units,
        signals) of windows for `SENSORS`, int32 tokens (L,) for `TEXT_GROUPS`, any one float array
        for mlp2; see `Dataset.input_shape`.
      feature_dim: width of the features, None for the group's own.
      norm: what normalises in ResNets, GoogLeNet and MobileNetV2.
      output_relu: a ReLU behind the output layers of the htc4 groups' heads, as HtFLlib's released
        code has it.
      vocabulary: number of token ids, which text groups need (`Dataset.vocabulary`).

    Raises:
      ValueError: there is no such group, the samples are not what it takes or too small for it, or
        it has no use for an option given.
    """
    input_shape = plain(input_shape)
    if is_own(name):
        if norm != "batch" or output_relu:
            raise ValueError(
                f"norm and output_relu are for the library's own models, not for {name!r}"
            )
        return _own_group(name, num_classes, input_shape, feature_dim)
    if name not in GROUPS:
        raise ValueError(f"unknown model group {name!r}; the groups are {', '.join(GROUPS)}")
    if name == "mlp2" and not is_array(input_shape):
        raise ValueError(
            f"model group {name!r} needs one float array; a sample is {described(input_shape)}"
        )
    if name not in ("mlp2", *SENSORS, *TEXT_GROUPS):
        _check_image(name, input_shape)
    modules = GROUPS[name](
        Task(num_classes, input_shape, feature_dim, norm, output_relu, vocabulary)
    )
    if name in SENSORS:
        require_windows(
            f"model group {name!r}", input_shape, max(m.base.shortest for m in modules.values())
        )
    _check_size(name, input_shape, modules)
    if norm != "batch" and not any(hasattr(module.base, "norm") for module in modules.values()):
        raise ValueError(
            f"norm is {norm!r}, but model group {name!r} normalises nothing by batch; leave it at "
            "'batch'"
        )
    if output_relu and name not in _DEALT_WITH_HEADS:
        raise ValueError(
            f"output_relu is for the groups {', '.join(_DEALT_WITH_HEADS)}, not for {name!r}"
        )
    return modules


def sliced_network(
    name: str,
    num_classes: int,
    input_shape: InputShape,
    norm: NormKind = "static_batch",
    scaler: bool = True,
) -> Callable[[float], SplitModel]:
    """A network by width rate, as `make_sliced_federation` takes it.

    Args:
      name: one of `SLICED`.
      num_classes, input_shape: of the task; (H, W, C).
      norm: anything but "batch", whose running statistics would belong to channels that come and
        go.
      scaler: see `ConvNet`.

    Raises:
      ValueError: there is no such network, or the images or the norm do not fit it.
    """
    if name not in SLICED:
        raise ValueError(f"model group {name!r} cannot be sliced; {', '.join(SLICED)} can")
    if norm == "batch":
        raise ValueError(
            "norm is 'batch', but a slice keeps no running statistics; take static_batch or another"
        )
    _check_image(name, plain(input_shape))
    _check_size(name, input_shape, (name,))
    base = SLICED[name].clone(norm=norm, scaler=scaler)
    return lambda rate: sliced_model(base.clone(rate=float(rate)), num_classes)


def _check_image(name: str, shape: InputShape) -> None:
    if not is_image(shape):
        raise ValueError(
            f"model group {name!r} needs images, float [H, W, 1 or 3]; a sample is "
            f"{described(shape)}"
        )


_SMALLEST = {"cnn": 16, "conv": 16, "googlenet": 15}
"""Beginning of an architecture's name -> side of the smallest images that its pooling leaves any
of."""


def _check_size(name: str, input_shape: InputShape, architectures: Iterable[str]) -> None:
    sides = [n for a in architectures for start, n in _SMALLEST.items() if a.startswith(start)]
    smallest = max(sides, default=0)
    if sides and min(input_shape[:2]) < smallest:
        size, shown = f"{smallest}x{smallest}", tuple(input_shape[:2])
        raise ValueError(
            f"model group {name!r} needs images of at least {size} pixels, got {shown}"
        )
