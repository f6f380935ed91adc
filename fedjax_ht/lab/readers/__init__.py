"""Readers of data sets; `load_dataset` handles every kind."""

from fedjax_ht.lab.readers.registry import (
    dataset_names,
    load_dataset,
    names_user_data,
    unknown_dataset,
)

__all__ = ["dataset_names", "load_dataset", "names_user_data", "unknown_dataset"]
