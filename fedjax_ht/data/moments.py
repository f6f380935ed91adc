"""Mean and standard deviation of the pixels of well-known sets, as DFRD's released code normalises
by them."""

import dataclasses
from typing import Literal, get_args

from fedjax_ht.core.inputs import Pixels, described, is_image
from fedjax_ht.data.dataset import Dataset

Normalisation = Literal["half", "dataset", "imagenet"]
"""half: mean and standard deviation 0.5, so that a model sees pixels in [-1, 1], the range of a
generator's tanh. dataset: those of `MOMENTS`; of what a model sees, tanh then covers a part.
imagenet: those of ImageNet, whatever the set is, as FedSSA's released code has it for CIFAR-10 and
  as pre-trained
weights expect it; three channels.
"""

_MNIST = ((0.1307,), (0.3081,))
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
MOMENTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": _MNIST,
    "fashion_mnist": _MNIST,  # as released: MNIST's
    "fashion_mnist_10k": _MNIST,
    "svhn": ((0.5,), (0.5,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": _CIFAR100,
    "tiny_imagenet": _IMAGENET,
    "food101": _CIFAR100,  # as released
}
"""Name -> mean and standard deviation by channel, of pixels in [0, 1]."""


def normalised(dataset: Dataset, kind: Normalisation) -> Dataset:
    """The set with another mean and standard deviation.

    Raises:
      ValueError: the kind is unknown, the set's moments are, or there are not as many channels as
        moments.
    """
    if kind not in get_args(Normalisation):
        raise ValueError(f"normalisation is {kind!r}; it must be 'half', 'dataset' or 'imagenet'")
    if kind == "half":
        return dataset
    if kind == "imagenet":
        if not (is_image(dataset.input_shape) and dataset.input_shape[-1] == len(_IMAGENET[0])):
            raise ValueError(
                f"normalisation is 'imagenet', which needs images of three channels; a sample of {dataset.name} is "
                f"{described(dataset.input_shape)}"
            )
        return dataclasses.replace(dataset, preprocess=Pixels(*_IMAGENET))
    if dataset.name not in MOMENTS:
        known = ", ".join(MOMENTS)
        raise ValueError(
            f"normalisation is 'dataset', but no moments of {dataset.name} are known; those of {known} are"
        )
    mean, std = MOMENTS[dataset.name]
    return dataclasses.replace(dataset, preprocess=Pixels(mean, std))
