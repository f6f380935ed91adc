"""A partition laid out for the device, and its misfits."""

import dataclasses

import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.inputs import AsStored, Pixels
from fedjax_ht.data.client_data import arranged, make_federation_data
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.data.selection import of_classes, subset
from fedjax_ht.models import mlp
from tests.lab.readers.source_files import sets

NONE = np.array([], int)
DATASET = Dataset("d", np.zeros((9, 2, 2, 1), np.uint8), np.arange(9) % 3, ("a", "b", "c"))
CLIENTS = (
    ClientIndices(np.array([0, 1, 2]), NONE, np.array([3])),
    ClientIndices(np.array([4]), np.array([8]), NONE),
    ClientIndices(np.array([5, 6]), NONE, np.array([7])),
)


def federation(num_clients=3, classes=3, shape=(2, 2, 1)):
    return make_federation(
        {"x": mlp(classes, (4,)), "y": mlp(classes, (5,))}, shape, classes, num_clients
    )


def test_indices_are_padded_per_bucket():
    data = arranged(DATASET, CLIENTS, federation())
    x, y = data.buckets["x"].splits, data.buckets["y"].splits  # clients 0 and 2; client 1
    np.testing.assert_array_equal(x["train"].indices, [[0, 1, 2], [5, 6, 0]])
    np.testing.assert_array_equal(x["train"].count, [3, 2])
    np.testing.assert_array_equal(y["test"].count, [0])
    np.testing.assert_array_equal(data.counts["train"], [3, 1, 2])
    assert {name: sorted(split.indices) for name, split in data.pooled.items()} == {
        "train": [0, 1, 2, 4, 5, 6],
        "test": [3, 7],
    }
    assert data.buckets["x"].inputs is data.buckets["y"].inputs  # stored once


def test_evaluated_samples_are_mixed():
    """Partitions list a client's samples class by class; batch statistics of sorted batches would
    be of few classes."""
    labels = np.repeat([0, 1, 2], 80)
    dataset = Dataset("d", np.zeros((240, 2, 2, 1), np.uint8), labels, ("a", "b", "c"))
    rows = [np.arange(i, 240, 3) for i in range(3)]
    clients = tuple(ClientIndices(row[::3], row[1::3], row[2::3]) for row in rows)
    data, again = (make_federation_data(dataset, clients, federation()) for _ in range(2))
    x, members = data.buckets["x"].splits, (clients[0], clients[2])
    # training shuffles by itself
    train, count = x["train"].indices[0], x["train"].count[0]
    np.testing.assert_array_equal(train[:count], members[0].train)
    for name in ("val", "test"):
        for row, client in zip(x[name].indices, members):
            expected = getattr(client, name)
            assert set(labels[row[:10]]) == {0, 1, 2}
            assert sorted(row[: len(expected)]) == sorted(expected)
    pooled = data.pooled["test"].indices
    assert set(labels[pooled[:10]]) == {0, 1, 2}
    np.testing.assert_array_equal(pooled, again.pooled["test"].indices)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (federation(num_clients=4), "the partition has 3 clients, the federation 4; make both"),
        (federation(classes=4), "3 classes, the federation 4; make it with num_classes=3"),
        (federation(shape=(3, 3, 1)), r"takes \(3, 3, 1\)"),
    ],
)
def test_misfits_are_one_line(wrong, message):
    with pytest.raises(ValueError, match=message):
        make_federation_data(DATASET, CLIENTS, wrong)


def test_a_dataset_checks_its_arrays():
    images = np.zeros((2, 4, 4, 1), np.uint8)
    with pytest.raises(ValueError, match="2 samples but labels of shape"):
        Dataset("d", images, np.zeros(3, int), ("a",))
    with pytest.raises(ValueError, match=r"uint8 \[2, 4\] are neither images"):
        Dataset("d", images[:, :, 0, 0], np.zeros(2, int), ("a",))
    with pytest.raises(ValueError, match="inputs are <U4; they must be integers or floats"):
        Dataset("d", [["text"]], np.zeros(1, int), ("a",))
    with pytest.raises(ValueError, match="Pixels, which is for images"):
        Dataset("d", np.zeros((2, 4)), np.zeros(2, int), ("a",), Pixels())
    with pytest.raises(ValueError, match="labels run from 0 to 1"):
        Dataset("d", images, np.array([0, 1]), ("a",))
    with pytest.raises(ValueError, match="std has 2 values for 1 channels"):
        Dataset("d", images, np.zeros(2, int), ("a",), Pixels(0.5, (1.0, 1.0)))
    assert Dataset("d", images, np.zeros(2, int), ("a",)).preprocess == ([0.5], [0.5])


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_images_with_channels_first_are_refused_or_said_to_be_none(dtype):
    images, labels = np.zeros((2, 1, 8, 8), dtype), np.zeros(2, int)
    with pytest.raises(ValueError, match=r"\[N, C, H, W\]; images are \[N, H, W, C\]: give"):
        Dataset("d", images, labels, ("a",))
    assert Dataset("d", images.transpose(0, 2, 3, 1), labels, ("a",)).input_shape == (8, 8, 1)
    assert Dataset("d", np.zeros((2, 3, 8, 3), dtype), labels, ("a",)).inputs.shape == (2, 3, 8, 3)
    assert Dataset("windows", images, labels, ("a",), AsStored()).inputs.shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0.7, 1.7]), "values such as 0.7; they must be whole numbers"),
        (np.array([0.0, np.nan]), "values such as nan"),
        (np.array(["cat", "dog"]), r"labels are <U3; they must be integers from 0: .*np.unique"),
        ({0, 1}, "labels is a set; give a NumPy array"),
        (np.eye(2), r"labels of shape \(2, 2\); .* labels.argmax\(1\) makes them"),
    ],
)
def test_labels_that_are_no_whole_numbers_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        Dataset("d", np.zeros((2, 4, 4, 1), np.uint8), labels, ("a", "b"))


def test_labels_may_be_whole_numbers_of_any_type():
    for dtype in (np.float64, np.int8, bool):
        labels = Dataset(
            "d", np.zeros((2, 4, 4, 1), np.uint8), np.array([1, 0], dtype), ("a", "b")
        ).labels
        assert labels.dtype == np.int32 and labels.tolist() == [1, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_inputs_that_are_not_finite_are_refused(value):
    inputs = {"a": np.zeros((4, 2)), "b": np.zeros(4, np.float16)}
    inputs["a"][2, 1] = value
    with pytest.raises(ValueError, match="NaN, infinite or beyond float32, first in sample 2"):
        Dataset("d", inputs, np.zeros(4, int), ("a",))
    with np.errstate(over="ignore"):
        inputs = np.array([[0], [value]]).astype(np.float16)
    with pytest.raises(ValueError, match="first in sample 1"):
        Dataset("d", inputs, np.zeros(2, int), ("a",))


def test_the_callers_arrays_stay_writable():
    images, labels = np.zeros((3, 2, 2, 1), np.uint8), np.zeros(3, np.int32)
    dataset = Dataset("mine", images, labels, ("a",))
    images[0], labels[0] = 9, 0  # no error
    assert np.shares_memory(dataset.inputs, images) and not dataset.inputs.flags.writeable
    with pytest.raises(ValueError):
        dataset.inputs[0] = 1
    with pytest.raises(ValueError):
        dataset.labels[0] = 1


def test_a_subset_keeps_order_and_the_publishers_sets():
    images = np.arange(9, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 1), np.uint8)
    official = {"train": np.array([8, 0, 1, 2, 3, 4]), "test": np.array([5, 6, 7])}
    whole = Dataset("d", images, np.arange(9) % 3, ("a", "b", "c"), official=official)
    few = subset(whole, 6, seed=0)
    kept = few.inputs[:, 0, 0, 0].astype(int)
    assert (np.diff(kept) > 0).all() and len(kept) == 6
    np.testing.assert_array_equal(few.labels, kept % 3)
    for name, index in official.items():
        assert kept[few.official[name]].tolist() == [i for i in index if i in kept]
    np.testing.assert_array_equal(subset(whole, 6, seed=0).inputs, few.inputs)
    assert any((subset(whole, 6, seed).inputs != few.inputs).any() for seed in range(1, 5))
    with pytest.raises(ValueError, match="subset is 10; it must be from 1 to the 9 samples of d"):
        subset(whole, 10, seed=0)
    with pytest.raises(ValueError, match="come with their samples"):
        subset(dataclasses.replace(whole, clients=CLIENTS), 6, seed=0)


def test_some_classes_keep_order_and_the_publishers_sets():
    images = np.arange(9, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 1), np.uint8)
    official = {"train": np.array([8, 0, 1, 2, 3, 4]), "test": np.array([5, 6, 7])}
    whole = Dataset("d", images, np.arange(9) % 3, ("a", "b", "c"), official=official)
    few = of_classes(whole, ("c", "a"))
    assert few.inputs[:, 0, 0, 0].tolist() == [0, 2, 3, 5, 6, 8] and few.class_names == ("c", "a")
    assert few.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert sets(few) == {"train": [5, 0, 1, 2], "test": [3, 4]}
    with pytest.raises(ValueError, match="classes has 'x'; the classes of d are a, b, c"):
        of_classes(whole, ("a", "x"))
    with pytest.raises(ValueError, match="classes has a name twice"):
        of_classes(whole, ("a", "a"))
    with pytest.raises(ValueError, match="come with their samples"):
        of_classes(dataclasses.replace(whole, clients=CLIENTS), ("a",))
