"""A data set's own normalisation."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.lab.config.base import base_config
from fedjax_ht.lab.readers.registry import SOURCES, normalised
from fedjax_ht.lab.runs.plan import plan
from tests.lab.readers.toy_dataset import make_dataset


def test_half_is_the_default_and_changes_nothing():
    dataset = make_dataset([3, 2])
    assert normalised(dataset, "half") is dataset
    assert base_config().dataset.normalisation == "half"


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.moments])
def test_a_set_takes_its_own_moments(name):
    mean, std = SOURCES[name].moments
    toy = make_dataset([3, 2])
    images = np.random.default_rng(0).integers(0, 256, (5, 2, 2, len(mean)), np.uint8)
    dataset = normalised(dataclasses.replace(toy, name=name, inputs=images), "dataset")
    assert all(0.1 < m < 0.6 for m in mean)
    np.testing.assert_array_equal(dataset.preprocess.mean, np.float32(mean))
    got = dataset.preprocess(jnp.asarray(images))
    np.testing.assert_allclose(got, (images / 255 - mean) / std, rtol=1e-5, atol=1e-5)


def test_a_config_asks_for_it():
    config = base_config()
    assert plan(config).dataset.preprocess.mean == [0.5]
    config.dataset.normalisation = "dataset"
    dataset = plan(config).dataset
    # of DFRD's released code
    np.testing.assert_array_equal(dataset.preprocess, np.float32([[0.1307], [0.3081]]))


def test_a_set_without_known_moments():
    with pytest.raises(ValueError, match="normalisation is 'dataset', but no moments of toy are"):
        normalised(make_dataset([3, 2]), "dataset")


def test_imagenets_moments_are_for_any_set_of_three_channels():
    """FedSSA's released code normalises CIFAR-10 by ImageNet's moments, DFRD's code by its own."""
    toy = make_dataset([3, 2])
    images = np.random.default_rng(0).integers(0, 256, (5, 2, 2, 3), np.uint8)
    dataset = normalised(dataclasses.replace(toy, name="cifar10", inputs=images), "imagenet")
    expected = (images / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(
        dataset.preprocess(jnp.asarray(images)), expected, rtol=1e-5, atol=1e-5
    )
    assert SOURCES["cifar10"].moments.mean != (0.485, 0.456, 0.406)


def test_imagenets_moments_do_not_fit_grey_images():
    grey = dataclasses.replace(make_dataset([3, 2]), inputs=np.zeros((5, 2, 2, 1), np.uint8))
    with pytest.raises(ValueError, match="'imagenet', which needs images of three channels; a"):
        normalised(grey, "imagenet")
