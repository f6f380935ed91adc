"""Normalises images by the mean and standard deviation of a well-known set.

The numbers are those of DFRD's released code; each stands in the declaration of its set.
"""

import dataclasses
from typing import Literal, get_args

from fedjax_ht.core.inputs import Pixels, described, is_image
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.readers.registry import SOURCES
from fedjax_ht.lab.readers.tiny_imagenet import IMAGENET_MOMENTS

Normalisation = Literal["half", "dataset", "imagenet"]
"""half: mean and standard deviation 0.5, so that a model sees pixels in [-1, 1], the range of a
generator's tanh. dataset: those of the set's declaration; tanh then covers a part of what a model
sees. imagenet: those of ImageNet, whatever the set is, as FedSSA's released code has it for
CIFAR-10 and as pre-trained weights expect it; three channels.
"""


def normalised(dataset: Dataset, kind: Normalisation) -> Dataset:
    """Returns the set with another mean and standard deviation.

    Raises:
      ValueError: the kind is unknown, the set's moments are, or there are not as many channels as
        moments.
    """
    if kind not in get_args(Normalisation):
        raise ValueError(f"normalisation is {kind!r}; it must be 'half', 'dataset' or 'imagenet'")
    if kind == "half":
        return dataset
    if kind == "imagenet":
        shape = dataset.input_shape
        if not is_image(shape) or shape[-1] != len(IMAGENET_MOMENTS.mean):
            raise ValueError(
                "normalisation is 'imagenet', which needs images of three channels; a sample of "
                f"{dataset.name} is {described(shape)}"
            )
        return dataclasses.replace(dataset, preprocess=Pixels(*IMAGENET_MOMENTS))
    source = SOURCES.get(dataset.name)
    if source is None or source.moments is None:
        known = ", ".join(source.name for source in SOURCES.values() if source.moments)
        raise ValueError(
            f"normalisation is 'dataset', but no moments of {dataset.name} are known; those of "
            f"{known} are; normalisation='half' needs none"
        )
    return dataclasses.replace(dataset, preprocess=Pixels(*source.moments))
