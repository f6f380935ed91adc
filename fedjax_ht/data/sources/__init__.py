"""Where data comes from: `load_dataset` reads every kind of set that a federation can be made
of."""

from fedjax_ht.data.sources.registry import dataset_names, find_dataset, load_dataset

__all__ = ["dataset_names", "find_dataset", "load_dataset"]
