import numpy as np

from fedjax_ht.data.dataset import Dataset


def make_dataset(class_sizes, test_share=None, clients=None):
    """One-pixel images of shuffled labels.

    The official test set is every n-th sample, for test_share = 1/n.
    """
    labels = np.random.RandomState(0).permutation(
        np.repeat(np.arange(len(class_sizes)), class_sizes)
    )
    everyone, official = np.arange(len(labels)), {}
    if test_share is not None:
        is_test = everyone % round(1 / test_share) == 0
        official = {"train": everyone[~is_test], "test": everyone[is_test]}
    names = tuple(f"class {c}" for c in range(len(class_sizes)))
    return Dataset(
        "toy",
        np.zeros((len(labels), 1, 1, 1), np.uint8),
        labels,
        names,
        official=official,
        clients=clients,
    )
