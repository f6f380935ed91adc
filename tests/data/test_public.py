"""Public sets: samples of nobody, held out of a dataset or put beside it."""

import dataclasses

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.core.federation import PublicSet
from fedjax_ht.data.partition.notes import split_notes
from fedjax_ht.data.public import beside, check_apart, held_out, hold_out_share
from fedjax_ht.data.reading import Reading
from fedjax_ht.data.selection import subset

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(4), 25)
NONE = np.array([], int)


def images(count: int, side: int = 4) -> np.ndarray:
    return RNG.integers(0, 256, (count, side, side, 1), np.uint8)


DATASET = fl.Dataset("own", images(100), LABELS, tuple("abcd"))
SETS = {"train": np.arange(0, 100, 2), "test": np.arange(1, 100, 2)}
OFFICIAL = dataclasses.replace(DATASET, official=SETS)


def test_a_share_is_held_out_by_the_seed():
    public = held_out(DATASET, 0.1, seed=3).public
    assert len(set(public)) == 10 and (np.diff(public) > 0).all()
    np.testing.assert_array_equal(public, held_out(DATASET, 0.1, seed=3).public)
    assert set(public) != set(held_out(DATASET, 0.1, seed=4).public)
    assert held_out(DATASET, 0.1, seed=3).public_set == PublicSet(10, True)


def test_of_an_official_training_set_the_share_is_taken():
    public = held_out(OFFICIAL, 0.2, seed=1).public
    assert len(public) == 10 and not (public % 2).any()


@pytest.mark.parametrize("kind", ["iid", "class_shares"])
def test_no_client_has_a_public_sample(kind):
    dataset = held_out(DATASET, 0.2, seed=1)
    partition = fl.make_partition(kind, dataset, 4, sets="merged")
    check_apart(dataset, partition)
    owned = np.concatenate([indices for client in partition for indices in client])
    assert len(set(owned)) == len(owned) == 80 and not set(owned) & set(dataset.public)


def test_a_split_by_hand_with_a_public_sample_is_refused():
    dataset = dataclasses.replace(DATASET, public=np.array([5, 7]))
    federation = fl.make_federation({"mlp": fl.mlp(4, (3,))}, (4, 4, 1), 4, num_clients=1)
    partition = [fl.ClientIndices(np.array([0, 30]), NONE, np.array([7, 60]))]
    message = "own: 1 test samples of client 0 are public, first sample 7"
    with pytest.raises(ValueError, match=message):
        fl.make_federation_data(dataset, partition, federation)


def test_a_split_by_hand_keeps_its_samples_beside_public_ones():
    clients = (fl.ClientIndices(np.array([4, 5]), NONE, np.array([60])),)
    dataset = dataclasses.replace(DATASET, public=np.array([0, 1]), clients=clients)
    (client,) = fl.make_partition("given", dataset, 1)
    assert client.train.tolist() == [4, 5] and client.test.tolist() == [60]


def test_another_split_is_of_the_samples_that_are_not_public():
    clients = (fl.ClientIndices(np.array([4, 5]), NONE, np.array([99])),)
    dataset = dataclasses.replace(DATASET, public=np.array([0, 1]), clients=clients)
    owned = np.concatenate([x for client in fl.make_partition("iid", dataset, 2) for x in client])
    assert sorted(owned) == list(range(2, 100))


def test_public_samples_are_of_no_group():
    own = dataclasses.replace(DATASET, groups=np.repeat([1, 2], 50))
    joined = beside(own, fl.Dataset("other", images(6), np.arange(6) % 4, tuple("wxyz")))
    described = fl.describe(joined)
    assert described.classes == {"a": 25, "b": 25, "c": 25, "d": 25}
    assert described.groups == {"1": 50, "2": 50}
    assert described.lines[1].endswith("2 groups: 1, 2, of 50 each; 6 more samples are public")
    partition = fl.make_partition("natural", joined, 2)
    assert not any("groups" in note for note in split_notes(joined, partition))


def test_another_set_lies_beside_the_samples():
    other = fl.Dataset("other", images(6), np.arange(6) % 4, tuple("abcd"))
    joined = beside(DATASET, other)
    np.testing.assert_array_equal(joined.public, np.arange(100, 106))
    np.testing.assert_array_equal(joined.inputs[joined.public], other.inputs)
    np.testing.assert_array_equal(joined.labels[joined.public], other.labels)
    assert joined.public_set == PublicSet(6, True)
    np.testing.assert_array_equal(joined.inputs[:100], DATASET.inputs)
    plain = fl.make_partition("iid", DATASET, 4)
    for client, before in zip(fl.make_partition("iid", joined, 4), plain):
        for indices, expected in zip(client, before):
            np.testing.assert_array_equal(indices, expected)


def test_of_another_task_the_samples_alone_count():
    sets = (fl.regression_dataset("toy", np.eye(8, 3) + i, np.arange(8.0)) for i in range(2))
    dataset, other = sets
    joined = beside(dataset, other)
    assert joined.public_set == PublicSet(8, False)
    np.testing.assert_array_equal(joined.targets[:8], dataset.targets)
    assert not joined.targets[joined.public].any()


def test_labels_of_other_classes_are_hidden(caplog):
    foreign = fl.Dataset("foreign", images(6), np.arange(6), tuple("uvwxyz"))
    joined = beside(DATASET, foreign)
    assert joined.public_set == PublicSet(6, False)
    assert not joined.labels[joined.public].any() and joined.class_names == DATASET.class_names
    assert not caplog.messages
    alike = fl.Dataset("alike", images(6), np.arange(6) % 3, tuple("abC"))
    assert not beside(DATASET, alike).public_is_labelled
    assert "its labels are hidden, as its classes are a, b, C, not a, b, c, d" in caplog.text


def test_classes_in_another_order_are_found_by_name():
    other = fl.Dataset("other", images(6), np.arange(6) % 4, tuple("dcba"))
    joined = beside(DATASET, other)
    assert joined.labels[joined.public].tolist() == [3, 2, 1, 0, 3, 2] and joined.public_is_labelled


def table(name: str, columns: str, **fields) -> fl.Dataset:
    rows = RNG.normal(size=(6, len(columns)))
    record = Reading(features=tuple(columns), **fields)
    return fl.Dataset(name, rows, np.arange(6) % 2, ("a", "b"), reading=record)


def test_columns_are_found_by_name_and_others_are_refused():
    mine, other = table("mine", "uvw"), table("other", "wuv")
    joined = beside(mine, other)
    np.testing.assert_array_equal(joined.inputs[joined.public], other.inputs[:, [1, 2, 0]])
    with pytest.raises(ValueError, match="only one of the two has w, z"):
        beside(mine, table("other", "uvz"))


def test_ids_of_other_tokens_are_refused():
    def texts(word: str, first: int) -> fl.Dataset:
        record = Reading(features=("text",), token_texts=("", "?", word))
        fields = {"vocabulary": 3, "reading": record}
        return fl.Dataset("t", np.array([[first, 1], [first, 2]]), [0, 1], ("a", "b"), **fields)

    assert beside(texts("cat", 0), texts("cat", 1)).public_is_labelled
    with pytest.raises(ValueError, match="token ids mean other tokens"):
        beside(texts("cat", 0), texts("dog", 1))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (images(6, side=5), r"whose samples are uint8 \[5, 5, 1\]; those of own are uint8 \[4, 4"),
        (np.repeat(images(6), 3, -1), r"whose samples are uint8 \[4, 4, 3\]"),
        (RNG.random((6, 4, 4, 1), np.float32), r"whose samples are float32 \[4, 4, 1\]"),
    ],
)
def test_samples_of_another_kind_are_refused(inputs, message):
    other = fl.Dataset("other", inputs, np.arange(6) % 4, tuple("abcd"))
    with pytest.raises(ValueError, match=message):
        beside(DATASET, other)


def test_a_set_that_holds_the_clients_samples_is_refused():
    """Whatever its name is: clients may test on them."""
    both = np.concatenate([images(3), DATASET.inputs[40:42]])
    other = fl.Dataset("larger", both, np.arange(5) % 4, tuple("abcd"))
    with pytest.raises(ValueError, match="'larger', of which 2 samples are also in own,"):
        beside(DATASET, other)


def test_clients_that_come_with_their_samples_give_none_away():
    clients = (fl.ClientIndices(np.arange(50), NONE, np.arange(50, 100)),)
    dealt = dataclasses.replace(DATASET, clients=clients)
    with pytest.raises(ValueError, match="the clients of own come with their samples"):
        held_out(dealt, 0.1, seed=1)


def test_a_subset_keeps_its_public_samples():
    dataset = subset(held_out(DATASET, 0.5, seed=1), 40, seed=2)
    public = dataset.public
    assert 0 < len(public) < 40 and public.max() < 40


def test_shares_are_read():
    assert hold_out_share("hold_out:0.25") == 0.25 and hold_out_share("cifar100") is None


@pytest.mark.parametrize("text", ["hold_out:0", "hold_out:1", "hold_out:", "hold_out:many"])
def test_shares_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=f"dataset.public is '{text}'; after hold_out: it must"):
        hold_out_share(text)


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_a_share_leaves_samples_on_both_sides(share):
    with pytest.raises(ValueError, match="it must leave a sample on each side"):
        held_out(DATASET, share, seed=1)
