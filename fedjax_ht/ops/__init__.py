"""Client-batched kernels: convolution, recurrence, batch norm, products, pooling, distances."""

from fedjax_ht.ops.conv import adaptive_pool, conv2d, conv_transpose2d, max_pool
from fedjax_ht.ops.normalisation import batch_norm
from fedjax_ht.ops.products import pairwise_distance, product, safe_norm, squared_distance
from fedjax_ht.ops.recurrent import RecurrentWeights, gru, longest, lstm

__all__ = [
    "RecurrentWeights",
    "adaptive_pool",
    "batch_norm",
    "conv2d",
    "conv_transpose2d",
    "gru",
    "longest",
    "lstm",
    "max_pool",
    "pairwise_distance",
    "product",
    "safe_norm",
    "squared_distance",
]
