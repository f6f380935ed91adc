"""Arrays as users have them are taken where their meaning is plain, else refused in one line."""

import dataclasses
from collections import UserList

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import fedjax_ht as fl

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 9.0]]
LABELS, NAMES = [0, 1, 1, 0], ("a", "b")


Column = UserList  # as a column of Hugging Face's datasets: a sequence that is no list


class Frame:
    """A frame as of pandas, with `to_numpy`."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def to_numpy(self):
        return self.values


FORMS = {
    "lists": lambda values: values,
    "tuples": lambda values: tuple(map(tuple, values)) if isinstance(values[0], list) else values,
    "rows": lambda values: list(map(np.array, values)),
    "jax": jnp.asarray,
    "column": Column,
    "frame": Frame,
}


@pytest.mark.parametrize("form", FORMS)
def test_array_likes_are_taken(form):
    dataset = fl.Dataset("d", FORMS[form](ROWS), FORMS[form](LABELS), NAMES)
    np.testing.assert_array_equal(dataset.inputs, ROWS)
    assert isinstance(dataset.inputs, np.ndarray) and dataset.labels.tolist() == LABELS
    assert not dataset.inputs.flags.writeable and not dataset.labels.flags.writeable
    assert dataset.input_shape == (2,)


def test_an_array_is_not_copied_and_a_tree_stays_one():
    rows = np.array(ROWS)
    assert np.shares_memory(fl.Dataset("d", rows, LABELS, NAMES).inputs, rows)
    rows[0] = 9  # the caller's array stays writable
    pair = fl.Dataset("d", [rows, Column([[1], [2], [3], [4]])], LABELS, NAMES).inputs
    assert [x.shape for x in pair] == [(4, 2), (4, 1)]
    assert fl.Dataset("d", {"x": Frame(ROWS)}, LABELS, NAMES).inputs["x"].shape == (4, 2)


def test_images_of_pillow_are_taken():
    images = [Image.fromarray(np.full((5, 4, 3), 60 * i, np.uint8)) for i in range(4)]
    dataset = fl.Dataset("d", Column(images), LABELS, NAMES)
    assert dataset.input_shape == (5, 4, 3) and dataset.inputs.dtype == np.uint8


def test_pandas_is_taken():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=["x", "y"])
    dataset = fl.Dataset(
        "d", frame, pandas.Series(LABELS), NAMES, groups=pandas.Series(list("abba"))
    )
    np.testing.assert_array_equal(dataset.inputs, ROWS)
    assert dataset.groups.tolist() == [0, 1, 1, 0]
    with pytest.raises(ValueError, match="inputs are object; they must be"):
        fl.Dataset("d", frame.assign(z=list("abcd")), LABELS, NAMES)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[1, 2], [3]] * 2, r"cannot be converted to an array .* give a NumPy array of samples of"),
        ({1, 2}, "inputs is a set; give a NumPy array"),
        ([], "inputs are float64|cannot be converted|0 samples but labels"),
        ({}, r"inputs are empty; give an array \[N, ...\]"),
        (np.array(ROWS) > 2, r"inputs are bool; .* give inputs.astype\(np.float32\), or np.uint8"),
        ([["x", "y"]] * 4, "inputs are <U1; they must be integers or floats"),
        (np.full((4, 2), 1 << 40), "inputs runs from 1099511627776 to 1099511627776, beyond int32"),
        (np.full((4, 2), 1 << 63, np.uint64), "beyond int32"),
        (np.rec.array([(1, 2.0)] * 4), r"inputs are .*f1.*; they must be integers or floats"),
        (np.full((4, 128, 9), 7, np.uint8), r"uint8 \[4, 128, 9\] are neither images"),
    ],
)
def test_inputs_that_a_device_would_change_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        fl.Dataset("d", inputs, LABELS, NAMES)


def test_integers_that_become_images_are_said(caplog):
    windows = np.arange(4 * 20 * 9, dtype=np.int16).reshape(4, 20, 9) % 200
    dataset = fl.Dataset("d", windows, LABELS, NAMES)
    assert dataset.inputs.dtype == np.uint8
    change = "int16 images from 0 to 199 kept as bytes"
    assert fl.describe(dataset).converted == (change,)
    assert caplog.messages == [f"d: {change}; give preprocess=fl.AsStored() if they are not images"]
    caplog.clear()
    assert fl.Dataset("d", windows, LABELS, NAMES, fl.AsStored()).inputs.dtype == np.int16
    assert fl.describe(dataclasses.replace(dataset, name="e")).converted == (change,)
    assert not caplog.messages


def test_grey_images_of_bytes_need_no_axis_of_channels():
    digits = np.full((4, 28, 28), 200, np.uint8)
    dataset = fl.Dataset("d", digits, LABELS, NAMES)
    assert dataset.input_shape == (28, 28, 1) and isinstance(dataset.preprocess, fl.Pixels)
    assert np.shares_memory(dataset.inputs, digits)
    pixels = digits.astype(int).tolist()  # as lists of pixels become
    assert fl.Dataset("d", pixels, LABELS, NAMES).inputs.dtype == np.uint8
    colours = np.repeat(digits[..., None], 3, -1).astype(np.int32)
    assert isinstance(fl.Dataset("d", colours, LABELS, NAMES).preprocess, fl.Pixels)
    for other in (digits.astype(int) + 99, digits.astype(int) // 9, digits.astype(int)[:, :4]):
        assert isinstance(fl.Dataset("d", other, LABELS, NAMES).preprocess, fl.AsStored)
    flat = fl.Dataset("d", digits, LABELS, NAMES, preprocess=lambda x: x / 255)
    assert flat.input_shape == (28, 28)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.eye(2)[[0, 1, 1, 0]], r"shape \(4, 2\); .* per sample, \[N\]; labels.argmax"),
        (np.full((4, 2), 0.5), r"per sample, \[N\]$"),
        ([0, 1, 1 << 40, 0], r"labels run from 0 to 1.09951e\+12; they must be from 0 to 99,999"),
        (np.array([0, 1, 1 << 63, 0], np.uint64), "they must be from 0 to 99,999"),
        ([0, 1, -1, 0], "labels run from -1 to 1; .*; -1 often marks a missing label"),
        ([0, 1, 0.5, 0], "labels have values such as 0.5"),
        ([0.0, 1, np.nan, 0], "values such as nan"),
        ({0, 1}, "labels is a set; give a NumPy array"),
        (["a", "b", "b", "a"], "labels are <U1; they must be integers from 0: .*np.unique"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        fl.Dataset("d", ROWS, labels, NAMES)


MASKED = np.ma.array([0, 1, 1, 0], mask=[0, 0, 1, 0])


@pytest.mark.parametrize(
    "given",
    [
        {"labels": MASKED},
        {"labels": list(MASKED)},
        {"inputs": np.ma.array(ROWS, mask=np.array(ROWS) > 8)},
        {"inputs": [np.ma.array(row, mask=np.array(row) > 8) for row in ROWS]},
        {"inputs": {"x": Frame(ROWS), "y": MASKED}},
        {"groups": MASKED},
        {"official": {"train": np.ma.array([0, 1], mask=[0, 1]), "test": [2]}},
    ],
)
@pytest.mark.filterwarnings("ignore:Warning. converting a masked element")
def test_masked_values_are_refused(given):
    with pytest.raises(ValueError, match=r"has 1 masked values of .*values.filled\(0\), or drop"):
        fl.Dataset("d", **{"inputs": ROWS, "labels": LABELS, "class_names": NAMES} | given)


def test_labels_of_other_forms_are_taken():
    for labels in ([[0], [1], [1], [0]], [0.0, 1.0, 1.0, 0.0], [False, True, True, False]):
        assert fl.Dataset("d", ROWS, labels, NAMES).labels.tolist() == LABELS


def test_classes_without_names_are_their_numbers():
    assert fl.Dataset("d", ROWS, LABELS).class_names == ("0", "1")
    with pytest.raises(ValueError, match=r"d: labels run to 4 in 4 samples; number"):
        fl.Dataset("d", ROWS, [0, 1, 4, 0])


def test_groups_of_text_are_numbered_and_large_numbers_refused():
    groups = fl.Dataset("d", ROWS, LABELS, NAMES, groups=["u", "t", "t", "u"]).groups
    assert groups.tolist() == [1, 0, 0, 1]
    with pytest.raises(ValueError, match="d: groups runs from 0 to 4294967296, beyond int32"):
        fl.Dataset("d", ROWS, LABELS, NAMES, groups=np.array([0, 1, 1 << 32, 0]))
