"""MobileNetV2 (Sandler et al., CVPR 2018) of width 1.0, sub-modules named after torchvision's."""

import functools

import flax.linen as nn
import jax

from fedjax_ht.models.layers import Conv, Linear
from fedjax_ht.models.norm import Norm, NormKind
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import adaptive_pool

INVERTED_RESIDUALS = (  # expansion, channels, blocks, stride of the first (Table 2)
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

_conv = functools.partial(Conv, use_bias=False, initialisation="kaiming")


class InvertedResidual(nn.Module):
    """1x1 expansion, 3x3 depthwise convolution, linear 1x1 projection.

    float [B, H, W, C] -> [B, ceil(H/stride), ceil(W/stride), features]. There is no expansion where
    `expansion` is 1, and a shortcut where the shape stays.
    """

    features: int
    stride: int
    expansion: int
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: jax.Array | None) -> jax.Array:
        def norm(name, x):
            return Norm(self.norm, name=name)(x, train, mask)

        width = x.shape[-1] * self.expansion
        y, at = x, 0  # `at`: place in torchvision's sequence, by which layers are named
        if self.expansion != 1:
            y, at = nn.relu6(norm("conv_0_1", _conv(width, 1, name="conv_0_0")(x))), 1
        depthwise = _conv(width, 3, self.stride, 1, groups=width, name=f"conv_{at}_0")
        y = nn.relu6(norm(f"conv_{at}_1", depthwise(y)))
        y = norm(f"conv_{at + 2}", _conv(self.features, 1, name=f"conv_{at + 1}")(y))
        return x + y if x.shape == y.shape else y


class MobileNetV2(nn.Module):
    """Stem, seventeen inverted residuals, 1x1 convolution, global average, dropout 0.2.

    Dropout acts in training where a "dropout" key is given.

    Attributes:
      feature_dim: the 1280 averaged channels are pooled to this many features.
      norm: the kind of norm behind the convolutions, see `Norm`.
    """

    feature_dim: int = 512
    norm: NormKind = "batch"

    @nn.compact
    def __call__(
        self, x: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns features float [B, feature_dim] of x [B, H, W, C]; mask: real samples."""
        x = _conv(32, 3, 2, 1, name="features_0_0")(x)
        x = nn.relu6(Norm(self.norm, name="features_0_1")(x, train, mask))
        at = 1
        for expansion, features, blocks, stride in INVERTED_RESIDUALS:
            for block in range(blocks):
                residual = InvertedResidual(
                    features,
                    stride if block == 0 else 1,
                    expansion,
                    self.norm,
                    name=f"features_{at}",
                )
                x, at = residual(x, train, mask), at + 1
        x = _conv(1280, 1, name=f"features_{at}_0")(x)
        x = nn.relu6(Norm(self.norm, name=f"features_{at}_1")(x, train, mask))
        dropping = train and self.has_rng("dropout")
        x = nn.Dropout(0.2, deterministic=not dropping)(x.mean((1, 2)))
        return adaptive_pool(x, self.feature_dim)


def mobilenet_v2(num_classes: int, feature_dim: int = 512, norm: NormKind = "batch") -> SplitModel:
    """Builds MobileNetV2 as extractor, with a linear head."""
    return SplitModel(MobileNetV2(feature_dim, norm), Linear(num_classes), stateful=True)
