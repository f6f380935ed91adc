"""HtFLlib's networks for windows of sensor signals, with convolutions along time.

They are HARCNN, HARCNN1 and HARCNN3.
"""

import flax.linen as nn
import jax

from fedjax_ht.core.inputs import InputShape, described, is_array
from fedjax_ht.models.layers import Conv, Initialisation, Linear
from fedjax_ht.models.split import SplitModel
from fedjax_ht.ops import adaptive_pool, max_pool


class TimeConvFeatures(nn.Module):
    """[conv along time, ReLU, max-pool of 2 steps] per entry of `channels`, then pooled features.

    float [B, T, signals] or, for several units with the same signals, [B, T, units, signals]
    -> [B, feature_dim]. Every unit has the same weights and is processed separately. Features are
    flattened in torch's order, [channels, units, time], and pooled to their number, so that
    `fl.variables_from_torchvision` loads torch's weights unchanged.

    Unlike in HtFLlib, pooling and strides apply along time only. HtFLlib also applies its pools'
    stride 2 (and its convolutions' stride) along the units, which drops units unseen: of three, two
    are left after the first block and one after the second.

    Attributes:
      channels: output channels of each block.
      size: number of steps that a kernel spans.
      stride: stride of every convolution, in steps.
      feature_dim: width of the features.
    """

    channels: tuple[int, ...]
    size: int
    stride: int = 1
    feature_dim: int = 512
    initialisation: Initialisation = "torch"

    @property
    def shortest(self) -> int:
        """The number of steps of the shortest windows that survive pooling."""
        steps = 1
        for _ in self.channels:
            steps = (2 * steps - 1) * self.stride + self.size
        return steps

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        require_windows("a network of convolutions along time", x.shape[1:], self.shortest)
        batch, steps, *units, signals = x.shape
        count = units[0] if units else 1
        # Units join the batch and time is the width: kernels are torch's [1, size].
        x = (
            x.reshape(batch, steps, count, signals)
            .swapaxes(1, 2)
            .reshape(batch * count, 1, steps, signals)
        )
        for i, channels in enumerate(self.channels, 1):
            conv = Conv(
                channels,
                (1, self.size),
                self.stride,
                initialisation=self.initialisation,
                name=f"conv{i}_0",
            )
            x = nn.relu(max_pool(conv(x), 2, 2, axes=(2,)))
        # [B units, 1, T', C] -> [B, C, units, T'], torch's order for flattening.
        x = x.reshape(batch, count, *x.shape[2:]).transpose(0, 3, 1, 2)
        return adaptive_pool(x.reshape(batch, -1), self.feature_dim)


HARCNN: dict[str, tuple[tuple[int, ...], int]] = {
    "harcnn": ((32, 64), 9),
    "harcnn1": ((32,), 9),
    "harcnn3": ((32, 64, 128), 5),
}
"""Name -> channels of the blocks, and steps of a kernel."""


def harcnn(
    name: str,
    stride: int,
    num_classes: int,
    feature_dim: int = 512,
    initialisation: Initialisation = "torch",
) -> SplitModel:
    """Builds one of `HARCNN`.

    A mean over features and a linear head replace its perceptron, as in HtFLlib.

    Args:
      name: the network's name, a key of `HARCNN`.
      stride: stride of every convolution, in steps.
      num_classes: number of classes, the outputs of the head.
      feature_dim: K, the width of the features.
      initialisation: distribution of the initial weights, see `models.layers.Initialisation`.
    """
    base = TimeConvFeatures(*HARCNN[name], stride, feature_dim, initialisation)
    return SplitModel(base, Linear(num_classes, initialisation))


def require_windows(consumer: str, shape: InputShape, shortest: int) -> None:
    """Rejects samples that are not windows of signals.

    Args:
      consumer: the model or group that needs windows, for the message.
      shape: the shape of one sample as a model sees it.
      shortest: the smallest number of steps of a window.

    Raises:
      ValueError: the sample is not a float array [T, signals] or [T, units, signals], or too short.
    """
    if not is_array(shape) or len(shape) not in (2, 3):
        raise ValueError(
            f"{consumer} needs windows, float [T, signals] or [T, units, signals]; a sample is "
            f"{described(shape)}"
        )
    if shape[0] < shortest:
        raise ValueError(
            f"{consumer} needs windows of at least {shortest} steps; a sample is {described(shape)}"
        )
