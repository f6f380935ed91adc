"""Networks of which a client trains a slice, for images of 16 pixels and more.

They are the 4-conv CNN of HeteroFL (Diao et al., ICLR 2021) and pre-activation ResNets (He et al.,
ECCV 2016) with a CIFAR stem.

A slice of width rate R keeps ceil(R K) of the K channels of every hidden layer, and is itself the
same network with `rate=R`. The network does not choose the channels (see `methods.shared.slicing`).
It defines the *group* of channels that each layer reads and writes, and the number of a group's
channels at rate 1. Channels that are added to each other are one group. Image channels and classes
are never sliced.

Your own network can be sliced if its extractor has `channels(per_layer)` as below, with layers of
these names, and a linear head after a global average. FjORD and FedSPU also set its field `rate`.
"""

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from fedjax_ht.core.stages import note_stage
from fedjax_ht.models.layers import Conv, Linear, Norm, NormKind
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import max_pool

WIDTHS = (64, 128, 256, 512)
# depth: blocks per stage, as DFRD names them
PREACT_STAGES = {18: (2, 2, 2, 2), 20: (2, 3, 2, 2), 34: (3, 4, 6, 3)}
Tree = dict[str, Any]
CLASSES = "classes"
"""The axis of the head's outputs in `parameter_axes`."""


class Channels(NamedTuple):
    """The groups of channels of a network.

    Attributes:
      widths: group -> channels at rate 1.
      layers: a layer's path in the parameters -> (group that it reads, None for image channels;
        group that it writes).
      features: the group that the head reads.
    """

    widths: dict[str, int]
    layers: dict[str, tuple[str | None, str]]
    features: str


def sliced_width(width: int, rate: float) -> int:
    """Returns ceil(rate * width), at least 1; ignores rounding errors of the product."""
    return max(1, math.ceil(round(rate * width, 6)))


def width_budgets(num_clients: int, rho: float, sigma: int = 4) -> tuple[float, ...]:
    """Returns DFRD's rates R_i = (1/2)^min(sigma, floor(rho i / N)) of the clients i = 1..N.

    Args:
      num_clients: number of clients, N.
      rho: how steeply the rates fall.
      sigma: the exponent of the smallest rate, (1/2)^sigma.

    Raises:
      ValueError: rho or sigma is below 0.
    """
    if rho < 0 or sigma < 0:
        raise ValueError(f"rho is {rho} and sigma is {sigma}; both must be at least 0")
    return tuple(0.5 ** min(sigma, int(rho * i // num_clients)) for i in range(1, num_clients + 1))


def parameter_axes(module: nn.Module, params: Tree, per_layer: bool = False) -> Tree:
    """Returns the group of channels along each axis of each parameter.

    A kernel's last two axes are what the layer reads and writes, and any other parameter's only
    axis is what it writes. The head's output is the axis `CLASSES`.

    Args:
      module: a `SplitModel` whose base has `channels`.
      params: the module's {"base", "head"}, at any rate; only the structure and the number of axes
        are read.
      per_layer: True gives every layer a group of its own, see `PreActResNet.channels`.

    Returns:
      A tuple of group names, or None, for each leaf, in the structure of `params`.
    """
    channels = module.base.channels(per_layer)

    def axes(path, leaf):
        part, *layer, kind = (entry.key for entry in path)
        reads, writes = channels.features, CLASSES
        if part == "base":
            reads, writes = channels.layers["/".join(layer)]
        if kind != "kernel":
            return (writes,)
        return (*(None,) * (leaf.ndim - 2), reads, writes)

    return jax.tree_util.tree_map_with_path(axes, params)


def _normalise(
    module: nn.Module, name: str, x: jax.Array, train: bool, mask: jax.Array | None
) -> jax.Array:
    """Applies HeteroFL's scaler, x / R in training, then the norm."""
    if module.scaler and train:
        x = x / module.rate
    return Norm(module.norm, name=name)(x, train, mask)


class ConvNet(nn.Module):
    """[conv 3x3, norm, ReLU, max-pool 2x2] per entry of `widths`, then the global average.

    Attributes:
      widths: channels at rate 1.
      rate: width rate R, the share of the channels that this network has.
      norm: the kind of norm after the convolutions, see `Norm`.
      scaler: True divides by R before every norm, in training; it matters only without norms.
    """

    widths: tuple[int, ...] = WIDTHS
    rate: float = 1.0
    norm: NormKind = "static_batch"
    scaler: bool = True

    @nn.compact
    def __call__(
        self, x: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns features float [B, ceil(R widths[-1])] of x [B, H, W, C]; mask: real samples."""
        for i, width in enumerate(self.widths, 1):
            x = Conv(sliced_width(width, self.rate), 3, padding=1, name=f"conv{i}")(x)
            x = nn.relu(max_pool(_normalise(self, f"norm{i}", x, train, mask), 2, 2))
            note_stage(self, x)
        return x.mean((1, 2))

    @nn.nowrap
    def channels(self, per_layer: bool = False) -> Channels:
        """Returns a group for each convolution, with or without `per_layer`."""
        widths, before = {}, None
        layers: dict[str, tuple[str | None, str]] = {}
        for i, width in enumerate(self.widths, 1):
            group = f"conv{i}"
            widths[group] = width
            layers[group], layers[f"norm{i}"] = (before, group), (group, group)
            before = group
        return Channels(widths, layers, features=f"conv{len(self.widths)}")


class PreActBlock(nn.Module):
    """Twice norm, ReLU and 3x3 convolution, with a shortcut.

    float [B, H, W, C] -> [B, ceil(H/stride), ceil(W/stride), ceil(R width)]. If the block has a
    stride, the shortcut is a 1x1 convolution after the first ReLU.
    """

    width: int
    stride: int
    rate: float
    norm: NormKind
    scaler: bool

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: jax.Array | None) -> jax.Array:
        def conv(name, x, size, stride, padding):
            return Conv(
                sliced_width(self.width, self.rate),
                size,
                stride,
                padding,
                use_bias=False,
                name=name,
            )(x)

        active = nn.relu(_normalise(self, "norm1", x, train, mask))
        skip = x if self.stride == 1 else conv("shortcut", active, 1, self.stride, 0)
        x = conv("conv1", active, 3, self.stride, 1)
        return conv("conv2", nn.relu(_normalise(self, "norm2", x, train, mask)), 3, 1, 1) + skip


class PreActResNet(nn.Module):
    """A 3x3 stem, stages of basic blocks, norm, ReLU, global average.

    All stages but the first halve the resolution.

    Attributes:
      stages: blocks per stage.
      widths: channels of each stage at rate 1; the stem has the first stage's.
      rate, norm, scaler: width rate, kind of norm and scaler, as for `ConvNet`.
    """

    stages: tuple[int, ...]
    widths: tuple[int, ...] = WIDTHS
    rate: float = 1.0
    norm: NormKind = "static_batch"
    scaler: bool = True

    @nn.compact
    def __call__(
        self, x: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns features float [B, ceil(R widths[-1])] of x [B, H, W, C]; mask: real samples."""
        x = Conv(sliced_width(self.widths[0], self.rate), 3, 1, 1, use_bias=False, name="conv1")(x)
        for name, stage, stride in self._blocks():
            options = (self.rate, self.norm, self.scaler)
            x = PreActBlock(self.widths[stage], stride, *options, name=name)(x, train, mask)
        return nn.relu(_normalise(self, "norm", x, train, mask)).mean((1, 2))

    @nn.nowrap
    def channels(self, per_layer: bool = False) -> Channels:
        """Returns a group for each residual stream, and one for each block's interior.

        With `per_layer` every block writes a group of its own, as in released code. An identity
        shortcut then adds different channels of the whole network.
        """
        stream = "stem" if per_layer else "stage1"
        widths = {stream: self.widths[0]}
        layers: dict[str, tuple[str | None, str]] = {"conv1": (None, stream)}
        for name, stage, stride in self._blocks():
            before, inner = stream, f"{name}_inner"
            stream = f"{name}_out" if per_layer else f"stage{stage + 1}"
            widths |= {inner: self.widths[stage], stream: self.widths[stage]}
            layers[f"{name}/norm1"] = (before, before)
            layers[f"{name}/conv1"] = (before, inner)
            layers[f"{name}/norm2"] = (inner, inner)
            layers[f"{name}/conv2"] = (inner, stream)
            if stride > 1:
                layers[f"{name}/shortcut"] = (before, stream)
        return Channels(widths, layers | {"norm": (stream, stream)}, stream)

    @nn.nowrap
    def _blocks(self) -> list[tuple[str, int, int]]:
        """Lists (name, stage, stride) of each block in order."""
        blocks = []
        for stage, count in enumerate(self.stages):
            for i in range(count):
                # The first block of every stage but the first halves the resolution.
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append((f"stage{stage + 1}_{i}", stage, stride))
        return blocks


def sliced_model(base: ConvNet | PreActResNet, num_classes: int) -> SplitModel:
    """Builds the extractor with a linear head, whose initial bias is zero."""
    return SplitModel(base, Linear(num_classes, "torch_zero_bias"), stateful=True)


SLICED: dict[str, ConvNet | PreActResNet] = {
    "conv4": ConvNet(),
    "conv4_quarter": ConvNet(tuple(width // 4 for width in WIDTHS)),
    **{f"preact_resnet{depth}": PreActResNet(stages) for depth, stages in PREACT_STAGES.items()},
}
"""Networks of which clients may train slices; as model groups, the whole networks."""
