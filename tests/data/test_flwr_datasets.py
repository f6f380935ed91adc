"""Partitioners of flwr-datasets split a data set as they are."""

import sys
import types

import numpy as np
import pytest

import fedjax_ht as fl


class Halves:
    """A partitioner as flwr-datasets has them: two clients, the even and the odd rows."""

    num_partitions = 2

    def __init__(self, column: str = "label", rows: int = 2):
        self.column, self.rows, self.dataset = column, rows, None

    def is_dataset_assigned(self) -> bool:
        return self.dataset is not None

    def load_partition(self, client: int) -> dict:
        assert len(self.dataset[self.column]) == len(self.dataset["place"])
        kept = len(self.dataset["place"]) // 2 if client < self.rows else 0
        return {"place": self.dataset["place"][client::2][:kept]}


@pytest.fixture
def frames(monkeypatch):
    """Stands in for the package `datasets`: a data set is a dict of its columns."""
    module = types.ModuleType("datasets")
    module.Dataset = types.SimpleNamespace(from_dict=dict)
    monkeypatch.setitem(sys.modules, "datasets", module)


@pytest.fixture(scope="module")
def dataset():
    labels = np.arange(40) % 3
    official = {"train": np.arange(10, 40), "test": np.arange(10)}
    return fl.Dataset(
        "toy", np.zeros((40, 6), np.float32), labels, ("a", "b", "c"), official=official
    )


def test_clients_have_the_rows_that_the_partitioner_gives(frames, dataset):
    partition = fl.flwr_partition(Halves(), dataset, val_share=0.25, train_share=0.5)
    for client, indices in enumerate(partition):
        assert sorted(np.concatenate(indices)) == list(range(client, 40, 2))
        assert len(indices.train) == 10 and len(indices.val) == 5
    again = fl.flwr_partition(Halves(), dataset, val_share=0.25, train_share=0.5)
    assert all(np.array_equal(*pair) for pair in zip(partition[0], again[0], strict=True))


def test_official_sets_plan_the_training_set(frames, dataset):
    partition = fl.flwr_partition(Halves(), dataset, sets="official")
    assert sorted(partition[0].train) == list(range(10, 40, 2))
    assert sorted(np.concatenate([client.test for client in partition])) == list(range(10))


def test_what_cannot_be_split_is_one_line(frames, dataset):
    with pytest.raises(ValueError, match="Halves cannot split toy, whose columns are label"):
        fl.flwr_partition(Halves("group"), dataset)
    with pytest.raises(ValueError, match="leaves client 1 of 2 without samples"):
        fl.flwr_partition(Halves(rows=1), dataset)
    used = Halves()
    fl.flwr_partition(used, dataset)
    with pytest.raises(ValueError, match="the Halves has data already, and takes them once"):
        fl.flwr_partition(used, dataset)
    with pytest.raises(ValueError, match="partitioner is a dict; it must be one of flwr-datasets"):
        fl.flwr_partition({}, dataset)
