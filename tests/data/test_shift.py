"""Domains that are made of one set of images."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.inputs import Pixels
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.partition import make_partition
from fedjax_ht.data.shift import CORRUPTIONS, parse_shift, shifted
from fedjax_ht.lab.config.base import base_config, partition_config
from fedjax_ht.lab.runs.plan import plan

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (48, 5, 5, 3), np.uint8)
LABELS = np.repeat(np.arange(4), [24, 12, 8, 4])
RULE = Pixels((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
DATASET = Dataset("d", IMAGES, LABELS, ("a", "b", "c", "d"), RULE)


def seen(dataset: Dataset, images: np.ndarray, domain: int) -> np.ndarray:
    inputs = jnp.asarray(images), jnp.full(len(images), domain, jnp.int8)
    return jax.jit(lambda rule, x: rule(x))(dataset.preprocess, inputs)


def pixels(dataset: Dataset, images: np.ndarray, domain: int) -> np.ndarray:
    return np.asarray(dataset.preprocess.rule.pixels(seen(dataset, images, domain)))


@pytest.mark.parametrize("shift", ["rotate/4", "rotate/7", "corrupt/6"])
def test_domain_0_is_the_image(shift):
    plain = jax.jit(lambda rule, x: rule(x))(DATASET.preprocess, jnp.asarray(IMAGES))
    np.testing.assert_array_equal(seen(shifted(DATASET, shift), IMAGES, 0), plain)


@pytest.mark.parametrize("side", [5, 6])
def test_quarter_turns(side):
    images = RNG.integers(0, 256, (3, side, side, 3), np.uint8)
    dataset = shifted(DATASET, "rotate/4")
    plain = seen(dataset, images, 0)
    for domain in range(4):
        expected = np.rot90(plain, domain, (1, 2))
        np.testing.assert_array_equal(seen(dataset, images, domain), expected)


def test_other_turns():
    image = np.zeros((1, 9, 9, 3), np.uint8)
    image[0, 4, 6:] = 255  # to the right of the centre
    # by 45 degrees: right and up
    turned = pixels(shifted(DATASET, "rotate/8"), image, 1)[0, ..., 0]
    y, x = np.mgrid[:9, :9]
    centre = [np.average(at, weights=np.clip(turned, 0, 1)) - 4 for at in (y, x)]
    assert centre[0] == pytest.approx(-centre[1], abs=1e-3) and centre[1] > 1.5
    white = pixels(shifted(DATASET, "rotate/8"), image * 0 + 255, 1)[0]
    np.testing.assert_allclose(white[0, 0], 0, atol=1e-6)  # a corner from outside is black
    np.testing.assert_allclose(white[4, 4], 1, atol=1e-6)
    oblong = pixels(shifted(DATASET, "rotate/4"), np.full((1, 4, 8, 3), 255, np.uint8), 1)[
        0, ..., 0
    ]
    np.testing.assert_allclose(oblong, np.float32([[0, 0, 1, 1, 1, 1, 0, 0]] * 4), atol=1e-5)


def test_corruptions_change_the_images():
    dataset = shifted(DATASET, "corrupt/6")
    x = {name: pixels(dataset, IMAGES, i) for i, name in enumerate(CORRUPTIONS)}
    noise = x["noise"] - x["none"]
    inside = (x["none"] > 0.4) & (x["none"] < 0.6)
    assert np.std(noise[inside]) == pytest.approx(0.15, rel=0.1)
    assert abs(np.mean(noise[inside])) < 0.02

    def edges(image):
        return np.abs(np.diff(image, axis=1)).mean()

    assert edges(x["blur"]) < 0.5 * edges(x["none"])
    constant = pixels(
        dataset, np.full((1, 5, 5, 3), 102, np.uint8), list(CORRUPTIONS).index("blur")
    )
    np.testing.assert_allclose(constant, 0.4, atol=1e-6)
    expected = 0.4 * x["none"].std((1, 2, 3))
    np.testing.assert_allclose(x["contrast"].std((1, 2, 3)), expected, rtol=1e-4)
    np.testing.assert_allclose(x["contrast"].mean((1, 2, 3)), x["none"].mean((1, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(x["bright"], np.minimum(x["none"] + 0.3, 1), atol=1e-5)
    expected = [0, 0.3333, 0.6667, 1]
    np.testing.assert_allclose(np.unique(np.round(x["four levels"], 4)), expected, atol=1e-3)
    assert all(-1e-5 < image.min() <= image.max() < 1 + 1e-5 for image in x.values())


def test_noise_is_an_images_own():
    dataset = shifted(DATASET, "corrupt/2")
    noise = pixels(dataset, IMAGES, 1) - pixels(dataset, IMAGES, 0)
    again = pixels(dataset, IMAGES[7:3:-1], 1) - pixels(dataset, IMAGES[7:3:-1], 0)
    np.testing.assert_array_equal(again, noise[7:3:-1])
    flat = noise.reshape(len(noise), -1)
    assert np.abs(np.corrcoef(flat) - np.eye(len(flat))).max() < 0.6  # of 75 numbers each


@pytest.mark.parametrize("domains", [2, 5])
def test_domains_have_as_many_of_every_class(domains):
    dataset = shifted(DATASET, f"rotate/{domains}", seed=3)
    (images, domain), groups = dataset.inputs, dataset.groups
    assert domain.dtype == np.int8 and images.dtype == np.uint8 and dataset.input_shape == (5, 5, 3)
    np.testing.assert_array_equal(groups, domain)
    counts = np.stack([np.bincount(LABELS[groups == d], minlength=4) for d in range(domains)])
    assert np.ptp(counts, axis=0).max() <= 1 and np.ptp(counts.sum(1)) <= 1
    assert (groups != shifted(DATASET, f"rotate/{domains}", seed=4).groups).any()
    np.testing.assert_array_equal(groups, shifted(DATASET, f"rotate/{domains}", seed=3).groups)


def test_clients_of_one_domain_each():
    dataset = shifted(DATASET, "corrupt/2")
    clients = make_partition("natural", dataset, 4)
    held = [np.concatenate(client) for client in clients]
    assert [set(dataset.groups[indices].tolist()) for indices in held] == [{0}, {0}, {1}, {1}]
    assert np.bincount(dataset.labels[np.concatenate(held)]).tolist() == [24, 12, 8, 4]


@pytest.mark.parametrize("text", ["rotate", "rotate/1", "rotate/101", "corrupt/7", "blur/3"])
def test_another_shift_is_one_line(text):
    with pytest.raises(ValueError, match=r"^shift is '.*'; it must be rotate/DOMAINS, of 2 to"):
        parse_shift(text)


def test_sets_that_have_no_shift():
    rows = Dataset("rows", np.zeros((48, 3), np.float32), LABELS, DATASET.class_names)
    with pytest.raises(ValueError, match="shift is 'rotate/2', but rows has no images"):
        shifted(rows, "rotate/2")
    with pytest.raises(ValueError, match="d has its own groups, which the domains would"):
        shifted(dataclasses.replace(DATASET, groups=LABELS), "rotate/2")


def test_a_config_asks_for_it():
    config = base_config()
    config.dataset.shift, config.dataset.subset = "rotate/4", 800
    config.partition = partition_config("natural", 8)
    experiment = plan(config)
    images, domain = experiment.dataset.inputs
    assert len(images) == 800 and experiment.dataset.input_shape == (28, 28, 1)
    of_client = [
        np.unique(domain[np.concatenate(client)]).tolist() for client in experiment.partitions[0]
    ]
    assert of_client == [[0], [0], [1], [1], [2], [2], [3], [3]]
    config.dataset.subset = 0  # which is drawn by that seed, too
    groups, config.partition.seed = plan(config).dataset.groups, 2
    assert (plan(config).dataset.groups != groups).any()
