"""Features of a frozen extractor are those of the module itself, for every sample once."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.data.shift import shifted
from fedjax_ht.models.convnets import resnet
from tests.tiny import Flat

RNG = np.random.default_rng(0)
LABELS = np.arange(21) % 3


def images(channels: int) -> fl.Dataset:
    pixels = RNG.integers(0, 256, (21, 16, 16, channels), np.uint8)
    official = {"train": np.arange(14), "test": np.arange(14, 21)}
    return fl.Dataset("mine", pixels, LABELS, ("a", "b", "c"), official=official, groups=LABELS)


def weights(module, channels: int) -> dict:
    """Random weights and running statistics."""
    variables = module.init(jax.random.key(0), np.zeros((1, 16, 16, channels), np.float32))
    stats = jax.tree.map(lambda x: x + RNG.uniform(0, 1, x.shape), variables["batch_stats"])
    return {"params": variables["params"], "stats": jax.tree.map(np.float32, stats)}


MODULE = resnet(4, num_classes=5, feature_dim=64)
COLOUR = weights(MODULE, 3)


def forward(x, variables=COLOUR) -> np.ndarray:
    variables = {"params": variables["params"], "batch_stats": variables["stats"]}
    return np.asarray(MODULE.apply(variables, x, method="features"))


@pytest.mark.parametrize("batch_size", [8, 100])
def test_features_are_those_of_the_module(batch_size):
    dataset = images(3)
    features = fl.extract_features(dataset, MODULE, COLOUR, batch_size=batch_size)
    assert features.inputs.dtype == np.float32 and features.input_shape == (64,)
    expected = forward((dataset.inputs / np.float32(255) - 0.5) / 0.5)
    np.testing.assert_allclose(features.inputs, expected, atol=1e-5)
    kept = ("name", "class_names", "task", "reading")
    assert all(getattr(features, name) == getattr(dataset, name) for name in kept)
    for name in ("labels", "groups"):
        np.testing.assert_array_equal(getattr(features, name), getattr(dataset, name))
    np.testing.assert_array_equal(features.official["test"], dataset.official["test"])


def test_pixels_are_scaled_by_the_rule_of_the_images():
    dataset = dataclasses.replace(images(3), preprocess=fl.Pixels((0.4, 0.5, 0.6), 0.2))
    expected = forward((dataset.inputs / np.float32(255) - np.float32([0.4, 0.5, 0.6])) / 0.2)
    features = fl.extract_features(dataset, MODULE, COLOUR).inputs
    np.testing.assert_allclose(features, expected, atol=1e-5)


def test_grey_images_have_the_channels_of_the_weights():
    dataset = images(1)
    x = (dataset.inputs / np.float32(255) - 0.5) / 0.5
    of_colour = fl.extract_features(dataset, MODULE, COLOUR).inputs
    np.testing.assert_allclose(of_colour, forward(np.repeat(x, 3, -1)), atol=1e-5)
    grey = weights(MODULE, 1)
    of_grey = fl.extract_features(dataset, MODULE, grey).inputs
    np.testing.assert_allclose(of_grey, forward(x, grey), atol=1e-5)


def test_a_domain_changes_the_images_first():
    dataset = dataclasses.replace(images(3), groups=None)
    turned = shifted(dataset, "rotate/2")
    features = fl.extract_features(turned, MODULE, COLOUR).inputs
    plain = fl.extract_features(dataset, MODULE, COLOUR).inputs
    same = np.isclose(features, plain, atol=1e-5).all(-1)
    np.testing.assert_array_equal(same, turned.groups == 0)


def test_what_has_no_features_is_one_line():
    rows = fl.Dataset("rows", np.zeros((21, 4), np.float32), LABELS)
    with pytest.raises(ValueError, match=r"rows: features are extracted from images, .*\(4,\)"):
        fl.extract_features(rows, MODULE, COLOUR)
    with pytest.raises(ValueError, match=r"do not fit SplitModel for samples of \(16, 16, 3\)"):
        fl.extract_features(images(3), MODULE, weights(MODULE, 1))
    with pytest.raises(ValueError, match="do not fit SplitModel"):
        fl.extract_features(images(3), resnet(6, 5, 64), COLOUR)
    with pytest.raises(ValueError, match="do not fit SplitModel"):
        fl.extract_features(images(3), MODULE, {})
    flat = fl.SplitModel(Flat(4), fl.models.Linear(3))
    variables = flat.init(jax.random.key(0), np.zeros((1, 16, 16, 3), np.float32))
    broken = jax.tree.map(lambda x: np.full_like(x, np.nan), variables)
    with pytest.raises(
        ValueError, match="mine: the extractor returns features that are not finite"
    ):
        fl.extract_features(images(3), flat, broken)
    with pytest.raises(ValueError, match="model 'the extractor' is "):
        fl.extract_features(images(3), {}, COLOUR)
