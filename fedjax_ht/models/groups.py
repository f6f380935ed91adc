"""Model groups by the names that configs use: which architectures the clients take in turn.

`models.registry.model_group` checks that a group suits its samples and builds it.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn

from fedjax_ht.core.inputs import InputShape
from fedjax_ht.models.cnn import cnn4, cnn5_group, mlp
from fedjax_ht.models.heads import htc4_heads
from fedjax_ht.models.inception import googlenet
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.mobilenet import mobilenet_v2
from fedjax_ht.models.norm import NormKind
from fedjax_ht.models.resnets import RESNET_STAGES, ResNet, resnet
from fedjax_ht.models.sensors import harcnn
from fedjax_ht.models.sliced import PREACT_STAGES, WIDTHS, ConvNet, PreActResNet, sliced_model
from fedjax_ht.models.split import SplitModel
from fedjax_ht.models.text_groups import TEXT_GROUPS, text_group
from fedjax_ht.models.vits import VITS, vit


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


def _architecture(name: str, arguments: GroupArguments) -> SplitModel:
    size = arguments.num_classes, arguments.feature_dim or 512
    if name == "cnn":
        return cnn4(*size)
    if name in VITS:
        return vit(name, *size)
    if name.startswith("resnet"):
        return resnet(int(name.removeprefix("resnet")), *size, arguments.norm)
    return {"googlenet": googlenet, "mobilenet_v2": mobilenet_v2}[name](*size, arguments.norm)


def _dealt(names: tuple[str, ...], arguments: GroupArguments) -> Modules:
    return {name: _architecture(name, arguments) for name in names}


def _dealt_linear(names: tuple[str, ...], arguments: GroupArguments) -> Modules:
    """Builds a group with one linear head for all, transformers too, so that methods that exchange
    heads take it."""
    modules = {}
    for name, module in _dealt(names, arguments).items():
        modules[name] = module.clone(head=Linear(arguments.num_classes))
    return modules


def _dealt_with_heads(names: tuple[str, ...], arguments: GroupArguments) -> Modules:
    """Builds a group in which client i takes architecture i mod X and head i mod 4.

    The combinations repeat after lcm(X, 4) clients.
    """
    heads = htc4_heads(arguments.num_classes, arguments.output_relu)
    bases = _dealt(names, arguments)
    modules = {}
    for i in range(math.lcm(len(names), len(heads))):
        name, head = names[i % len(names)], i % len(heads)
        modules[f"{name}_head{head + 1}"] = bases[name].clone(head=heads[head])
    return modules


def _cnn5(arguments: GroupArguments) -> Modules:
    return cnn5_group(arguments.num_classes, arguments.input_shape[-1], arguments.feature_dim)


def _cnn1(arguments: GroupArguments) -> Modules:
    return {"cnn1": _cnn5(arguments)["cnn1"]}


def _mlp2(arguments: GroupArguments) -> Modules:
    width = arguments.feature_dim or 32
    return {
        "mlp_narrow": mlp(arguments.num_classes, (32, width)),
        "mlp_wide": mlp(arguments.num_classes, (64, width)),
    }


def _sensors(names: tuple[str, ...], arguments: GroupArguments) -> Modules:
    """Builds networks for windows; a name ends in the stride, as in "harcnn_s2"."""
    size = arguments.num_classes, arguments.feature_dim or 512
    modules = {}
    for name in names:
        kind, stride = name.split("_s")
        modules[name] = harcnn(kind, int(stride), *size)
    return modules


def _refuse_feature_dim(name: str, arguments: GroupArguments) -> None:
    if arguments.feature_dim:
        raise ValueError(
            f"feature_dim is {arguments.feature_dim}, but the features of {name} are its last "
            "channels; leave it out"
        )


def _whole(name: str, arguments: GroupArguments) -> Modules:
    _refuse_feature_dim(name, arguments)
    return {name: sliced_model(SLICED[name].clone(norm=arguments.norm), arguments.num_classes)}


def _resnet18_depths(arguments: GroupArguments) -> Modules:
    """Builds the first one to four stages of ResNet-18."""
    modules, stages = {}, RESNET_STAGES[18]
    for depth in range(1, len(stages) + 1):
        base = ResNet(stages[:depth], arguments.feature_dim or 512, norm=arguments.norm)
        modules[f"resnet18_depth{depth}"] = SplitModel(
            base, Linear(arguments.num_classes), stateful=True
        )
    return modules


def _conv_depths(name: str, arguments: GroupArguments) -> Modules:
    """Builds the first one to four convolutions of a network of `SLICED`, each a stage."""
    _refuse_feature_dim(f"{name}_depths", arguments)
    whole, modules = SLICED[name], {}
    for depth in range(1, len(whole.widths) + 1):
        base = whole.clone(widths=whole.widths[:depth], norm=arguments.norm)
        modules[f"{name}_depth{depth}"] = sliced_model(base, arguments.num_classes)
    return modules


def _text(name: str, arguments: GroupArguments) -> Modules:
    return text_group(
        name,
        arguments.num_classes,
        arguments.input_shape,
        arguments.feature_dim,
        arguments.vocabulary,
    )


def _each(
    build: Callable[[tuple[str, ...], GroupArguments], Modules], members: dict[str, tuple[str, ...]]
) -> dict[str, GroupFactory]:
    """Returns a factory for each group, which builds the group's members."""
    return {group: functools.partial(build, names) for group, names in members.items()}


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
_ALONE = (*_RESNETS, "googlenet", "mobilenet_v2", *VITS)
_DEALT = {
    "htfe2": ("cnn", "resnet18"),
    "htfe3": ("resnet10", "resnet18", "resnet34"),
    "htfe4": ("cnn", "googlenet", "mobilenet_v2", "resnet18"),
    "htfe5": ("googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50"),
    "htfe8": _HTFE8,
    "htfe9": _RESNETS,
    "htm10": (*_HTFE8, "vit_b16", "vit_b32"),
    "fedral5": _RESNETS[4:],  # Tiny-ImageNet
} | {name: (name,) for name in _ALONE}
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

ARCHITECTURES = ("cnn4", "cnn5", "mlp2", *_ALONE, *_SEN8)
"""Groups that together hold every architecture but those of `SLICED`."""

SLICED: dict[str, ConvNet | PreActResNet] = {
    "conv4": ConvNet(),
    "conv4_quarter": ConvNet(tuple(width // 4 for width in WIDTHS)),
    **{f"preact_resnet{depth}": PreActResNet(stages) for depth, stages in PREACT_STAGES.items()},
}
"""Networks of which clients may train slices; as groups, whole ones."""

CONVS = ("conv4", "conv4_quarter")  # of `SLICED`, those of which each convolution is a stage

GROUPS: dict[str, GroupFactory] = {
    "cnn4": functools.partial(_dealt, ("cnn",)),
    "cnn5": _cnn5,
    "fedssa_cnn1": _cnn1,
    "mlp2": _mlp2,
    **_each(_dealt, _DEALT),
    **_each(_dealt_linear, _DEALT_LINEAR),
    **_each(_dealt_with_heads, HETEROGENEOUS_HEADS),
    **{name: functools.partial(_whole, name) for name in SLICED},
    "resnet18_depths": _resnet18_depths,
    **{f"{name}_depths": functools.partial(_conv_depths, name) for name in CONVS},
    **_each(_sensors, SENSORS),
    **{name: functools.partial(_text, name) for name in TEXT_GROUPS},
}
"""HtFLlib's groups htfeX (X extractors), htm10, htc4 (four heads), htfe_senX (of sensors) and
htfe_txtX (of tokens); FedSSA's and FedRAL's CNN-1..5, CNN-1 alone (FedSSA's Table 1) and FedRAL's
other groups; two perceptrons; the first stages of ResNet-18 and of the 4-conv CNNs, by depth; every
architecture by itself, the sliceable ones among them."""
