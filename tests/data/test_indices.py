"""Splits that are made by hand: wrong ones are refused, doubtful ones are told of."""

import dataclasses
import re
import warnings

import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.data.client_data import arranged, make_federation_data
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.models import mlp

LABELS = np.arange(12) % 3
DATASET = Dataset("mine", np.zeros((12, 2), np.float32), LABELS, ("a", "b", "c"))
FEDERATION = make_federation({"mlp": mlp(3, (4,))}, (2,), 3, num_clients=2)


def client(train, test=(), val=()) -> ClientIndices:
    return ClientIndices(*(np.asarray(x, np.int64) for x in (train, val, test)))


FIRST, SECOND = client([0, 1, 2], [3, 4, 5]), client([6, 7, 8], [9, 10, 11])
MASK = np.arange(12) < 3


@pytest.mark.parametrize(
    "wrong, message",
    [
        (FIRST._replace(test=FIRST.train), "sample 0 is in train and in test; take it out of one"),
        (FIRST._replace(val=np.array([2])), "sample 2 is in train and in val"),
        (FIRST._replace(val=np.array([5])), "sample 5 is in val and in test"),
        (FIRST._replace(train=np.array([1, 0, 1])), r"train has sample 1 twice.*np.unique\("),
        (
            FIRST._replace(train=np.array([0, 12])),
            "train has index 12; there are 12 samples, so that indices are from 0 to 11$",
        ),
        (FIRST._replace(train=np.array([0, 14, 12])), "train has index 14; there are 12 samples"),
        (FIRST._replace(train=np.array([4, 2, 4, 2])), "train has sample 2 twice; give each"),
        (
            ClientIndices(np.array([1, 5]), np.array([2]), np.array([1, 2])),
            "sample 1 is in train and in test",
        ),
        (FIRST._replace(test=np.array([-1])), "test has index -1; there are 12 samples"),
        (FIRST._replace(train=MASK), r"train is a boolean mask of 12 entries; .*"),
        (FIRST._replace(train=[True, False]), "train is a boolean mask"),
        (FIRST._replace(train=np.array([0.5])), r"train has float64 values such as 0.5; .* int"),
        (FIRST._replace(train=np.array([0.0])), "train has float64 values"),
        (FIRST._replace(train=np.array(["0"])), "train has <U1 values"),
        (FIRST._replace(train=np.zeros((2, 2), int)), r"train is a numpy.ndarray of shape \[2"),
        (FIRST._replace(train=3), r"train is an int of shape \[\]"),
        (FIRST._replace(train=[[0], [1, 2]]), "train is a list"),
        (FIRST._replace(val=None), "val is a NoneType"),
    ],
)
def test_a_wrong_client_is_refused_in_one_line(wrong, message):
    for make in (
        lambda clients: make_federation_data(DATASET, clients, FEDERATION),
        lambda clients: dataclasses.replace(DATASET, clients=clients),
    ):
        with pytest.raises(ValueError, match=f"^mine: client 1:? ?{message}") as error:
            make((SECOND, wrong))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "wrong, kind",
    [
        (np.arange(4), "the split is a numpy.ndarray"),
        ({0: FIRST, 1: SECOND}, "the split is a dict"),
        (FIRST, "the split is a ClientIndices"),
        ((), "the split is a tuple"),
        ("iid", "the split is a str"),
        (2, "the split is an int"),
        ((FIRST, np.arange(3)), "client 1 is a numpy.ndarray"),
        ([(FIRST.train, FIRST.val, FIRST.test), SECOND], "client 0 is a tuple"),
    ],
)
def test_a_split_is_a_tuple_of_clients(wrong, kind):
    with pytest.raises(
        ValueError, match=f"^mine: {kind}; it must be .*fl.ClientIndices.train, val"
    ):
        dataclasses.replace(DATASET, clients=wrong)
    with pytest.raises(ValueError, match=r"it must be .*fl.ClientIndices.train, val"):
        make_federation_data(DATASET, wrong, FEDERATION)


def test_lists_and_other_integers_are_indices():
    clients = [ClientIndices([0, 1], [], range(2, 5)), ClientIndices(np.array([6], "u1"), [], [7])]
    split = dataclasses.replace(DATASET, clients=clients).clients
    assert {x.dtype for indices in split for x in indices} == {np.dtype(np.int64)}
    assert split[0].test.tolist() == [2, 3, 4] and not len(split[1].val)


@pytest.mark.parametrize(
    "official, message",
    [
        ({"train": np.arange(8), "test": np.arange(7, 12)}, "sample 7 is in train and in test"),
        ({"train": np.arange(8), "test": np.arange(8, 13)}, "test has index 12; there are 12"),
        ({"train": np.arange(8), "test": np.array([9, 9])}, "test has sample 9 twice"),
        ({"train": MASK, "test": ~MASK}, "train is a boolean mask"),
    ],
)
def test_official_sets_share_no_sample(official, message):
    with pytest.raises(ValueError, match=f"^mine: official: {message}"):
        dataclasses.replace(DATASET, official=official)


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
        make_federation_data(DATASET, clients, FEDERATION)
    arranged(DATASET, clients, FEDERATION)  # for code that measures time


NOTED = {
    "3 samples that some clients train on test others, first sample 0: client 0 trains on it, "
    "client 1 tests on it": (FIRST, SECOND._replace(test=FIRST.train)),
    "2 samples are train samples of several clients, first sample 1 of clients 0, 1;": (
        FIRST,
        SECOND._replace(train=np.array([1, 2, 6])),
    ),
    "3 samples are test samples of several clients, first sample 3 of clients 0, 1;": (
        FIRST,
        SECOND._replace(test=FIRST.test),
    ),
    "client 1 of 2 without training samples": (FIRST, SECOND._replace(train=[])),
    "client 0 of 2 without test samples": (FIRST._replace(test=[]), SECOND),
    "client 0 of 2 with test samples of classes that the client never trains on, 16.7 points of "
    "the mean accuracy": (FIRST._replace(train=np.array([0, 1])), client([6, 7, 8], [9, 10, 11])),
    "client 1 of 2 with one class alone, in training and in testing": (FIRST, client([6], [9])),
}


@pytest.mark.parametrize("note", NOTED)
def test_a_doubtful_split_is_told_of(note):
    with pytest.warns(UserWarning, match=f"^{re.escape(note)}") as caught:
        make_federation_data(DATASET, NOTED[note], FEDERATION)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_a_sound_split_is_silent_and_so_are_the_few_misfits_of_skewed_ones():
    many = Dataset("many", np.zeros((1200, 2)), np.arange(1200) % 3, ("a", "b", "c"))
    skewed = client(np.arange(300)[np.arange(300) % 3 > 0], np.arange(300, 600)[::3])
    few = skewed._replace(test=np.r_[300, np.arange(301, 600)[np.arange(301, 600) % 3 > 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_federation_data(DATASET, (FIRST, SECOND), FEDERATION)
        make_federation_data(many, (few, client(np.arange(600, 900), [901, 902])), FEDERATION)
    with pytest.warns(UserWarning, match="50 points"):
        make_federation_data(many, (skewed, client(np.arange(600, 900), [901])), FEDERATION)
