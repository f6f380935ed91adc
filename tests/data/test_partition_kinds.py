"""Each kind of partition keeps its promises, and wrong settings are refused."""

import dataclasses

import numpy as np
import pytest

from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.data.partition import check_partition, class_counts, make_partition
from fedjax_ht.data.partition.kinds import pathological
from tests.data.test_partition import SETS, counts_of, sizes, used
from tests.lab.readers.toy_dataset import make_dataset


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
        partition = make_partition(kind, dataset, 10, alpha=alpha, min_samples=15)
        counts = counts_of(dataset, partition, *SETS)
        assert counts.sum() == 1500 and counts.sum(1).min() >= 15
        return (counts.max(1) / counts.sum(1)).mean()

    assert largest_class(0.2) > 0.45
    assert largest_class(1000.0) < 0.25


@pytest.mark.parametrize("kind, gated", [("practical", True), ("dirichlet", False)])
def test_only_practical_gates_full_clients(kind, gated):
    dataset = make_dataset([100] * 20)
    counts = counts_of(dataset, make_partition(kind, dataset, 10, min_samples=10), *SETS)
    counts = counts[:-1]  # the last takes roundings
    held_before = np.cumsum(counts, axis=1) - counts
    assert np.any(counts[held_before >= 200]) != gated


@pytest.mark.parametrize("kind", ["practical", "dirichlet", "dfrd"])
def test_hopeless_dirichlet_stops(kind):
    dataset = make_dataset([40] * 2, test_share=1 / 4)
    with pytest.raises(ValueError, match=r"alpha=0.01 .* 20 clients at least 3 samples in 7"):
        make_partition(kind, dataset, 20, alpha=0.01, min_samples=3, max_tries=7)


def test_classes_without_samples_are_skipped():
    dataset = make_dataset([50, 0, 50, 0])
    assert len(used(make_partition("practical", dataset, 2, alpha=10.0))) == 100


@pytest.mark.parametrize(
    "kind, options",
    [
        ("pathological", {}),
        ("few_shot", {}),
        ("class_shares", {"sets": "merged"}),
        ("class_shares", {"val_size": 6}),
    ],
)
def test_classes_without_samples_have_no_share(kind, options):
    """The split is that of a dataset without these classes."""
    dataset, without = (make_dataset(x, test_share=1 / 3) for x in ([60, 0, 60, 0], [60, 60]))
    for client, same in zip(*(make_partition(kind, x, 2, **options) for x in (dataset, without))):
        assert len(client.train) and all(map(np.array_equal, client, same))


def test_a_client_has_no_more_classes_than_have_samples():
    with pytest.raises(ValueError, match="classes_per_client is 3; it must be at most the 2 class"):
        make_partition("pathological", make_dataset([60, 0, 60]), 2, classes_per_client=3)


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
    """The clients' samples and test sets are those of the split without it."""
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
    "num_clients, num_classes, each, owners", [(10, 10, 2, 2), (50, 10, 2, 10), (10, 100, 10, 1)]
)
def test_class_shares_one_plan_for_three_sets(num_clients, num_classes, each, owners):
    dataset = make_dataset([6000 // num_classes * 5] * num_classes, test_share=1 / 3)
    options = {"classes_per_client": each, "val_size": 9000}
    partition = make_partition("class_shares", dataset, num_clients, **options)
    train, val, test = (counts_of(dataset, partition, s) for s in SETS)
    assert val.sum() == 9000 and test.sum() == len(dataset.official["test"])
    assert train.sum() == len(dataset.official["train"]) - 9000
    held = (train > 0).sum(0)
    # a client may take the same class twice
    assert held.max() == owners and held.mean() > 0.8 * owners
    assert (train > 0).sum(1).max() == each
    for counts in (train, val, test):
        shares = counts / counts.sum(0)
        np.testing.assert_allclose(shares, train / train.sum(0), atol=1.5 / counts.sum(0).min())
        assert np.all(shares[shares > 0] > 0.4 / (0.4 + 0.6 * (owners - 1)) - 0.02)
        assert not counts[train == 0].any()
    if each == 2:
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
        partition = make_partition("class_shares", dataset, 20, seed, val_size=10)
        train = class_counts(dataset.labels, partition)
        # each class is taken once before any is taken again
        for half in (train[:5], train[5:10]):
            assert np.all((half > 0).sum(0) == 1)


def test_class_shares_of_a_class_taken_twice_add_up():
    dataset = make_dataset([300] * 3, test_share=1 / 3)
    alone = []
    for seed in range(9):
        partition = make_partition("class_shares", dataset, 6, seed, val_size=10)
        train = class_counts(dataset.labels, partition)
        alone += [row.sum() for row in train if np.count_nonzero(row) == 1]
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


def test_few_shot_tests_clients_on_equal_numbers():
    """The remainders of small classes go around."""
    partition = make_partition("few_shot", make_dataset([53] * 10), 10, shots=5)
    assert sizes(partition, "test").tolist() == [3] * 10
    uneven = make_partition("few_shot", make_dataset([31, 38, 40, 33, 34]), 7, shots=4)
    assert np.ptp(sizes(uneven, "test")) <= 1


def test_few_shot_with_small_test_sets():
    """FedKTL's Table 9: of three images a class two are for training, one for tests."""
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
    for got, client in zip(make_partition("given", dataset, 2), clients, strict=True):
        assert list(map(list, got)) == list(map(list, client))
    with pytest.raises(ValueError, match="num_clients is 3, but toy came with 2 clients; set it"):
        make_partition("given", dataset, 3)


def test_class_counts():
    labels = np.array([0, 2, 2, 1, 0, 2])
    none = np.array([], int)
    first = ClientIndices(np.array([1, 2, 3]), none, np.array([0]))
    partition = (first, ClientIndices(np.array([4]), none, none))
    counts = class_counts(labels, partition)
    assert counts.dtype == np.int64 and counts.tolist() == [[0, 1, 2], [1, 0, 0]]
    expected = [[1, 0, 0, 0], [0, 0, 0, 0]]
    assert class_counts(labels, partition, "test", num_classes=4).tolist() == expected
    with pytest.raises(ValueError, match="set is 'validation'; it must be 'train', 'val' or 'te"):
        class_counts(labels, partition, "validation")


def test_the_last_client_of_a_balanced_class_takes_what_is_left_over():
    labels = np.arange(31) % 3  # 11, 10 and 10 samples, each for three clients
    draws = np.random.RandomState(0)
    parts = pathological(labels, 3, 3, draws, classes_per_client=3, balanced=True)
    assert [len(part) for part in parts] == [9, 9, 13]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(31))


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("dirichelt", {}, "unknown partition 'dirichelt'; did you mean 'dirichlet'. The"),
        ("practical", {"beta": 1}, "'practical' has no option 'beta'; it has alpha, min_samples"),
        ("given", {"alpha": 1}, "'given' has no option 'alpha'; it has none"),
        ("dfrd", {"train_share": 0.1}, "has no option 'train_share'; .* It has alpha, min_samples"),
        ("dirichlet", {"min_samples": None}, "min_samples is None; it must be an integer of at"),
        ("pathological", {"classes_per_client": 11}, "classes_per_client is 11; it must be at"),
        ("class_shares", {"classes_per_client": 3}, "is 12; it must be a multiple of the 10"),
        ("class_shares", {"classes_per_client": 5, "sets": "all"}, "sets is 'all'"),
        ("class_shares", {"classes_per_client": 5, "train_share": 0.6}, "train_share is not read"),
        ("class_shares", {"sets": "merged", "val_size": 5}, "val_size is not read with sets='mer"),
        ("class_shares", {"classes_per_client": 5, "val_share": 0.3}, "train_share \\+ val_share"),
        ("iid", {"val_share": 0.3}, r"train_share \+ val_share is 1.05; it must be at most 1"),
        ("iid", {"sets": "official", "train_share": 0.8}, "only set val_share"),
        ("iid", {"sets": "both"}, "sets is 'both'; it must be 'merged' or 'official'"),
        ("iid", {"stratified": "no"}, "stratified is 'no'; it must be True or False"),
    ],
)
def test_check_names_the_bad_setting(kind, options, message):
    """Numbers beyond their bounds are in tests/lab/runs/test_every_number.py."""
    with pytest.raises(ValueError, match=message) as error:
        check_partition(kind, 4, 10, **options)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=message):
        make_partition(kind, make_dataset([20] * 10), 4, **options)


def test_a_client_that_comes_without_training_samples_stays():
    clients = (ClientIndices([0, 1, 2], [], [3]), ClientIndices([], [], [4]))
    dataset = dataclasses.replace(make_dataset([3, 3]), clients=clients)
    assert sizes(make_partition("given", dataset, 2), "train").tolist() == [3, 0]


def test_check_number_of_clients():
    with pytest.raises(ValueError, match="num_clients is 0; it must be an integer of at least 1"):
        check_partition("iid", 0, 10)


@pytest.mark.parametrize(
    "kind, num_clients, options, message",
    [
        ("iid", 2, {"sets": "official"}, "toy has no official train set"),
        ("dfrd", 2, {}, "toy has no official train set"),
        ("class_shares", 2, {}, "toy has no official train set"),
        ("given", 2, {}, "toy came without a split into clients; choose one of pathological"),
        ("few_shot", 3, {"shots": 4}, "class 0 has 10 samples, but 4 shots and 0 test_shots for 3"),
        ("few_shot", 3, {"shots": 2, "test_shots": 2}, "class 0 has 10 samples, but 2 shots and"),
        ("pathological", 15, {}, "class 0 has 10 samples, too few for the 15 clients that share"),
        ("iid", 21, {}, "leaves some of 21 clients without training samples; toy has 20 samples"),
    ],
)
def test_data_that_does_not_fit(kind, num_clients, options, message):
    with pytest.raises(ValueError, match=message):
        make_partition(kind, make_dataset([10, 10]), num_clients, **options)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["iid", "dirichlet", "practical", "pathological"])
def test_more_clients_than_samples_are_refused_at_once(kind):
    message = f"{kind}' leaves some of 20000 clients without.*: lower num_clients$"
    with pytest.raises(ValueError, match=message):
        make_partition(kind, make_dataset([5000, 5000]), 20_000)


@pytest.mark.parametrize(
    "sizes, share, kind, options, message",
    [
        ([60, 60], 1 / 3, "class_shares", {}, "val_size is 10000; it must be below the 80"),
        ([40, 40], None, "dirichlet", {"alpha": 1e-9, "max_tries": 3}, "raise alpha"),
        ([1, 0], None, "iid", {"train_share": 1.0}, "a test sample; toy has 1 samples: lower"),
        ([1] * 6, None, "iid", {"stratified": True}, "has 6 samples: .*stratified$"),
        ([10, 10], None, "few_shot", {}, "has 20 samples: lower num_clients or shots$"),
    ],
)
def test_sets_that_no_client_can_have(sizes, share, kind, options, message):
    clients = 2 if sizes[-1] > 1 else 1
    with pytest.raises(ValueError, match=message):
        make_partition(kind, make_dataset(sizes, test_share=share), clients, **options)
