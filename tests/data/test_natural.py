"""Clients that are persons, hospitals or domains."""

import dataclasses

import numpy as np
import pytest

from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.partition import make_partition
from fedjax_ht.data.selection import subset

GROUPS = np.array([7] * 8 + [2] * 12 + [5] * 4)
LABELS = np.arange(24) % 3
DATASET = Dataset("d", np.arange(24.0)[:, None], LABELS, ("a", "b", "c"), groups=GROUPS)


def groups_of(client) -> set[int]:
    return set(GROUPS[np.concatenate(client)].tolist())


def test_every_client_is_a_group():
    clients = make_partition("natural", DATASET, 3, train_share=0.5, val_share=0.25)
    assert [groups_of(c) for c in clients] == [{2}, {5}, {7}]
    assert [[len(part) for part in c] for c in clients] == [[6, 3, 3], [2, 1, 1], [4, 2, 2]]
    assert sorted(np.concatenate([np.concatenate(c) for c in clients])) == list(range(24))
    again = make_partition("natural", DATASET, 3, seed=2, train_share=0.5, val_share=0.25)
    assert any((a.train.tolist() != b.train.tolist()) for a, b in zip(clients, again))


def test_the_last_samples_test():
    clients = make_partition("natural", DATASET, 3, tested="last", train_share=0.5, val_share=0.25)
    assert clients[0].train.tolist() == list(range(8, 14))
    assert clients[0].val.tolist() == [14, 15, 16] and clients[0].test.tolist() == [17, 18, 19]


def test_of_recordings_every_class_validates():
    """A person does 0, 1 and 2 twice, each for five samples."""
    labels = np.repeat([0, 1, 2, 0, 1, 2], 5)
    dataset = Dataset("d", np.arange(30.0)[:, None], labels, ("a", "b", "c"), groups=[4] * 30)
    options = {"train_share": 0.3, "val_share": 0.2}
    (client,) = make_partition("natural", dataset, 1, tested="last", **options)
    assert client.train.tolist() == [0, 1, 2, 5, 6, 7, 10, 11, 12]
    assert client.val.tolist() == [3, 4, 8, 9, 13, 14]
    assert client.test.tolist() == list(range(15, 30))


def test_those_that_nobody_met_test():
    clients = make_partition("natural", DATASET, 2, seed=3, tested="new_groups")
    held = [set(GROUPS[c.train].tolist()) for c in clients]
    assert all(len(groups) == 1 for groups in held) and held[0] != held[1]
    tests = np.concatenate([c.test for c in clients])
    assert set(GROUPS[tests].tolist()) == {2, 5, 7} - held[0] - held[1]
    assert len(set(tests)) == len(tests)
    assert sum(len(c.train) + len(c.test) for c in clients) == 24
    assert not any(len(c.val) for c in clients)


def test_several_clients_a_group_and_few_of_the_groups():
    clients = make_partition("natural", DATASET, 6)
    assert [groups_of(c) for c in clients] == [{2}, {2}, {5}, {5}, {7}, {7}]
    assert len(set(np.concatenate([np.concatenate(c) for c in clients]))) == 24
    assert len(make_partition("natural", DATASET, 1)[0].train) in (3, 6, 9)


@pytest.mark.parametrize(
    "clients, options, message",
    [
        (4, {}, "num_clients is 4; d has 3 groups: take at most as many clients, or a multiple"),
        (3, {"tested": "new_groups"}, "num_clients is 3, and d has 3 groups; tested='new_groups'"),
        (15, {}, "a group has 4 samples for 5 clients"),
    ],
)
def test_wrong_options_are_one_line(clients, options, message):
    with pytest.raises(ValueError, match=message):
        make_partition("natural", DATASET, clients, **options)


def test_a_set_without_groups():
    with pytest.raises(ValueError, match=r"partition natural needs Dataset\.groups, .* and d has"):
        make_partition("natural", dataclasses.replace(DATASET, groups=None), 3)
    with pytest.raises(ValueError, match="groups of float64"):
        dataclasses.replace(DATASET, groups=np.zeros(24))


def test_a_subset_keeps_whose_a_sample_is():
    few = subset(DATASET, 10, seed=0)
    np.testing.assert_array_equal(few.groups, GROUPS[few.inputs[:, 0].astype(int)])


def test_persons_with_few_samples_are_left_out_or_named():
    groups = np.repeat([4, 6, 8, 9], [1, 1, 4, 5])
    dataset = Dataset("d", np.zeros((11, 1)), np.arange(11) % 3, ("a", "b", "c"), groups=groups)
    with pytest.raises(ValueError, match=r"client 0 of 4 without.*min_samples=2 with"):
        make_partition("natural", dataset, 4)
    clients = make_partition("natural", dataset, 2, min_samples=2)
    assert [set(groups[np.concatenate(c)]) for c in clients] == [{8}, {9}]
    with pytest.raises(ValueError, match="d has 2 groups of at least 2 samples: take at most"):
        make_partition("natural", dataset, 3, min_samples=2)
    with pytest.raises(ValueError, match="min_samples is 6, and the largest group of d has 5"):
        make_partition("natural", dataset, 1, min_samples=6)
    few = make_partition("natural", dataset, 2, min_samples=2, tested="new_groups")
    assert {*groups[np.concatenate([c.test for c in few])]} == {4, 6}
