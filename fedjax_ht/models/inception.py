"""GoogLeNet (Szegedy et al., CVPR 2015) as torchvision defines it: with batch norm, without
auxiliary heads.

The "5x5" branch of torchvision's inception block is a 3x3 convolution; sub-modules are named after
torchvision's.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.models.layers import Conv, Linear
from fedjax_ht.models.norm import Norm, NormKind
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import adaptive_pool, max_pool

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
POOL_AFTER = {"3b": 3, "4e": 2}  # window of the max-pool, of stride 2, behind a block


class ConvNorm(nn.Module):
    """Convolution, norm, ReLU; the resolution stays at stride 1."""

    features: int
    size: int
    stride: int = 1
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: jax.Array | None) -> jax.Array:
        padding = self.size // 2
        x = Conv(
            self.features,
            self.size,
            self.stride,
            padding,
            use_bias=False,
            initialisation="trunc_normal",
            name="conv",
        )(x)
        return nn.relu(Norm(self.norm, epsilon=1e-3, name="bn")(x, train, mask))


class Inception(nn.Module):
    """Four branches side by side, joined along the channels; the resolution stays.

    float [B, H, W, C] -> [B, H, W, sum of the branches' channels]; `channels` as in `INCEPTION`.
    """

    channels: tuple[int, int, int, int, int, int]
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: jax.Array | None) -> jax.Array:
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

    Dropout acts in training where a "dropout" key is given.

    Attributes:
      feature_dim: the 1024 averaged channels are pooled to this many features.
      norm: the kind of norm behind the convolutions, see `Norm`.
    """

    feature_dim: int = 512
    norm: NormKind = "batch"

    @nn.compact
    def __call__(
        self, x: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
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
        dropping = train and self.has_rng("dropout")
        x = nn.Dropout(0.2, deterministic=not dropping)(x.mean((1, 2)))
        return adaptive_pool(x, self.feature_dim)


def googlenet(num_classes: int, feature_dim: int = 512, norm: NormKind = "batch") -> SplitModel:
    """Builds GoogLeNet as extractor, with a linear head."""
    return SplitModel(GoogLeNet(feature_dim, norm), Linear(num_classes), stateful=True)
