import numpy as np

from fedjax_ht.data.dataset import Dataset


def make_dataset(class_sizes, test_share=None, clients=None):
    """One-pixel images of shuffled labels.

    The official test set is every n-th sample, for test_share = 1/n.
    """
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    labels = np.random.RandomState(0).permutation(labels)
    everyone, official = np.arange(len(labels)), {}
    if test_share is not None:
        is_test = everyone % round(1 / test_share) == 0
        official = {"train": everyone[~is_test], "test": everyone[is_test]}
    names = tuple(f"class {c}" for c in range(len(class_sizes)))
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    return Dataset("toy", images, labels, names, official=official, clients=clients)
