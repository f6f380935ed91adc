"""Client-batched kernels: convolution, pooling, distances."""

from fedjax_ht.ops.conv import conv2d
from fedjax_ht.ops.distances import pairwise_distance, safe_norm
from fedjax_ht.ops.pool import adaptive_pool, max_pool

__all__ = ["adaptive_pool", "conv2d", "max_pool", "pairwise_distance", "safe_norm"]
