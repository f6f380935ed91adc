"""Deprecated: helpers of supervised training are public names of `fedjax_ht`."""

from fedjax_ht.core.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "head_scores": "fedjax_ht.head_scores",
        "init_model": "fedjax_ht.core.method.init_model",
        "own_features": "fedjax_ht.own_features",
        "train_model": "fedjax_ht.train_model",
    },
)
