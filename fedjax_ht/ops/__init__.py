"""Client-batched kernels: convolution, recurrence, batch norm, products, pooling, distances."""

from fedjax_ht.ops.conv import conv2d
from fedjax_ht.ops.distances import pairwise_distance, safe_norm, squared_distance
from fedjax_ht.ops.normalisation import batch_norm
from fedjax_ht.ops.pool import adaptive_pool, max_pool
from fedjax_ht.ops.products import product
from fedjax_ht.ops.recurrent import RecurrentWeights, gru, longest, lstm
from fedjax_ht.ops.transposed import conv_transpose2d

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
