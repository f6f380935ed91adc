"""Partitions: the samples that each client trains, validates and tests on."""

from fedjax_ht.data.partition.registry import (
    PARTITIONS,
    PLANS,
    check_partition,
    make_partition,
    partition_options,
    register_partition,
)
from fedjax_ht.data.partition.splits import class_counts

__all__ = [
    "PARTITIONS",
    "PLANS",
    "check_partition",
    "class_counts",
    "make_partition",
    "partition_options",
    "register_partition",
]
