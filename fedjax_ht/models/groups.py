"""Model groups by their names in configs: architectures that are assigned to clients in turn.

`models.registry.model_group` checks that a group suits its samples and builds it. The modules of
its models are imported when it is built.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import jax

from fedjax_ht import models
from fedjax_ht.core.inputs import InputShape, described
from fedjax_ht.models.layers import NormKind


class GroupArguments(NamedTuple):
    """The samples and options that a group's models are built for.

    Attributes: see the arguments of `model_group`.
    """

    num_classes: int
    input_shape: InputShape
    feature_dim: int | None
    norm: NormKind
    output_relu: bool
    vocabulary: int | None = None


Modules = Mapping[str, nn.Module]
GroupFactory = Callable[[GroupArguments], Modules]


def _architecture(name: str, arguments: GroupArguments) -> models.SplitModel:
    size = arguments.num_classes, arguments.feature_dim or 512
    if name == "cnn":
        return models.cnn4(*size)
    if name in _VITS:
        return models.vit(name, *size)
    if name.startswith("resnet"):
        return models.resnet(int(name.removeprefix("resnet")), *size, arguments.norm)
    if name.startswith("efficientnet_lite"):
        variant = int(name.removeprefix("efficientnet_lite"))
        return models.efficientnet_lite(variant, *size, arguments.norm)
    return getattr(models, name)(*size, arguments.norm)


def _dealt(names: tuple[str, ...], arguments: GroupArguments) -> Modules:
    return {name: _architecture(name, arguments) for name in names}


def _dealt_linear(names: tuple[str, ...], arguments: GroupArguments) -> Modules:
    """Builds a group with one linear head for all models, including transformers.

    Methods that exchange heads accept such a group.
    """
    modules = {}
    for name, module in _dealt(names, arguments).items():
        modules[name] = module.clone(head=models.Linear(arguments.num_classes))
    return modules


def _dealt_with_heads(names: tuple[str, ...], arguments: GroupArguments) -> Modules:
    """Builds a group in which client i takes architecture i mod X and head i mod 4.

    The combinations repeat after lcm(X, 4) clients.
    """
    heads = models.htc4_heads(arguments.num_classes, arguments.output_relu)
    bases = _dealt(names, arguments)
    modules = {}
    for i in range(math.lcm(len(names), len(heads))):
        name, head = names[i % len(names)], i % len(heads)
        modules[f"{name}_head{head + 1}"] = bases[name].clone(head=heads[head])
    return modules


def _cnn5(arguments: GroupArguments) -> Modules:
    return models.cnn5_group(
        arguments.num_classes, arguments.input_shape[-1], arguments.feature_dim
    )


def _cnn1(arguments: GroupArguments) -> Modules:
    return {"cnn1": _cnn5(arguments)["cnn1"]}


def _mlp2(arguments: GroupArguments) -> Modules:
    width = arguments.feature_dim or 32
    return {
        "mlp_narrow": models.mlp(arguments.num_classes, (32, width)),
        "mlp_wide": models.mlp(arguments.num_classes, (64, width)),
    }


def _sensors(names: tuple[str, ...], arguments: GroupArguments) -> Modules:
    """Builds networks for windows; a name ends in the stride, as in "harcnn_s2"."""
    from fedjax_ht.models.sensors import harcnn

    size = arguments.num_classes, arguments.feature_dim or 512
    modules = {}
    for name in names:
        kind, stride = name.split("_s")
        modules[name] = harcnn(kind, int(stride), *size)
    return modules


def _unet3(arguments: GroupArguments) -> Modules:
    """Builds U-Nets of three widths, for a task with a class at each pixel."""
    height, width, *_ = arguments.input_shape
    classes, rest = divmod(arguments.num_classes, height * width)
    if rest or not classes:
        raise ValueError(
            f"model group 'unet3' gives each of {height}x{width} pixels a class, but the task has "
            f"{arguments.num_classes} outputs; use it for per-pixel"
        )
    channels = arguments.feature_dim or 16
    return {f"unet{width}": models.unet(classes, width, channels) for width in (8, 16, 32)}


def _refuse_feature_dim(name: str, arguments: GroupArguments) -> None:
    if arguments.feature_dim:
        raise ValueError(
            f"feature_dim is {arguments.feature_dim}, but the features of {name} are its last "
            "channels; remove it"
        )


def _whole(name: str, arguments: GroupArguments) -> Modules:
    from fedjax_ht.models.sliced import SLICED, sliced_model

    _refuse_feature_dim(name, arguments)
    return {name: sliced_model(SLICED[name].clone(norm=arguments.norm), arguments.num_classes)}


def _resnet18_depths(arguments: GroupArguments) -> Modules:
    """Builds the first one to four stages of ResNet-18."""
    from fedjax_ht.models.convnets import RESNET_STAGES, ResNet

    modules, stages = {}, RESNET_STAGES[18]
    for depth in range(1, len(stages) + 1):
        base = ResNet(stages[:depth], arguments.feature_dim or 512, norm=arguments.norm)
        modules[f"resnet18_depth{depth}"] = models.SplitModel(
            base, models.Linear(arguments.num_classes), stateful=True
        )
    return modules


def _conv_depths(name: str, arguments: GroupArguments) -> Modules:
    """Builds the first one to four convolutions of a network of `SLICED`, each a stage."""
    from fedjax_ht.models.sliced import SLICED, sliced_model

    _refuse_feature_dim(f"{name}_depths", arguments)
    whole, modules = SLICED[name], {}
    for depth in range(1, len(whole.widths) + 1):
        base = whole.clone(widths=whole.widths[:depth], norm=arguments.norm)
        modules[f"{name}_depth{depth}"] = sliced_model(base, arguments.num_classes)
    return modules


def require_tokens(consumer: str, shape: InputShape) -> None:
    """Rejects samples that are not texts, integers [L].

    Args:
      consumer: the group that needs tokens, for the message.
      shape: the shape of one sample as a model sees it.

    Raises:
      ValueError: a sample is something else.
    """
    is_typed = isinstance(shape, jax.ShapeDtypeStruct)
    if not (is_typed and len(shape.shape) == 1 and shape.dtype.kind == "i"):
        raise ValueError(f"{consumer} needs tokens, int [L]; a sample is {described(shape)}")


def _text(name: str, arguments: GroupArguments) -> Modules:
    """Builds a group of `TEXT_GROUPS`, in the order of the clients."""
    require_tokens(f"model group {name!r}", arguments.input_shape)
    if not arguments.vocabulary:
        raise ValueError(
            f"model group {name!r} needs vocabulary, the number of token ids (Dataset.vocabulary)"
        )
    size = arguments.num_classes, arguments.vocabulary, arguments.feature_dim or 512
    modules = {}
    for member in _TEXTS[name]:
        if isinstance(member, str):
            modules[member] = models.text_model(member, *size)
        else:
            heads, layers = member
            modules[f"transformer_{heads}_{layers}"] = models.text_transformer(*size, heads, layers)
    return modules


def _each(
    build: Callable[[tuple[str, ...], GroupArguments], Modules], members: dict[str, tuple[str, ...]]
) -> dict[str, GroupFactory]:
    """Returns a factory for each group, which builds the group's members."""
    return {group: functools.partial(build, names) for group, names in members.items()}


_RESNETS = tuple(f"resnet{depth}" for depth in (4, 6, 8, 10, 18, 34, 50, 101, 152))
_VITS = ("vit_small", "vit_b16", "vit_b32")
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
_EFFICIENT = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
EXTRACTORS = (*_RESNETS, "googlenet", "mobilenet_v2", *_EFFICIENT, *_VITS)
"""Image extractors with published weights, or of the same families."""
_DEALT = {
    "htfe2": ("cnn", "resnet18"),
    "htfe3": ("resnet10", "resnet18", "resnet34"),
    "htfe4": ("cnn", "googlenet", "mobilenet_v2", "resnet18"),
    "htfe5": ("googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50"),
    "htfe8": _HTFE8,
    "htfe9": _RESNETS,
    "htm10": (*_HTFE8, "vit_b16", "vit_b32"),
    "fedral5": _RESNETS[4:],  # Tiny-ImageNet
} | {name: (name,) for name in EXTRACTORS}
# CIFAR-100, "high heterogeneity". The paper does not say which ViT; its Table 6 has methods that
# exchange heads.
_DEALT_LINEAR = {"fedral11": (*_RESNETS, "cnn", "vit_b16")}
HETEROGENEOUS_HEADS = {"res34_htc4": ("resnet34",), "htfe8_htc4": _HTFE8}
"""Groups with HtFLlib's four heads -> their extractors."""

_SEN3 = ("harcnn_s1", "harcnn_s2", "harcnn_s3")
_SEN8 = (*_SEN3, "harcnn1_s1", "harcnn1_s2", "harcnn1_s3", "harcnn3_s1", "harcnn3_s2")
SENSORS: dict[str, tuple[str, ...]] = {
    "htfe_sen2": _SEN3[:2],
    "htfe_sen3": _SEN3,
    "htfe_sen5": (*_SEN3, "harcnn1_s1", "harcnn3_s1"),
    "htfe_sen8": _SEN8,
} | {name: (name,) for name in _SEN8}
"""Groups for windows of sensor signals -> their architectures."""

_TRANSFORMERS = {  # heads and layers
    "htfe_txt5_1": ((8, 1), (8, 2), (8, 4), (8, 8), (8, 16)),
    "htfe_txt5_2": ((1, 4), (2, 4), (4, 4), (8, 4), (16, 4)),
    "htfe_txt5_3": ((1, 1), (2, 2), (4, 4), (8, 8), (16, 16)),
}
_TEXTS = {
    "htfe_txt2": ("fasttext", "text_logistic"),
    "htfe_txt4": ("fasttext", "text_logistic", "lstm", "bilstm"),
    "htfe_txt6": ("fasttext", "lstm", "bilstm", (8, 2), "text_logistic", "gru"),
    **_TRANSFORMERS,
    **{name: (name,) for name in ("fasttext", "text_logistic", "lstm", "gru", "bilstm")},
    "text_transformer": ((8, 2),),
}
TEXT_GROUPS = tuple(_TEXTS)
"""HtFLlib's HtFE-txt-2, 4, 6 and 5-1 to 5-3, and every architecture on its own.

The transformer on its own has 8 heads and 2 layers.
"""

CONVS = ("conv4", "conv4_quarter")  # each convolution is a stage
_SLICED = (*CONVS, "preact_resnet18", "preact_resnet20", "preact_resnet34")  # of `sliced.SLICED`

PIXEL_GROUPS = ("unet3",)
"""Groups that classify each pixel."""

GROUPS: dict[str, GroupFactory] = {
    "cnn4": functools.partial(_dealt, ("cnn",)),
    "cnn5": _cnn5,
    "fedssa_cnn1": _cnn1,
    "mlp2": _mlp2,
    **_each(_dealt, _DEALT),
    **_each(_dealt_linear, _DEALT_LINEAR),
    **_each(_dealt_with_heads, HETEROGENEOUS_HEADS),
    **{name: functools.partial(_whole, name) for name in _SLICED},
    "resnet18_depths": _resnet18_depths,
    **{f"{name}_depths": functools.partial(_conv_depths, name) for name in CONVS},
    **dict.fromkeys(PIXEL_GROUPS, _unet3),
    **_each(_sensors, SENSORS),
    **{name: functools.partial(_text, name) for name in TEXT_GROUPS},
}
"""HtFLlib's groups htfeX (X extractors), htm10, htc4 (four heads), htfe_senX (of sensors) and
htfe_txtX (of tokens); FedSSA's and FedRAL's CNN-1..5, CNN-1 alone (FedSSA's Table 1) and FedRAL's
other groups; two perceptrons; three U-Nets; the first stages of ResNet-18 and of the 4-conv CNNs,
by depth; every architecture on its own, including the sliceable ones."""
