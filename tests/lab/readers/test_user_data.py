"""A data set that a function of a user's own returns, by "module:function"."""

import sys

import numpy as np
import pytest

from fedjax_ht.lab.config.base import base_config
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.description import describe
from fedjax_ht.lab.runs.plan import settle

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

def broken():
    raise FileNotFoundError("no measurements.parquet")
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
        ("nothing", {}, "'data_of_a_user:nothing' returns a set without samples"),
        ("partly", {}, "'data_of_a_user:partly' raises TypeError: partly() missing 1 required"),
        ("broken", {}, "'data_of_a_user:broken' raises FileNotFoundError: no measurements.parquet"),
        ("datset", {}, "has no function datset; did you mean 'dataset'?"),
        ("dataset", {"image_size": 8}, "image_size is 8, but data_of_a_user:dataset makes its"),
        ("dataset", {"label": "y"}, "label is 'y', but data_of_a_user:dataset makes its samples"),
    ],
)
def test_mistakes_are_one_line(folder, name, options, line):
    with pytest.raises(ValueError) as raised:
        load_dataset(f"data_of_a_user:{name}", **options)
    assert line in str(raised.value) and "\n" not in str(raised.value)


def test_a_prefix_is_meant_where_there_is_no_such_module(folder):
    with pytest.raises(ValueError, match=r"no module cvs in .*; did you mean 'csv:PATH'\? There"):
        load_dataset("cvs:patients")


def test_a_file_of_a_prefix_comes_before_a_module(folder):
    (folder / "npz.py").write_text(DATA)
    np.savez(folder / "dataset", images=np.zeros((4, 8, 8), np.uint8), labels=[0, 1, 0, 1])
    with pytest.raises(FileNotFoundError):  # PATH is "dataset", and the file is dataset.npz
        load_dataset("npz:dataset")


def test_code_is_not_imported_without_trust(folder):
    config = base_config()
    config.dataset.name = "data_of_a_user:dataset"
    with pytest.raises(ValueError, match=r"the config names data_of_a_user:dataset, which .*trust"):
        settle(config, trust=False)
    assert "data_of_a_user" not in sys.modules
