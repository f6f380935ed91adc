"""Data sets that a federation can be made of: `load_dataset` reads every kind of them."""

from fedjax_ht.lab.readers.registry import (
    dataset_names,
    load_dataset,
    names_user_data,
    unknown_dataset,
)

__all__ = ["dataset_names", "load_dataset", "names_user_data", "unknown_dataset"]
