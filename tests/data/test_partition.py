"""Partitions of every kind, and clients that are persons, hospitals or domains."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.data.partition import PARTITIONS, PLANS, class_counts, make_partition
from fedjax_ht.data.partition.notes import split_notes
from fedjax_ht.data.partition.splits import deal_classes
from fedjax_ht.data.selection import subset
from tests.federations import identical
from tests.lab.readers.toy_dataset import make_dataset

GOLDEN = json.loads(Path(__file__).with_name("golden_partition.json").read_text())
MNIST_SIZES = GOLDEN["pfllib"]["practical MNIST"]["class_sizes"]
SETS = ("train", "val", "test")


def sizes(partition, *sets):
    return np.array([sum(len(getattr(client, s)) for s in sets) for client in partition])


def counts_of(dataset, partition, *sets):
    return sum(class_counts(dataset.labels, partition, s, dataset.num_classes) for s in sets)


def used(partition):
    return np.concatenate([getattr(client, s) for client in partition for s in SETS])


# PFLlib's two, digit for digit


@pytest.mark.parametrize("case", GOLDEN["pfllib"].values(), ids=GOLDEN["pfllib"])
def test_reproduces_pfllib_in_order(case):
    dataset = make_dataset(case["class_sizes"])
    partition = make_partition(case["kind"], dataset, case["num_clients"], **case["options"])
    assert sizes(partition, "train").tolist() == case["train_sizes"]
    assert [client.train[:3].tolist() for client in partition] == case["train_heads"]
    assert [client.test[:3].tolist() for client in partition] == case["test_heads"]
    assert not sizes(partition, "val").any()


def test_practical_mnist_matches_published_counts():
    dataset = make_dataset(MNIST_SIZES)
    counts = counts_of(dataset, make_partition("practical", dataset, 20), *SETS)
    assert counts.tolist() == GOLDEN["mnist_counts"]


@pytest.mark.parametrize(
    "num_clients, held, trained, batched",
    [(20, 921, 869, 868), (50, 1920, 1806, 1802), (100, 3271, 3040, 3031), (200, 5775, 5307, 5275)],
)
def test_practical_cifar100_distinct_classes(num_clients, held, trained, batched):
    dataset = make_dataset([600] * 100)
    partition = make_partition("practical", dataset, num_clients)
    assert np.count_nonzero(counts_of(dataset, partition, *SETS)) == held
    assert np.count_nonzero(counts_of(dataset, partition, "train")) == trained
    whole_batches = []
    for client in partition:
        batched_train = client.train[: len(client.train) // 10 * 10]
        whole_batches.append(client._replace(train=batched_train))
    assert np.count_nonzero(counts_of(dataset, whole_batches, "train")) == batched
    if num_clients == 20:
        assert sizes(partition, "train").tolist() == [
            *(2265, 2289, 2064, 2271, 1980, 2157, 2340, 2285, 2105, 2408),
            *(2070, 2519, 2467, 2228, 2475, 2349, 2508, 1981, 2276, 1955),
        ]


def test_global_generator_is_left_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    make_partition("practical", make_dataset([600] * 4), 3)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


# every kind

KINDS = {
    "pathological": {"classes_per_client": 2},
    "practical": {"alpha": 0.5},
    "dirichlet": {"alpha": 0.5, "min_samples": 4},
    "iid": {},
    "dfrd": {"alpha": 0.5, "min_samples": 4},
    "class_shares": {"val_size": 30},
    "few_shot": {"shots": 3},
}


def test_every_kind_is_tested():
    assert {*KINDS, "given", "natural"} == {*PLANS, *PARTITIONS}


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    num_clients=st.integers(1, 4),
    class_sizes=st.lists(st.integers(60, 120), min_size=2, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_kind_uses_samples_once(kind, num_clients, class_sizes, seed):
    num_clients *= len(class_sizes) if kind == "class_shares" else 1
    dataset = make_dataset(class_sizes, test_share=1 / 3)
    partition = make_partition(kind, dataset, num_clients, seed, **KINDS[kind])
    indices = used(partition)
    assert len(partition) == num_clients
    assert all(isinstance(client, ClientIndices) for client in partition)
    assert {x.dtype for client in partition for x in client} == {np.dtype(np.int64)}
    assert len(np.unique(indices)) == len(indices)
    assert indices.min() >= 0 and indices.max() < len(dataset.labels)
    assert sizes(partition, "train").min() > 0
    for other in (seed, (seed + 1) % 2**32):
        again = make_partition(kind, dataset, num_clients, other, **KINDS[kind])
        assert identical(partition, again) == (other == seed)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(PLANS)),
    num_clients=st.integers(1, 4),
    shares=st.sampled_from([(0.75, 0.0), (0.8, 0.1), (0.6, 0.3), (0.3, 0.5), (0.9, 0.0)]),
    stratified=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_merged_shares_are_respected(kind, num_clients, shares, stratified, seed):
    dataset = make_dataset([90, 70, 101])
    split = {"train_share": shares[0], "val_share": shares[1], "stratified": stratified}
    partition = make_partition(kind, dataset, num_clients, seed, **KINDS[kind], **split)
    held = counts_of(dataset, partition, *SETS)
    train = counts_of(dataset, partition, "train")
    fit = counts_of(dataset, partition, "train", "val")
    if not stratified:
        held, train, fit = held.sum(1), train.sum(1), fit.sum(1)
    slack = 0.5 if stratified else 1 - 1e-6  # nearest, or rounded down
    for share, got in ((shares[0], train), (sum(shares), fit)):
        assert np.all(np.abs(got - share * held) <= slack + 1e-6)
        assert stratified or np.all(got <= share * held + 1e-6)
    if kind != "pathological":  # which may leave classes unused
        assert held.sum() == 261


def test_split_shares_survive_float_rounding():
    dataset = make_dataset([100])
    client = make_partition("iid", dataset, 1, train_share=0.6, val_share=0.3)[0]
    assert [len(x) for x in client] == [60, 30, 10]
    client = make_partition("iid", dataset, 1, train_share=0.29, val_share=0.28)[0]
    assert [len(x) for x in client] == [29, 28, 43]


def test_equal_weights_deal_equal_parts():
    for count in (10, 49, 100):
        draws = np.random.RandomState(0)
        parts = deal_classes(np.arange(count), np.zeros(count, int), np.ones((count, 1)), draws)
        assert [len(part) for part in parts] == [1] * count


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(list(PLANS)),
    num_clients=st.integers(2, 4),
    val_share=st.sampled_from([0.0, 0.2]),
)
def test_official_test_set_follows_the_training_classes(kind, num_clients, val_share):
    dataset = make_dataset([90, 120, 150], test_share=1 / 3)
    options = KINDS[kind] | {"sets": "official", "val_share": val_share}
    partition = make_partition(kind, dataset, num_clients, **options)
    fit, test = counts_of(dataset, partition, "train", "val"), counts_of(dataset, partition, "test")
    trained = np.concatenate([np.r_[c.train, c.val] for c in partition])
    assert set(trained) <= set(dataset.official["train"])
    assert set(np.concatenate([c.test for c in partition])) <= set(dataset.official["test"])
    expected = np.floor((1 - val_share) * fit.sum(1) + 1e-9)
    np.testing.assert_array_equal(sizes(partition, "train"), expected)
    # every test sample of an owned class is dealt, to its owners only, within rounding
    owned = fit.sum(0) > 0
    available = np.bincount(dataset.labels[dataset.official["test"]])
    np.testing.assert_array_equal(test.sum(0), np.where(owned, available, 0))
    assert not test[fit == 0].any()
    assert np.all(np.abs(test - fit / np.maximum(fit.sum(0), 1) * available) <= 1 + 1e-6)


def test_official_sets_are_shuffled_and_stratified():
    dataset = make_dataset([90, 120], test_share=1 / 3)
    options = {"sets": "official", "balanced": True, "val_share": 0.25, "stratified": True}
    a, b = (make_partition("pathological", dataset, 2, seed, **options) for seed in (1, 2))
    # of the same sizes, whatever the seed
    assert not any(set(x.test) == set(y.test) for x, y in zip(a, b))
    fit, val = counts_of(dataset, a, "train", "val"), counts_of(dataset, a, "val")
    assert np.all(np.abs(val - 0.25 * fit) <= 0.5 + 1e-6)


GROUPS = np.array([7] * 8 + [2] * 12 + [5] * 4)
LABELS = np.arange(24) % 3
OWNED = Dataset("d", np.arange(24.0)[:, None], LABELS, ("a", "b", "c"), groups=GROUPS)


def groups_of(client) -> set[int]:
    return set(GROUPS[np.concatenate(client)].tolist())


def test_every_client_is_a_group():
    clients = make_partition("natural", OWNED, 3, train_share=0.5, val_share=0.25)
    assert [groups_of(c) for c in clients] == [{2}, {5}, {7}]
    assert [[len(part) for part in c] for c in clients] == [[6, 3, 3], [2, 1, 1], [4, 2, 2]]
    assert sorted(np.concatenate([np.concatenate(c) for c in clients])) == list(range(24))
    again = make_partition("natural", OWNED, 3, seed=2, train_share=0.5, val_share=0.25)
    assert any((a.train.tolist() != b.train.tolist()) for a, b in zip(clients, again))


def test_the_last_samples_test():
    clients = make_partition("natural", OWNED, 3, tested="last", train_share=0.5, val_share=0.25)
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
    clients = make_partition("natural", OWNED, 2, seed=3, tested="new_groups")
    held = [set(GROUPS[c.train].tolist()) for c in clients]
    assert all(len(groups) == 1 for groups in held) and held[0] != held[1]
    tests = np.concatenate([c.test for c in clients])
    assert set(GROUPS[tests].tolist()) == {2, 5, 7} - held[0] - held[1]
    assert len(set(tests)) == len(tests)
    assert sum(len(c.train) + len(c.test) for c in clients) == 24
    assert not any(len(c.val) for c in clients)
    clients = make_partition("natural", OWNED, 1, seed=3, tested="new_groups", val_share=0.5)
    assert len(clients[0].train) == len(clients[0].val) > 0


def test_several_clients_a_group_and_few_of_the_groups():
    clients = make_partition("natural", OWNED, 6)
    assert [groups_of(c) for c in clients] == [{2}, {2}, {5}, {5}, {7}, {7}]
    assert len(set(np.concatenate([np.concatenate(c) for c in clients]))) == 24
    assert len(make_partition("natural", OWNED, 1)[0].train) in (3, 6, 9)


def test_groups_without_a_client_are_counted():
    line = "groups have no client: their samples are unused"
    found = [split_notes(OWNED, make_partition("natural", OWNED, n)) for n in (1, 2, 3, 6)]
    counted = [[note for note in notes if line in note] for notes in found]
    assert counted == [[f"2 of 3 {line}"], [f"1 of 3 {line}"], [], []]
    strangers = make_partition("natural", OWNED, 2, tested="new_groups")
    assert not any(line in note for note in split_notes(OWNED, strangers))


def test_an_official_validation_set_that_nobody_has_is_noted():
    sets = {"train": np.arange(12), "val": np.arange(12, 18), "test": np.arange(18, 24)}
    dataset = dataclasses.replace(OWNED, official=sets)
    found = [
        split_notes(dataset, make_partition("iid", dataset, 2, sets=x))
        for x in ("official", "merged")
    ]
    line = "the official val set of d, 6 samples, is unused"
    assert [any(line in note for note in notes) for notes in found] == [True, False]


@pytest.mark.parametrize(
    "clients, options, message",
    [
        (4, {}, "num_clients is 4; d has 3 groups: use at most as many clients, or a multiple"),
        (3, {"tested": "new_groups"}, "num_clients is 3, but d has 3 groups; tested='new_groups'"),
        (15, {}, "a group has 4 samples for 5 clients"),
    ],
)
def test_wrong_options_are_one_line(clients, options, message):
    with pytest.raises(ValueError, match=message):
        make_partition("natural", OWNED, clients, **options)


def test_a_set_without_groups():
    with pytest.raises(ValueError, match=r"partition natural needs Dataset\.groups, .* but d has"):
        make_partition("natural", dataclasses.replace(OWNED, groups=None), 3)
    with pytest.raises(ValueError, match="groups of float64"):
        dataclasses.replace(OWNED, groups=np.zeros(24))


def test_a_subset_keeps_whose_a_sample_is():
    few = subset(OWNED, 10, seed=0)
    np.testing.assert_array_equal(few.groups, GROUPS[few.inputs[:, 0].astype(int)])


def test_persons_with_few_samples_are_left_out_or_named():
    groups = np.repeat([4, 6, 8, 9], [1, 1, 4, 5])
    dataset = Dataset("d", np.zeros((11, 1)), np.arange(11) % 3, ("a", "b", "c"), groups=groups)
    with pytest.raises(ValueError, match=r"client 0 of 4 without.* min_samples"):
        make_partition("natural", dataset, 4)
    clients = make_partition("natural", dataset, 2, min_samples=2)
    assert [set(groups[np.concatenate(c)]) for c in clients] == [{8}, {9}]
    with pytest.raises(ValueError, match="d has 2 groups of at least 2 samples: use at most"):
        make_partition("natural", dataset, 3, min_samples=2)
    with pytest.raises(ValueError, match="min_samples is 6, but the largest group of d has 5"):
        make_partition("natural", dataset, 1, min_samples=6)
    for clients in (2, 4):
        few = make_partition("natural", dataset, clients, min_samples=2, tested="new_groups")
        assert {*groups[np.concatenate([c.test for c in few])]} == {4, 6}
