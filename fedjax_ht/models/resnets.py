"""ResNets (He et al., CVPR 2016) of 4 to 152 layers, sub-modules named after torchvision's.

ResNet-4, 6, 8 and 10 are HtFLlib's: 1 to 4 stages of one block each. The stem is ImageNet's for
every input size, so that a 32x32 image is down to 1x1 in the last stage.
"""

import functools

import flax.linen as nn
import jax

from fedjax_ht.core.stages import note_stage
from fedjax_ht.models.layers import Conv, Linear
from fedjax_ht.models.norm import Norm, NormKind
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
# equal blocks from which a stage is scanned: compiles faster, but a shorter one runs slower scanned
SCAN_FROM = 30

_conv = functools.partial(Conv, use_bias=False, initialisation="kaiming")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut.

    float [B, H, W, C] -> [B, ceil(H/stride), ceil(W/stride), width].
    """

    width: int
    stride: int = 1
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: jax.Array | None) -> jax.Array:
        def norm(name, x):
            return Norm(self.norm, name=name)(x, train, mask)

        y = nn.relu(norm("bn1", _conv(self.width, 3, self.stride, 1, name="conv1")(x)))
        y = norm("bn2", _conv(self.width, 3, 1, 1, name="conv2")(y))
        if x.shape != y.shape:
            x = norm("downsample_1", _conv(self.width, 1, self.stride, name="downsample_0")(x))
        return nn.relu(y + x)


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions beside a shortcut.

    float [B, H, W, C] -> [B, ceil(H/stride), ceil(W/stride), 4 width].
    """

    width: int
    stride: int = 1
    norm: NormKind = "batch"

    @nn.compact
    def __call__(self, x: jax.Array, train: bool, mask: jax.Array | None) -> jax.Array:
        def norm(name, x):
            return Norm(self.norm, name=name)(x, train, mask)

        y = nn.relu(norm("bn1", _conv(self.width, 1, name="conv1")(x)))
        y = nn.relu(norm("bn2", _conv(self.width, 3, self.stride, 1, name="conv2")(y)))
        y = norm("bn3", _conv(4 * self.width, 1, name="conv3")(y))
        if x.shape != y.shape:
            x = norm("downsample_1", _conv(4 * self.width, 1, self.stride, name="downsample_0")(x))
        return nn.relu(y + x)


class ResNet(nn.Module):
    """Stem, stages of doubling width and halving resolution, global average.

    Attributes:
      stages: numbers of blocks, one a stage.
      feature_dim: the averaged channels are pooled or repeated to this many features.
      bottleneck: True if blocks are bottlenecks.
      norm: the kind of norm behind the convolutions, see `Norm`.
      width: channels of the stem and of the first stage's 3x3 convolutions.
      scan_from: number of equal blocks after a stage's first from which on they are scanned, as
        `layer<i>_blocks`.
    """

    stages: tuple[int, ...]
    feature_dim: int = 512
    bottleneck: bool = False
    norm: NormKind = "batch"
    width: int = 64
    scan_from: int = SCAN_FROM

    @nn.compact
    def __call__(
        self, x: jax.Array, train: bool = False, mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns features float [B, feature_dim] of x [B, H, W, C]; mask: real samples."""
        block = Bottleneck if self.bottleneck else BasicBlock
        x = _conv(self.width, 7, 2, 3, name="conv1")(x)
        x = nn.relu(Norm(self.norm, name="bn1")(x, train, mask))
        x = max_pool(x, 3, 2, 1)
        for i, blocks in enumerate(self.stages, 1):
            width = self.width * 2 ** (i - 1)
            x = block(width, 1 if i == 1 else 2, self.norm, name=f"layer{i}_0")(x, train, mask)
            if blocks - 1 >= self.scan_from:
                x = scan_blocks(
                    block(width, 1, self.norm, name=f"layer{i}_blocks"),
                    x,
                    train,
                    mask,
                    length=blocks - 1,
                )
            else:
                for j in range(1, blocks):
                    x = block(width, 1, self.norm, name=f"layer{i}_{j}")(x, train, mask)
            note_stage(self, x)
        return adaptive_pool(x.mean((1, 2)), self.feature_dim)


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
