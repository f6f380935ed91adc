"""SVHN, from tiny files in the publisher's format."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import load_error, pixels, refused, sets


def _write_svhn(folder: Path) -> np.ndarray:
    images = pixels(5, 32, 32, 3)
    for split, part, labels in (("train", slice(3), [10, 1, 9]), ("test", slice(3, 5), [2, 10])):
        arrays = {"X": images[part].transpose(1, 2, 3, 0), "y": np.array(labels, np.uint8)[:, None]}
        savemat(folder / f"{split}_32x32.mat", arrays, do_compression=True)
    return images


def test_svhn(tmp_path):
    images = _write_svhn(tmp_path)
    dataset = load_dataset("svhn", tmp_path)
    np.testing.assert_array_equal(dataset.inputs, images)
    assert dataset.labels.tolist() == [0, 1, 9, 2, 0] and dataset.inputs.flags.c_contiguous
    assert sets(dataset) == {"train": [0, 1, 2], "test": [3, 4]}


def test_svhn_without_scipy(tmp_path, monkeypatch):
    _write_svhn(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    refused("needs scipy; run pip install 'fedjax_ht[run]'", "svhn", tmp_path, kind=ImportError)


@pytest.mark.parametrize("keep", [0, 100, 2000])
def test_damaged_svhn(tmp_path, keep):
    _write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:keep])
    assert load_error(ValueError, "svhn", tmp_path).startswith(str(path))


def test_svhn_of_other_arrays(tmp_path):
    _write_svhn(tmp_path)
    savemat(tmp_path / "test_32x32.mat", {"digits": np.zeros(3)})
    refused("such as X", "svhn", tmp_path)
    savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))})
    refused("not uint8", "svhn", tmp_path)


@pytest.mark.parametrize("label", [11, 17, 255, -1, -1.5, 3.9, np.nan, np.inf])
def test_svhn_of_labels_that_are_no_digits(tmp_path, label):
    _write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [label]])})
    message = load_error(ValueError, "svhn", tmp_path)
    assert message.startswith(
        f"{path}: y has the label {label:g}; labels are whole numbers from 1 to 10"
    )


def test_svhn_of_labels_from_0(tmp_path):
    _write_svhn(tmp_path)
    savemat(
        tmp_path / "test_32x32.mat",
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[0.0], [9.0]])},
    )
    assert load_dataset("svhn", tmp_path).labels.tolist() == [0, 1, 9, 0, 9]
