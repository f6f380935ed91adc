"""Data arranged for a federation, and checks of data sets and of splits made by hand."""

import dataclasses
import re

import numpy as np
import pytest

import fedjax_ht as fl
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
    modules = {"x": mlp(classes, (4,)), "y": mlp(classes, (5,))}
    return make_federation(modules, shape, classes, num_clients=num_clients)


def test_indices_are_padded_per_bucket():
    data = arranged(DATASET, CLIENTS, federation())
    x, y = data.buckets["x"].splits, data.buckets["y"].splits  # clients 0 and 2; client 1
    np.testing.assert_array_equal(x["train"].indices, [[0, 1, 2], [5, 6, 0]])
    np.testing.assert_array_equal(x["train"].count, [3, 2])
    np.testing.assert_array_equal(y["test"].count, [0])
    np.testing.assert_array_equal(data.counts["train"], [3, 1, 2])
    expected = {"train": [0, 1, 2, 4, 5, 6], "test": [3, 7]}
    assert {name: sorted(split.indices) for name, split in data.pooled.items()} == expected
    assert data.buckets["x"].inputs is data.buckets["y"].inputs  # stored once


def test_evaluated_samples_are_mixed():
    """Partitions list samples by class; sorted batches would be of few classes."""
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
        (federation(classes=4), "3 classes, the federation 4 outputs; make it with num_classes=3"),
        (federation(shape=(3, 3, 1)), r"takes \(3, 3, 1\)"),
    ],
)
def test_misfits_are_one_line(wrong, message):
    with pytest.raises(ValueError, match=message):
        make_federation_data(DATASET, CLIENTS, wrong)


IMAGES = np.zeros((2, 4, 4, 1), np.uint8)


@pytest.mark.parametrize(
    "inputs, labels, rule, message",
    [
        (IMAGES, [0, 0, 0], None, "2 samples but labels of shape"),
        (np.zeros((2, 4)), [0, 0], Pixels(), "Pixels, which is for images"),
        (IMAGES, [0, 0], Pixels(0.5, (1.0, 1.0)), "std has 2 values for 1 channels"),
    ],
)
def test_a_dataset_checks_its_arrays(inputs, labels, rule, message):
    with pytest.raises(ValueError, match=message):
        Dataset("d", inputs, np.array(labels), ("a",), rule)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_images_with_channels_first_are_refused_or_said_to_be_none(dtype):
    images, labels = np.zeros((2, 1, 8, 8), dtype), np.zeros(2, int)
    with pytest.raises(ValueError, match=r"\[N, C, H, W\]; images are \[N, H, W, C\]: give"):
        Dataset("d", images, labels, ("a",))
    assert Dataset("d", images.transpose(0, 2, 3, 1), labels, ("a",)).input_shape == (8, 8, 1)
    assert Dataset("d", np.zeros((2, 3, 8, 3), dtype), labels, ("a",)).inputs.shape == (2, 3, 8, 3)
    assert Dataset("windows", images, labels, ("a",), AsStored()).inputs.shape == (2, 1, 8, 8)


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


NUMBERED = np.arange(9, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 1), np.uint8)
OFFICIAL = {"train": np.array([8, 0, 1, 2, 3, 4]), "test": np.array([5, 6, 7])}
WHOLE = dataclasses.replace(DATASET, inputs=NUMBERED, official=OFFICIAL)


def test_a_subset_keeps_order_and_the_publishers_sets():
    few = subset(WHOLE, 6, seed=0)
    kept = few.inputs[:, 0, 0, 0].astype(int)
    assert (np.diff(kept) > 0).all() and len(kept) == 6
    np.testing.assert_array_equal(few.labels, kept % 3)
    for name, index in OFFICIAL.items():
        assert kept[few.official[name]].tolist() == [i for i in index if i in kept]
    np.testing.assert_array_equal(subset(WHOLE, 6, seed=0).inputs, few.inputs)
    assert any((subset(WHOLE, 6, seed).inputs != few.inputs).any() for seed in range(1, 5))
    with pytest.raises(ValueError, match="subset is 10; it must be from 1 to the 9 samples of d"):
        subset(WHOLE, 10, seed=0)
    with pytest.raises(ValueError, match="come with their samples"):
        subset(dataclasses.replace(WHOLE, clients=CLIENTS), 6, seed=0)


def test_some_classes_keep_order_and_the_publishers_sets():
    few = of_classes(WHOLE, ("c", "a"))
    assert few.inputs[:, 0, 0, 0].tolist() == [0, 2, 3, 5, 6, 8] and few.class_names == ("c", "a")
    assert few.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert sets(few) == {"train": [5, 0, 1, 2], "test": [3, 4]}
    with pytest.raises(ValueError, match="classes has 'x'; the classes of d are a, b, c"):
        of_classes(WHOLE, ("a", "x"))
    with pytest.raises(ValueError, match="classes contains a name twice"):
        of_classes(WHOLE, ("a", "a"))
    with pytest.raises(ValueError, match="come with their samples"):
        of_classes(dataclasses.replace(WHOLE, clients=CLIENTS), ("a",))


LABELS = np.arange(12) % 3
MINE = Dataset("mine", np.zeros((12, 2), np.float32), LABELS, ("a", "b", "c"))
FEDERATION = make_federation({"mlp": mlp(3, (4,))}, (2,), 3, num_clients=2)


def client(train, test=(), val=()) -> ClientIndices:
    return ClientIndices(*(np.asarray(x, np.int64) for x in (train, val, test)))


FIRST, SECOND = client([0, 1, 2], [3, 4, 5]), client([6, 7, 8], [9, 10, 11])
MASK = np.arange(12) < 3


@pytest.mark.parametrize(
    "wrong, message",
    [
        (FIRST._replace(test=FIRST.train), "sample 0 is in train and in test; remove it from one"),
        (FIRST._replace(val=np.array([5])), "sample 5 is in val and in test"),
        (FIRST._replace(train=np.array([1, 0, 1])), "sample 1 is 2 times in train"),
        (
            FIRST._replace(train=np.array([0, 12])),
            "train has index 12; with 12 samples, indices must",
        ),
        (FIRST._replace(test=np.array([-1])), "test has index -1; with 12 samples"),
        (FIRST._replace(train=MASK), r"train is a numpy.ndarray, bool \[12\]"),
        (FIRST._replace(train=np.array([0.0])), r"train is a numpy.ndarray, float64 .* integers"),
        (FIRST._replace(train=np.array(["0"])), "train is a numpy.ndarray, <U1"),
        (FIRST._replace(train=np.zeros((2, 2), int)), r"train is a numpy.ndarray, int64 \[2"),
        (FIRST._replace(train=[[0], [1, 2]]), "train is a list"),
        (FIRST._replace(val=None), r"val is a NoneType, object \[\]"),
    ],
)
def test_a_wrong_client_is_refused_in_one_line(wrong, message):
    for make in (
        lambda clients: make_federation_data(MINE, clients, FEDERATION),
        lambda clients: dataclasses.replace(MINE, clients=clients),
    ):
        with pytest.raises(ValueError, match=f"^mine: client 1:? ?{message}") as error:
            make((SECOND, wrong))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "wrong, kind",
    [
        (np.arange(4), "the split is a numpy.ndarray"),
        (FIRST, "the split is a ClientIndices"),
        ((), "the split is a tuple"),
        ("iid", "the split is a str"),
        ([FIRST, (FIRST.train, FIRST.val, FIRST.test)], "client 1 is a tuple"),
    ],
)
def test_a_split_is_a_tuple_of_clients(wrong, kind):
    line = f"^mine: {kind}; it must be .*fl.ClientIndices.train, val"
    with pytest.raises(ValueError, match=line):
        dataclasses.replace(MINE, clients=wrong)
    with pytest.raises(ValueError, match=r"it must be .*fl.ClientIndices.train, val"):
        make_federation_data(MINE, wrong, FEDERATION)


def test_lists_and_other_integers_are_indices():
    clients = [ClientIndices([0, 1], [], range(2, 5)), ClientIndices(np.array([6], "u1"), [], [7])]
    split = dataclasses.replace(MINE, clients=clients).clients
    assert {x.dtype for indices in split for x in indices} == {np.dtype(np.int64)}
    assert split[0].test.tolist() == [2, 3, 4] and not len(split[1].val)


def test_official_sets_share_no_sample():
    official = {"train": np.arange(8), "test": np.arange(7, 12)}
    with pytest.raises(ValueError, match=r"^mine: official: sample 7 is in train and in test"):
        dataclasses.replace(MINE, official=official)


@pytest.mark.parametrize(
    "clients, message",
    [
        ((client([]), client([], [1])), "no client of the split of mine has a training sample"),
        ((client([0, 1]), client([2], (), [3])), "no client of the split of mine has a test sampl"),
        ((client([0, 3], [1]), client([6], [2])), "all 3 training samples of mine are of class 'a"),
    ],
)
def test_a_hopeless_split_is_refused(clients, message):
    with pytest.raises(ValueError, match=message):
        make_federation_data(MINE, clients, FEDERATION)
    arranged(MINE, clients, FEDERATION)  # for code that measures time


NOTED = {
    "3 training samples of some clients are validation or test samples of others": (
        FIRST,
        SECOND._replace(test=FIRST.train),
    ),
    "2 samples are train samples of several": (FIRST, SECOND._replace(train=np.array([1, 2, 6]))),
    "3 samples are validation or test samples of several clients": (
        FIRST,
        SECOND._replace(test=FIRST.test),
    ),
    "client 1 of 2 without training samples": (FIRST, SECOND._replace(train=[])),
    "client 0 of 2 without test samples": (FIRST._replace(test=[]), SECOND),
    "client 0 of 2 with test samples of classes absent from their training samples, 16.7 points of "
    "the mean accuracy": (FIRST._replace(train=np.array([0, 1])), client([6, 7, 8], [9, 10, 11])),
    "client 1 of 2 with a single class": (FIRST, client([6], [9])),
}


@pytest.mark.parametrize("note", NOTED)
def test_a_doubtful_split_is_told_of(note):
    with pytest.warns(UserWarning, match=f"^{re.escape(note)}") as caught:
        make_federation_data(MINE, NOTED[note], FEDERATION)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_tokens_that_a_model_does_not_have_are_refused():
    tokens = np.arange(40).reshape(8, 5)
    dataset = fl.Dataset("texts", tokens, np.arange(8) % 2, ("a", "b"), vocabulary=40)
    models = fl.model_group("text_logistic", 2, dataset.input_shape, vocabulary=30)
    federation = fl.make_federation(models, dataset.input_shape, 2, num_clients=2)
    partition = fl.make_partition("iid", dataset, 2, seed=0)
    with pytest.raises(ValueError, match=r"a vocabulary of 40 tokens, and model .* of 30"):
        fl.make_federation_data(dataset, partition, federation)
