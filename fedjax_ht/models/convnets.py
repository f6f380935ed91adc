"""ResNets, GoogLeNet and MobileNetV2 as torchvision defines them, sub-modules named after its own.

* ResNets (He et al., CVPR 2016) of 4 to 152 layers. ResNet-4, 6, 8 and 10 are HtFLlib's: 1 to 4
  stages of one block each. The stem is ImageNet's for every input size, so that a 32x32 image
  shrinks to 1x1 in the last stage.
* GoogLeNet (Szegedy et al., CVPR 2015) with batch norm and without auxiliary heads. The "5x5"
  branch of torchvision's inception block is a 3x3 convolution.
* MobileNetV2 (Sandler et al., CVPR 2018) of width 1.0.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.core.stages import note_stage
from fedjax_ht.models.layers import Conv, Initialisation, Linear, Norm, NormKind
from fedjax_ht.models.split import SplitModel
from fedjax_ht.models.stacking import scan_blocks
from fedjax_ht.ops import adaptive_pool, max_pool

RESNET_STAGES = {  # depth: blocks per stage
    4: (1,),
    6: (1, 1),
    8: (1, 1, 1),
    10: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
# fewest equal blocks to scan: a scan compiles faster, but runs slower for shorter stages
SCAN_FROM = 30
INCEPTION = {  # (1x1; 3x3 reduction, 3x3; "5x5" reduction, "5x5"; pool projection), channels
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
POOL_AFTER = {"3b": 3, "4e": 2}  # window of the max-pool, of stride 2, after a block
INVERTED_RESIDUALS = (  # expansion, channels, blocks, stride of the first (Table 2)
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
Mask = jax.Array | None  # bool [B], real samples


def conv_norms(
    norm: NormKind,
    train: bool,
    mask: Mask,
    *,
    epsilon: float = 1e-5,
    initialisation: Initialisation = "kaiming",
) -> Callable[..., jax.Array]:
    """Returns a function that applies a bias-free convolution and a norm with given names.

    Both are sub-modules of the caller, and the norm gets `train` and `mask`. A convolution of
    stride 1 keeps the resolution, unless `padding` is given.
    """

    def apply(names, x, features, *, size=1, stride=1, groups=1, padding=None):
        geometry = features, size, stride, size // 2 if padding is None else padding, groups
        conv = Conv(*geometry, use_bias=False, initialisation=initialisation, name=names[0])
        return Norm(norm, epsilon, name=names[1])(conv(x), train, mask)

    return apply


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut.

    float [B, H, W, C] -> [B, ceil(H/stride), ceil(W/stride), width].
    """

    width: int
    stride: int = 1
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: Mask) -> jax.Array:
        conv = conv_norms(self.norm, train, mask)
        y = nn.relu(conv(("conv1", "bn1"), x, self.width, size=3, stride=self.stride))
        y = conv(("conv2", "bn2"), y, self.width, size=3)
        return nn.relu(y + _shortcut(conv, x, y, self.stride))


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions with a shortcut.

    float [B, H, W, C] -> [B, ceil(H/stride), ceil(W/stride), 4 width].
    """

    width: int
    stride: int = 1
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: Mask) -> jax.Array:
        conv = conv_norms(self.norm, train, mask)
        y = nn.relu(conv(("conv1", "bn1"), x, self.width))
        y = nn.relu(conv(("conv2", "bn2"), y, self.width, size=3, stride=self.stride))
        y = conv(("conv3", "bn3"), y, 4 * self.width)
        return nn.relu(y + _shortcut(conv, x, y, self.stride))


def _shortcut(conv: Callable, x: jax.Array, y: jax.Array, stride: int) -> jax.Array:
    """Returns x in the shape of y."""
    if x.shape == y.shape:
        return x
    return conv(("downsample_0", "downsample_1"), x, y.shape[-1], stride=stride)


class ResNet(nn.Module):
    """Stem, stages of doubling width and halving resolution, global average.

    Attributes:
      stages: number of blocks of each stage.
      feature_dim: the averaged channels are pooled or repeated to this many features.
      bottleneck: True if blocks are bottlenecks.
      norm: the kind of norm after the convolutions, see `Norm`.
      width: channels of the stem and of the first stage's 3x3 convolutions.
      scan_from: a stage's blocks after the first are scanned, as `layer<i>_blocks`, if they are at
        least this many.
    """

    stages: tuple[int, ...]
    feature_dim: int = 512
    bottleneck: bool = False
    norm: NormKind = "batch"
    width: int = 64
    scan_from: int = SCAN_FROM

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False, mask: Mask = None) -> jax.Array:
        """Returns features float [B, feature_dim] of x [B, H, W, C]; mask: real samples."""
        conv = conv_norms(self.norm, train, mask)
        x = nn.relu(conv(("conv1", "bn1"), x, self.width, size=7, stride=2))
        x = max_pool(x, 3, 2, 1)
        for i, blocks in enumerate(self.stages, 1):

            def block(name: str, stride: int = 1, width=self.width * 2 ** (i - 1)) -> nn.Module:
                kind = Bottleneck if self.bottleneck else BasicBlock
                return kind(width, stride, self.norm, name=name)

            x = block(f"layer{i}_0", 1 if i == 1 else 2)(x, train, mask)
            if blocks - 1 >= self.scan_from:
                x = scan_blocks(block(f"layer{i}_blocks"), x, train, mask, length=blocks - 1)
            else:
                for j in range(1, blocks):
                    x = block(f"layer{i}_{j}")(x, train, mask)
            note_stage(self, x)
        return adaptive_pool(x.mean((1, 2)), self.feature_dim)


class ConvNorm(nn.Module):
    """Convolution, norm, ReLU; stride 1 keeps the resolution."""

    features: int
    size: int
    stride: int = 1
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: Mask) -> jax.Array:
        conv = conv_norms(self.norm, train, mask, epsilon=1e-3, initialisation="trunc_normal")
        y = conv(("conv", "bn"), x, self.features, size=self.size, stride=self.stride)
        return nn.relu(y)


class Inception(nn.Module):
    """Four parallel branches, concatenated along the channels, at the same resolution.

    float [B, H, W, C] -> [B, H, W, sum of the branches' channels]; `channels` as in `INCEPTION`.
    """

    channels: tuple[int, int, int, int, int, int]
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: Mask) -> jax.Array:
        def conv(name, x, features, size):
            return ConvNorm(features, size, norm=self.norm, name=name)(x, train, mask)

        point, three_in, three, five_in, five, pool = self.channels
        branches = [
            conv("branch1", x, point, 1),
            conv("branch2_1", conv("branch2_0", x, three_in, 1), three, 3),
            conv("branch3_1", conv("branch3_0", x, five_in, 1), five, 3),
            conv("branch4_1", max_pool(x, 3, 1, 1), pool, 1),
        ]
        return jnp.concatenate(branches, axis=-1)


class GoogLeNet(nn.Module):
    """Stem, nine inception blocks, global average, dropout 0.2.

    Dropout is active in training if a "dropout" key is given.

    Attributes:
      feature_dim: the 1024 averaged channels are pooled to this many features.
      norm: the kind of norm after the convolutions, see `Norm`.
    """

    feature_dim: int = 512
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False, mask: Mask = None) -> jax.Array:
        """Returns features float [B, feature_dim] of x [B, H, W, C]; mask: real samples."""
        x = ConvNorm(64, 7, 2, self.norm, name="conv1")(x, train, mask)
        x = max_pool(x, 3, 2, ceil=True)
        x = ConvNorm(64, 1, 1, self.norm, name="conv2")(x, train, mask)
        x = ConvNorm(192, 3, 1, self.norm, name="conv3")(x, train, mask)
        x = max_pool(x, 3, 2, ceil=True)
        for block, channels in INCEPTION.items():
            x = Inception(channels, self.norm, name=f"inception{block}")(x, train, mask)
            if block in POOL_AFTER:
                x = max_pool(x, POOL_AFTER[block], 2, ceil=True)
        return averaged(self, x, train)


class InvertedResidual(nn.Module):
    """1x1 expansion, 3x3 depthwise convolution, linear 1x1 projection.

    float [B, H, W, C] -> [B, ceil(H/stride), ceil(W/stride), features]. There is no expansion if
    `expansion` is 1, and a shortcut if the shape does not change.
    """

    features: int
    stride: int
    expansion: int
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: Mask) -> jax.Array:
        conv = conv_norms(self.norm, train, mask)
        width = x.shape[-1] * self.expansion
        y, at = x, 0  # `at`: index in torchvision's sequence, which names the layers
        if self.expansion != 1:
            y, at = nn.relu6(conv(("conv_0_0", "conv_0_1"), x, width)), 1
        depthwise = {"size": 3, "stride": self.stride, "groups": width}
        y = nn.relu6(conv((f"conv_{at}_0", f"conv_{at}_1"), y, width, **depthwise))
        y = conv((f"conv_{at + 1}", f"conv_{at + 2}"), y, self.features)
        return x + y if x.shape == y.shape else y


class MobileNetV2(nn.Module):
    """Stem, seventeen inverted residuals, 1x1 convolution, global average, dropout 0.2.

    Dropout is active in training if a "dropout" key is given.

    Attributes:
      feature_dim: the 1280 averaged channels are pooled to this many features.
      norm: the kind of norm after the convolutions, see `Norm`.
    """

    feature_dim: int = 512
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False, mask: Mask = None) -> jax.Array:
        """Returns features float [B, feature_dim] of x [B, H, W, C]; mask: real samples."""
        conv = conv_norms(self.norm, train, mask)
        x = nn.relu6(conv(("features_0_0", "features_0_1"), x, 32, size=3, stride=2))
        at = 1
        for expansion, features, blocks, stride in INVERTED_RESIDUALS:
            for block in range(blocks):
                sizes = features, stride if block == 0 else 1, expansion
                x = InvertedResidual(*sizes, self.norm, name=f"features_{at}")(x, train, mask)
                at += 1
        x = nn.relu6(conv((f"features_{at}_0", f"features_{at}_1"), x, 1280))
        return averaged(self, x, train)


def averaged(network: Any, x: jax.Array, train: bool, dropout: float = 0.2) -> jax.Array:
    """Returns the features of a network's last map: global average, dropout, pooling.

    Args:
      network: the calling module; its `feature_dim` is the number of features.
      x: the map, float [B, H, W, C].
      train: True applies dropout, if the module has a "dropout" key.
      dropout: share of the averages that is dropped.
    """
    dropping = train and network.has_rng("dropout")
    x = nn.Dropout(dropout, deterministic=not dropping)(x.mean((1, 2)))
    return adaptive_pool(x, network.feature_dim)


def resnet(
    depth: int, num_classes: int, feature_dim: int = 512, norm: NormKind = "batch"
) -> SplitModel:
    """Builds ResNet-`depth` as extractor, with a linear head.

    Raises:
      ValueError: there is no ResNet of this depth.
    """
    if depth not in RESNET_STAGES:
        raise ValueError(
            f"unknown ResNet of depth {depth}; the depths are {', '.join(map(str, RESNET_STAGES))}"
        )
    base = ResNet(RESNET_STAGES[depth], feature_dim, bottleneck=depth >= 50, norm=norm)
    return SplitModel(base, Linear(num_classes), stateful=True)


def googlenet(num_classes: int, feature_dim: int = 512, norm: NormKind = "batch") -> SplitModel:
    """Builds GoogLeNet as extractor, with a linear head."""
    return SplitModel(GoogLeNet(feature_dim, norm), Linear(num_classes), stateful=True)


def mobilenet_v2(num_classes: int, feature_dim: int = 512, norm: NormKind = "batch") -> SplitModel:
    """Builds MobileNetV2 as extractor, with a linear head."""
    return SplitModel(MobileNetV2(feature_dim, norm), Linear(num_classes), stateful=True)
