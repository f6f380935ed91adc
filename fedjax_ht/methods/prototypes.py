"""Deprecated: helpers of prototype methods are public names of `fedjax_ht`."""

from fedjax_ht.core.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {"collect": "fedjax_ht.class_sums", "mean_by_class": "fedjax_ht.mean_by_class"},
)
