"""Targets of tasks other than classification, in tables and arrays."""

import numpy as np
import pytest
from pyarrow import csv

import fedjax_ht as fl
from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import refused, write

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)).round(3)
PRICES = (100 + 20 * X[:, 0]).round(2)
MARKS = (X > 0).astype(int)


@pytest.fixture
def table(tmp_path):
    rows = ["a,b,price,rent,hot,wide"]
    for x, price, marks in zip(X, PRICES, MARKS):
        rows.append(",".join(map(str, [*x, price, price / 10, *marks])))
    write(tmp_path / "homes.csv", "\n".join(rows) + "\n")
    return tmp_path / "homes.csv"


def test_numbers_to_predict(table):
    leave = ("-rent", "-hot", "-wide")
    dataset = load_dataset(f"csv:{table}:price", task="regression", features=leave)
    np.testing.assert_allclose(dataset.targets, PRICES[:, None], rtol=1e-6)
    assert dataset.task.name == "regression" and dataset.num_classes == 10
    assert fl.describe(dataset).features == ("a", "b")
    assert "10 groups of targets by column 'price'" in fl.describe(dataset).lines[1]
    both = load_dataset(f"csv:{table}:price,rent", task="regression", features=leave[1:])
    np.testing.assert_allclose(both.targets, np.stack([PRICES, PRICES / 10], 1), rtol=1e-6)
    options = {"features": ("a", "b"), "task": "regression"}
    frame = fl.Dataset.from_pandas(csv.read_csv(table), "price", **options)
    np.testing.assert_allclose(frame.targets, dataset.targets, rtol=1e-6)


def test_several_labels(table, tmp_path):
    features = ("a", "b")
    dataset = load_dataset(f"csv:{table}:hot,wide", task="multi-label", features=features)
    np.testing.assert_array_equal(dataset.targets, MARKS)
    assert dataset.class_names == ("hot", "wide", "no label")
    np.savez(tmp_path / "x.npz", inputs=X, labels=MARKS, class_names=["hot", "wide"])
    arrays = load_dataset(f"npz:{tmp_path}/x.npz", task="multi-label")
    np.testing.assert_array_equal(arrays.targets, MARKS)
    assert arrays.class_names == dataset.class_names
    np.savez(tmp_path / "x.npz", inputs=X, labels=MARKS[:, :1])
    one = load_dataset(f"npz:{tmp_path}/x.npz", task="multi-label")
    np.testing.assert_array_equal(one.targets, MARKS[:, :1])


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, bool])
def test_masks_are_resized_with_their_images(tmp_path, dtype):
    images = RNG.integers(0, 256, (4, 16, 16, 3), np.uint8)
    masks = np.arange(16) // 8 * np.ones((4, 16, 1), int)
    np.savez(tmp_path / "x.npz", images=images, labels=masks.astype(dtype))
    dataset = load_dataset(f"npz:{tmp_path}/x.npz", image_size=8, task="per-pixel")
    np.testing.assert_array_equal(dataset.targets, masks[:, ::2, ::2])


REFUSED = {  # column, task -> words of the line
    ("price,price", "regression"): "column 'price' is named twice",
    ("price,pries", "regression"): "unknown column 'pries'",
    ("price", "multi-label"): "0 and 1",
    ("price", "ranking"): "task is 'ranking'",
}


@pytest.mark.parametrize(("column", "task"), REFUSED)
def test_targets_that_do_not_fit(table, column, task):
    refused(REFUSED[column, task], f"csv:{table}:{column}", task=task)


def test_a_value_that_is_missing_is_named(table):
    text = table.read_text().splitlines()
    text[3] = text[3].replace(str(PRICES[2]), "nan", 1)
    table.write_text("\n".join(text))
    refused("line 4 has nan in target 'price'", f"csv:{table}:price", task="regression")


def test_sets_of_classes_alone():
    refused("the labels of har_10persons are classes", "har_10persons", task="regression")
