"""Small U-Nets (Ronneberger et al., MICCAI 2015) of one level, for a class at each pixel."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_ht.check.options import Count, checked
from fedjax_ht.models.layers import Conv, Linear
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import max_pool


class PixelFeatures(nn.Module):
    """float [B, H, W, C] -> the features of all pixels, [B, H * W * channels].

    Attributes:
      width: channels of the first convolution; at half the resolution there are twice as many.
      channels: features of a pixel.
    """

    width: int
    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def conv(name: str, x: jax.Array, features: int) -> jax.Array:
            return nn.relu(Conv(features, 3, padding=1, name=name)(x))

        fine = conv("conv1", x, self.width)
        coarse = conv("conv2", max_pool(fine, 2, 2, ceil=True), 2 * self.width)
        coarse = conv("conv3", coarse, 2 * self.width)
        height, width = x.shape[1:3]
        # an odd side has half a cell more
        back = coarse.repeat(2, 1)[:, :height].repeat(2, 2)[:, :, :width]
        pixels = conv("conv4", jnp.concatenate([fine, back], -1), self.channels)
        return pixels.reshape(len(x), -1)


class PixelHead(nn.Module):
    """The same linear layer at each pixel: [B, H * W * channels] -> [B, H * W * num_classes]."""

    num_classes: int
    channels: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        pixels = features.reshape(len(features), -1, self.channels)
        logits = Linear(self.num_classes, name="fc")(pixels)
        return logits.reshape(len(features), -1)


@checked
def unet(num_classes: Count, width: Count = 16, channels: Count = 16) -> SplitModel:
    """Builds a U-Net of one level, whose head is a linear layer at each pixel.

    Networks of any width have heads of the same shape, which methods can average.

    Args:
      num_classes: C, classes of a pixel.
      width: channels of the first convolution.
      channels: features of a pixel.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import fedjax_ht as fl
      >>> images = jax.ShapeDtypeStruct((1, 9, 8, 3), jnp.float32)
      >>> jax.eval_shape(fl.models.unet(5).init_with_output, jax.random.key(0), images)[0].shape
      (1, 360)
    """
    return SplitModel(PixelFeatures(width, channels), PixelHead(num_classes, channels))
