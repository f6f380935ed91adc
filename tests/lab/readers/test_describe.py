"""A data set says what was read; a function of a user's own may make it."""

import sys

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.data.selection import subset
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.description import describe
from tests.lab.readers.source_files import refused

LABELS = np.array([0, 1, 1, 0])


def test_all_that_a_reader_did_is_in_two_lines():
    reading = Reading(
        path="/x/t.csv",
        label="kind",
        features=("age", "dose"),
        group_names=("north", "south"),
        left_out=(LeftOut(3, "file .heic", "unsupported image format"),),
        converted=("1 image turned by its EXIF orientation",),
        warnings=("column 'kind' is used as the label",),
    )
    dataset = fl.Dataset(
        "csv:t.csv",
        np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.5]], np.float32),
        LABELS,
        ("a", "b"),
        preprocess=fl.Standardised(),
        official={"train": np.arange(3), "test": np.arange(3, 4)},
        groups=np.array([0, 0, 1, 1]),
        reading=reading,
    )
    assert fl.describe(dataset).lines == (
        "csv:t.csv from /x/t.csv: 4 rows of 2 float32, 0 to 7.5; features age, dose; each feature "
        "standardised by the training samples; 1 image turned by its EXIF orientation",
        "2 classes by column 'kind': a, b, of 2 each; official sets: train (3), test (1); "
        "2 groups: north, south, of 2 each; left out: 3 files .heic (unsupported image format)",
    )
    assert fl.describe(subset(dataset, 3, 0)).left_out == reading.left_out
    assert Reading.from_json(reading.to_json()) == reading


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        ((), {"-1": 1, "0": 2, "1": 1}),
        (("a", "a"), {"-1": 1, "a": 3}),
        (("a",), {"-1": 1, "a": 2, "1": 1}),
    ],
)
def test_groups_are_counted_by_name_and_else_by_number(names, counts):
    groups, reading = np.array([-1, 0, 0, 1]), Reading(group_names=names)
    dataset = fl.Dataset("d", np.ones((4, 3)), LABELS, ("a", "b"), groups=groups, reading=reading)
    assert fl.describe(dataset).groups == counts


def test_kinds_of_samples():
    def described(inputs, **fields):
        return fl.describe(fl.Dataset("d", inputs, LABELS, ("a", "b"), **fields))

    assert described(np.ones((4, 3), int), vocabulary=2).kind == "texts"
    assert described(np.ones((4, 3))).kind == "rows"
    assert described(np.ones((4, 3, 2))).kind == "windows"
    several = described({"x": np.ones(4), "t": np.ones((4, 2), int)})
    assert several.kind == "samples" and several.form == "2 int64 and one float64"
    images = fl.load_dataset("fashion_mnist_10k")
    assert fl.describe(fl.shifted(subset(images, 8, 0), "rotate/2", seed=1)).kind == "images"


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        ([1, 2, 1, 2], "1 of 3 classes have no samples: class a; labels run from 1 to 2, so cl"),
        ([0, 2, 0, 2], "1 of 3 classes have no samples: class b"),
        ([0, 0, 0, 0], "all 4 samples are of one class, a"),
    ],
)
def test_labels_in_memory_that_look_wrong_are_said_once(caplog, labels, line):
    dataset = fl.Dataset("mine", np.ones((4, 3)), np.array(labels), ("a", "b", "c"))
    assert caplog.messages[0].startswith(f"mine: {line}")
    caplog.clear()
    subset(dataset, 3, 0)
    assert not caplog.messages and fl.describe(dataset).warnings[0].startswith(line)


def test_images_in_memory_that_are_nearly_black_are_said(caplog):
    digits = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8) % 17
    fl.Dataset("digits", digits, LABELS, ("a", "b"))
    assert "run from 0 to 16, nearly black if 255 is white; multiply them by 15" in caplog.text


DATA = """
import numpy as np
import fedjax_ht as fl

calls = []

def dataset():
    calls.append(1)
    x = np.arange(40, dtype=np.float32).reshape(20, 2) / 40
    return fl.Dataset("measured", x, np.arange(20) % 2, ("no", "yes"))

def frame():
    return np.zeros((4, 2))

def nothing():
    return fl.Dataset("nothing", np.zeros((0, 2)), np.zeros(0, int), ("no", "yes"))

def partly(path):
    return None
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data_of_a_user.py").write_text(DATA)
    yield tmp_path
    sys.modules.pop("data_of_a_user", None)


def test_the_set_is_that_of_the_function(folder):
    dataset = load_dataset("data_of_a_user:dataset")
    assert dataset.name == "measured" and dataset.inputs.shape == (20, 2)
    first, _ = describe(dataset).lines
    assert first.startswith(f"measured from {folder / 'data_of_a_user.py'}: 20 rows of 2 float32")
    assert load_dataset("data_of_a_user:dataset") is dataset  # a search builds a run often
    assert len(sys.modules["data_of_a_user"].calls) == 1


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("frame", {}, "returns a numpy.ndarray; it must return an fl.Dataset"),
        ("nothing", {}, "'data_of_a_user:nothing' raises ValueError: nothing has no samples"),
        ("partly", {}, "'data_of_a_user:partly' raises TypeError: partly() missing 1 required"),
        ("dataset", {"image_size": 8}, "image_size is 8, but data_of_a_user:dataset makes its"),
        ("dataset", {"label": "y"}, "label is 'y', but data_of_a_user:dataset makes its own"),
    ],
)
def test_mistakes_are_one_line(folder, name, options, line):
    refused(line, f"data_of_a_user:{name}", **options)


def test_a_prefix_is_meant_where_there_is_no_such_module(folder):
    with pytest.raises(ValueError, match=r"no module cvs in .*; did you mean 'csv:PATH'\? There"):
        load_dataset("cvs:patients")


def test_a_file_of_a_prefix_comes_before_a_module(folder):
    (folder / "npz.py").write_text(DATA)
    np.savez(folder / "dataset", images=np.zeros((4, 8, 8), np.uint8), labels=[0, 1, 0, 1])
    with pytest.raises(FileNotFoundError):  # PATH is "dataset", and the file is dataset.npz
        load_dataset("npz:dataset")
