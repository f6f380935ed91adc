import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.data.partition import PARTITIONS, PLANS, class_counts, make_partition
from tests.data.toy_dataset import make_dataset

GOLDEN = json.loads(Path(__file__).with_name("golden_partition.json").read_text())
MNIST_SIZES = GOLDEN["pfllib"]["practical MNIST"]["class_sizes"]
SETS = ("train", "val", "test")


def sizes(partition, *sets):
    return np.array([sum(len(getattr(client, s)) for s in sets) for client in partition])


def counts_of(dataset, partition, *sets):
    return sum(class_counts(dataset.labels, partition, s, dataset.num_classes) for s in sets)


def used(partition):
    return np.concatenate([getattr(client, s) for client in partition for s in SETS])


def same(a, b):
    return len(a) == len(b) and all(
        np.array_equal(x, y) for p, q in zip(a, b) for x, y in zip(p, q)
    )


# PFLlib's two, digit for digit


@pytest.mark.parametrize("case", GOLDEN["pfllib"].values(), ids=GOLDEN["pfllib"])
def test_reproduces_pfllib_in_order(case):
    dataset = make_dataset(case["class_sizes"])
    partition = make_partition(case["kind"], dataset, case["num_clients"], **case["options"])
    assert sizes(partition, "train").tolist() == case["train_sizes"]
    assert [client.train[:3].tolist() for client in partition] == case["train_heads"]
    assert [client.test[:3].tolist() for client in partition] == case["test_heads"]
    assert not sizes(partition, "val").any()


def test_practical_cifar10_counts():
    dataset = make_dataset([6000] * 10)
    counts = counts_of(dataset, make_partition("practical", dataset, 20), *SETS)
    assert counts[0].tolist() == [0, 9, 0, 668, 476, 287, 5, 167, 0, 9]
    assert counts[1].tolist() == [7, 1, 62, 0, 43, 0, 0, 177, 1524, 0]
    assert np.count_nonzero(counts) == 102


def test_practical_mnist_matches_published_counts():
    dataset = make_dataset(MNIST_SIZES)
    assert (
        counts_of(dataset, make_partition("practical", dataset, 20), *SETS).tolist()
        == GOLDEN["mnist_counts"]
    )


@pytest.mark.parametrize(
    "num_clients, held, trained, batched",
    [(20, 921, 869, 868), (50, 1920, 1806, 1802), (100, 3271, 3040, 3031), (200, 5775, 5307, 5275)],
)
def test_practical_cifar100_distinct_classes(num_clients, held, trained, batched):
    dataset = make_dataset([600] * 100)
    partition = make_partition("practical", dataset, num_clients)
    assert np.count_nonzero(counts_of(dataset, partition, *SETS)) == held
    assert np.count_nonzero(counts_of(dataset, partition, "train")) == trained
    whole_batches = [
        client._replace(train=client.train[: len(client.train) // 10 * 10]) for client in partition
    ]
    assert np.count_nonzero(counts_of(dataset, whole_batches, "train")) == batched
    if num_clients == 20:
        assert sizes(partition, "train").tolist() == [
            *(2265, 2289, 2064, 2271, 1980, 2157, 2340, 2285, 2105, 2408),
            *(2070, 2519, 2467, 2228, 2475, 2349, 2508, 1981, 2276, 1955),
        ]


def test_pathological_blocks():
    dataset = make_dataset([6000] * 10)
    counts = counts_of(dataset, make_partition("pathological", dataset, 20), *SETS)
    for client, row in enumerate(counts):
        assert np.flatnonzero(row).tolist() == [client // 4 * 2, client // 4 * 2 + 1]


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
def test_every_kind_uses_samples_once_and_only_the_seed_changes_it(
    kind, num_clients, class_sizes, seed
):
    num_clients *= len(class_sizes) if kind == "class_shares" else 1
    dataset = make_dataset(class_sizes, test_share=1 / 3)
    partition = make_partition(kind, dataset, num_clients, seed, **KINDS[kind])
    indices = used(partition)
    assert len(partition) == num_clients and all(
        isinstance(client, ClientIndices) for client in partition
    )
    assert {x.dtype for client in partition for x in client} == {np.dtype(np.int64)}
    assert len(np.unique(indices)) == len(indices)
    assert indices.min() >= 0 and indices.max() < len(dataset.labels)
    assert sizes(partition, "train").min() > 0
    assert same(partition, make_partition(kind, dataset, num_clients, seed, **KINDS[kind]))
    assert not same(
        partition, make_partition(kind, dataset, num_clients, (seed + 1) % 2**32, **KINDS[kind])
    )


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(PLANS)),
    num_clients=st.integers(1, 4),
    shares=st.sampled_from([(0.75, 0.0), (0.8, 0.1), (0.6, 0.3), (0.5, 0.5), (1.0, 0.0)]),
    stratified=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_merged_shares_are_respected(kind, num_clients, shares, stratified, seed):
    dataset = make_dataset([90, 70, 101])
    split = {"train_share": shares[0], "val_share": shares[1], "stratified": stratified}
    partition = make_partition(kind, dataset, num_clients, seed, **KINDS[kind], **split)
    held = counts_of(dataset, partition, *SETS)
    train, fit = (
        counts_of(dataset, partition, "train"),
        counts_of(dataset, partition, "train", "val"),
    )
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
    assert set(np.concatenate([np.r_[c.train, c.val] for c in partition])) <= set(
        dataset.official["train"]
    )
    assert set(np.concatenate([c.test for c in partition])) <= set(dataset.official["test"])
    np.testing.assert_array_equal(
        sizes(partition, "train"), np.floor((1 - val_share) * fit.sum(1) + 1e-9)
    )
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


# what each kind promises


def test_iid_parts_are_equal_and_random():
    dataset = make_dataset([500, 501])
    partition = make_partition("iid", dataset, 4)
    counts = counts_of(dataset, partition, *SETS)
    assert sorted(counts.sum(1)) == [250, 250, 250, 251]
    assert np.all(np.abs(counts - 125) < 40) and len(np.unique(counts[:, 0])) > 1
    first = np.concatenate([partition[0].train, partition[0].test])
    assert np.ptp(first) > 900  # from anywhere in the data


@pytest.mark.parametrize("kind", ["practical", "dirichlet"])
def test_dirichlet_skew_and_minimum(kind):
    dataset = make_dataset([300] * 5)

    def largest_class(alpha):  # mean share of a client's commonest class
        counts = counts_of(
            dataset, make_partition(kind, dataset, 10, alpha=alpha, min_samples=15), *SETS
        )
        assert counts.sum() == 1500 and counts.sum(1).min() >= 15
        return (counts.max(1) / counts.sum(1)).mean()

    assert largest_class(0.2) > 0.45
    assert largest_class(1000.0) < 0.25


@pytest.mark.parametrize("kind, gated", [("practical", True), ("dirichlet", False)])
def test_only_practical_gates_full_clients(kind, gated):
    dataset = make_dataset([100] * 20)
    counts = counts_of(dataset, make_partition(kind, dataset, 10, min_samples=10), *SETS)[
        :-1
    ]  # the last takes roundings
    held_before = np.cumsum(counts, axis=1) - counts
    assert np.any(counts[held_before >= 200]) != gated


@pytest.mark.parametrize("kind", ["practical", "dirichlet", "dfrd"])
def test_hopeless_dirichlet_stops(kind):
    dataset = make_dataset([40] * 2, test_share=1 / 4)
    with pytest.raises(
        ValueError, match=r"alpha=0.01 .* 20 clients at least 3 samples in 7 tries; raise alpha"
    ):
        make_partition(kind, dataset, 20, alpha=0.01, min_samples=3, max_tries=7)


def test_underflowing_shares_are_a_failed_try():
    with pytest.raises(ValueError, match="raise alpha"):
        make_partition(
            "dirichlet", make_dataset([40] * 2), 2, alpha=1e-9, min_samples=1, max_tries=3
        )


def test_classes_without_samples_are_skipped():
    dataset = make_dataset([50, 0, 50, 0])
    assert len(used(make_partition("practical", dataset, 2, alpha=10.0))) == 100


def test_dfrd_tests_evenly_and_shuffles_the_training_order():
    dataset = make_dataset([300, 330, 360], test_share=1 / 3)
    partition = make_partition("dfrd", dataset, 4, alpha=0.3)
    train, test = dataset.official["train"], dataset.official["test"]
    assert sorted(np.concatenate([c.train for c in partition])) == train.tolist()
    assert set(np.concatenate([c.test for c in partition])) <= set(test)
    expected = np.bincount(dataset.labels[test]) // 4
    np.testing.assert_array_equal(counts_of(dataset, partition, "test"), np.tile(expected, (4, 1)))
    assert sizes(partition, "train").min() >= 10
    mixed = max(partition, key=lambda c: len(np.unique(dataset.labels[c.train])))
    # classes are drawn in ascending order
    assert np.any(np.diff(dataset.labels[mixed.train]) < 0)


def test_dfrd_holds_out_a_share_of_each_client_s_training_samples():
    """Nothing else moves: who holds what, and the test sets, are those of the split without."""
    dataset = make_dataset([300, 330, 360], test_share=1 / 3)
    plain, held_out = (
        make_partition("dfrd", dataset, 4, alpha=0.3, val_share=share) for share in (0.0, 0.2)
    )
    for before, client in zip(plain, held_out):
        assert sorted([*client.train, *client.val]) == sorted(before.train)
        assert len(client.train) == int(0.8 * len(before.train) + 1e-9) and len(client.val)
        np.testing.assert_array_equal(client.test, before.test)
    assert not sizes(plain, "val").any()


@pytest.mark.parametrize(
    "num_clients, num_classes, wanted, owners", [(10, 10, 2, 2), (50, 10, 2, 10), (10, 100, 10, 1)]
)
def test_class_shares_one_plan_for_three_sets(num_clients, num_classes, wanted, owners):
    dataset = make_dataset([6000 // num_classes * 5] * num_classes, test_share=1 / 3)
    partition = make_partition(
        "class_shares", dataset, num_clients, classes_per_client=wanted, val_size=9000
    )
    train, val, test = (counts_of(dataset, partition, s) for s in SETS)
    assert val.sum() == 9000 and test.sum() == len(dataset.official["test"])
    assert train.sum() == len(dataset.official["train"]) - 9000
    held = (train > 0).sum(0)
    # a client may take the same class twice
    assert held.max() == owners and held.mean() > 0.8 * owners
    assert (train > 0).sum(1).max() == wanted
    for counts in (train, val, test):
        shares = counts / counts.sum(0)
        np.testing.assert_allclose(shares, train / train.sum(0), atol=1.5 / counts.sum(0).min())
        assert np.all(shares[shares > 0] > 0.4 / (0.4 + 0.6 * (owners - 1)) - 0.02)
        assert not counts[train == 0].any()
    if wanted == 2:
        twice = np.where((train > 0).sum(1) == 1, 2, 1)[:, None]
        one_share = (train / train.sum(0) / twice)[train > 0]
        assert one_share.max() < 0.6 / (0.6 + 0.4 * (owners - 1)) + 0.02 and one_share.std() > 0.005


def test_class_shares_of_merged_samples_split_each_client_s_own():
    """8:1:1, as FedSSA's and FedRAL's texts say; the plan is the one of the official sets."""
    dataset = make_dataset([600] * 10, test_share=1 / 3)
    partition = make_partition("class_shares", dataset, 20, sets="merged")
    train, val, test = (counts_of(dataset, partition, s) for s in SETS)
    held = train + val + test
    assert held.sum() == len(dataset.labels) and (held > 0).sum(1).max() == 2
    np.testing.assert_array_equal(train.sum(1), np.floor(0.8 * held.sum(1) + 1e-9))
    np.testing.assert_array_equal((train + val).sum(1), np.floor(0.9 * held.sum(1) + 1e-9))
    official = counts_of(dataset, make_partition("class_shares", dataset, 20, val_size=10), "train")
    assert (held > 0).sum(0).max() == (official > 0).sum(0).max() == 4


def test_class_shares_take_a_class_with_most_shares_left():
    dataset = make_dataset([300] * 10, test_share=1 / 3)
    for seed in range(5):
        train = class_counts(
            dataset.labels, make_partition("class_shares", dataset, 20, seed, val_size=10)
        )
        # each class is taken once before any is taken again
        for half in (train[:5], train[5:10]):
            assert np.all((half > 0).sum(0) == 1)


def test_class_shares_of_a_class_taken_twice_add_up():
    dataset = make_dataset([300] * 3, test_share=1 / 3)
    trains = [
        class_counts(dataset.labels, make_partition("class_shares", dataset, 6, seed, val_size=10))
        for seed in range(9)
    ]
    alone = [row.sum() for train in trains for row in train if np.count_nonzero(row) == 1]
    # two shares of four, in the worst ratio
    assert alone and min(alone) > 2 * 190 * 0.4 / (0.4 + 0.6 * 3)


def test_class_shares_validation_is_random():
    dataset = make_dataset([600] * 2, test_share=1 / 3)
    partition = make_partition("class_shares", dataset, 2, classes_per_client=1, val_size=200)
    val = np.sort(np.concatenate([c.val for c in partition]))
    assert 350 < np.median(val) < 850 and not np.array_equal(val, dataset.official["train"][:200])


def test_few_shot_counts():
    dataset = make_dataset([50, 61, 72])
    partition = make_partition("few_shot", dataset, 3, shots=4)
    assert np.all(counts_of(dataset, partition, "train") == 4)
    assert len(used(partition)) == 183
    assert np.ptp(counts_of(dataset, partition, "test"), axis=0).max() <= 1


def test_few_shot_with_small_test_sets():
    """FedKTL's Table 9: of three images a class two are for training; 100 classes then test on 100
    images."""
    dataset = make_dataset([10] * 100)
    partition = make_partition("few_shot", dataset, 2, shots=2, test_shots=1)
    assert np.all(counts_of(dataset, partition, "train") == 2)
    assert np.all(counts_of(dataset, partition, "test") == 1)
    assert len(used(partition)) == len(np.unique(used(partition))) == 600
    rest = make_partition("few_shot", dataset, 2, shots=2)
    # the same images are shown
    assert all(np.array_equal(a.train, b.train) for a, b in zip(partition, rest))


def test_given_returns_the_split_of_the_data():
    clients = tuple(ClientIndices(*(np.array([i + 2 * k]) for k in range(3))) for i in range(2))
    dataset = make_dataset([6], clients=clients)
    assert make_partition("given", dataset, 2) is clients
    with pytest.raises(ValueError, match="num_clients is 3, but toy came with 2 clients"):
        make_partition("given", dataset, 3)


def test_class_counts():
    labels = np.array([0, 2, 2, 1, 0, 2])
    none = np.array([], int)
    partition = (
        ClientIndices(np.array([1, 2, 3]), none, np.array([0])),
        ClientIndices(np.array([4]), none, none),
    )
    counts = class_counts(labels, partition)
    assert counts.dtype == np.int64 and counts.tolist() == [[0, 1, 2], [1, 0, 0]]
    assert class_counts(labels, partition, "test", num_classes=4).tolist() == [
        [1, 0, 0, 0],
        [0, 0, 0, 0],
    ]
