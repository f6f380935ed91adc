"""Client-batched kernels: convolution, pooling, distances."""

from fedjax_ht.ops.conv import conv2d
from fedjax_ht.ops.distances import pairwise_distance, safe_norm
from fedjax_ht.ops.pool import max_pool_2x2

__all__ = ["conv2d", "max_pool_2x2", "pairwise_distance", "safe_norm"]
