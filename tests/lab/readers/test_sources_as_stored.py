"""Arrays that are no images, from .npz files."""

from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.core.inputs import AsStored, Pixels
from fedjax_ht.data.partition import make_partition
from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import load_error, pixels, refused

HAR = Path(__file__).parents[3] / "data" / "har_windows.npz"
RNG = np.random.default_rng(0)
WINDOWS = 3 * RNG.normal(size=(4, 16, 9))
LABELS = np.array([0, 2, 1, 2])

AS_STORED = {  # key, what is stored, dtype that is kept
    "windows": ("x", WINDOWS, np.float32),
    "half windows": ("x", WINDOWS.astype(np.float16), np.float16),
    "big endian": ("x", WINDOWS.astype(">f4"), np.float32),
    "units and channels": ("x", WINDOWS[:, :, None].repeat(2, 2) / 9, np.float32),
    "rows": ("x", WINDOWS[:, 0] / 9, np.float32),
    "tokens": ("x", RNG.integers(0, 9, (4, 7)), np.int32),
    "small tokens": ("x", RNG.integers(0, 9, (4, 7), np.uint16), np.uint16),
    "grey floats as they are": ("inputs", WINDOWS / 20, np.float32),
    "bytes as they are": ("inputs", pixels(4, 5, 5, 3), np.uint8),
    "integers as they are": ("inputs", RNG.integers(-9, 9, (4, 5, 5)), np.int32),
}


@pytest.mark.parametrize("kind", AS_STORED)
def test_arrays_that_are_no_images_are_kept_as_stored(tmp_path, caplog, kind):
    key, stored, dtype = AS_STORED[kind]
    np.savez(tmp_path / "own.npz", **{key: stored, "labels" if key == "inputs" else "y": LABELS})
    dataset = load_dataset("npz:own.npz", tmp_path)
    assert dataset.inputs.dtype == dtype and dataset.inputs.dtype.isnative
    assert isinstance(dataset.preprocess, AsStored)
    np.testing.assert_array_equal(dataset.inputs, stored.astype(dtype))
    assert dataset.num_classes == 3 and dataset.groups is None and not caplog.messages


def test_small_grey_floats_are_images_and_one_line_says_so(tmp_path, caplog):
    images = pixels(4, 6, 5)
    np.savez(tmp_path / "own.npz", x=images / 255, y=LABELS)
    dataset = load_dataset("npz:own.npz", tmp_path)
    np.testing.assert_array_equal(dataset.inputs[..., 0], images)
    assert isinstance(dataset.preprocess, Pixels)
    assert caplog.messages == [
        "npz:own.npz: x is float64 (4, 6, 5) within -1 to 1: grey images. Call it inputs if it is none"
    ]


@pytest.mark.parametrize(
    "owners", [np.array([7, 7, 2, 3], np.int8), np.array(["d", "d", "a", "b"])]
)
@pytest.mark.parametrize("key", ["group", "person"])
def test_groups_of_samples(tmp_path, owners, key):
    np.savez(
        tmp_path / "own.npz", x=WINDOWS, y=LABELS, class_names=["x", "y", "z"], **{key: owners}
    )
    dataset = load_dataset("npz:own.npz", tmp_path)
    expected = [7, 7, 2, 3] if owners.dtype.kind == "i" else [2, 2, 0, 1]
    assert dataset.groups.tolist() == expected and dataset.class_names == ("x", "y", "z")
    two = {
        "x_train": WINDOWS[:3],
        "y_train": LABELS[:3],
        "x_test": WINDOWS[3:],
        "y_test": LABELS[3:],
    }
    np.savez(tmp_path / "two.npz", **two, **{f"{key}_train": owners[:3], f"{key}_test": owners[3:]})
    dataset = load_dataset("npz:two.npz", tmp_path)
    assert dataset.groups.tolist() == expected and dataset.official["test"].tolist() == [3]


def test_official_sets_by_a_mask(tmp_path):
    np.savez(tmp_path / "own.npz", x=WINDOWS, y=LABELS, official_test=[False, True, False, True])
    official = load_dataset("npz:own.npz", tmp_path).official
    assert {k: v.tolist() for k, v in official.items()} == {"train": [0, 2], "test": [1, 3]}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": WINDOWS * np.inf}, "x has values that are NaN, infinite"),
        ({"x": 1e300 * WINDOWS}, "beyond float32"),
        ({"x": LABELS}, "images of shape (4,)"),
        ({"x": RNG.integers(0, 9, (4, 5, 5))}, "int64 images"),
        ({"x": np.full((4, 2), 1 << 40)}, "x runs from 1099511627776"),
        ({"x": WINDOWS > 0}, "x is bool (4, 16, 9); call it images"),
        ({"inputs": LABELS}, "inputs is int64 (4,); samples are"),
        ({"inputs": WINDOWS > 0}, "inputs is bool"),
        ({"x": WINDOWS, "group": LABELS / 2}, "group of float64 (4,); they must be integers or"),
        ({"x": WINDOWS, "group": LABELS[:2]}, "groups are int32 (2,)"),
        ({"x": WINDOWS, "class_names": ["a"]}, "labels run from 0 to 2, but there are 1 class"),
        ({"x": WINDOWS, "class_names": [1, 2, 3]}, "class_names is int64 (3,), not text"),
        ({"x": WINDOWS, "official_test": [0, 1, 0, 1]}, "official_test is int64 (4,), not bool"),
    ],
)
def test_wrong_arrays_are_one_line(tmp_path, arrays, reason):
    np.savez(tmp_path / "own.npz", **({"y": LABELS} | arrays))
    message = load_error(ValueError, "npz:own.npz", tmp_path)
    assert message.startswith(str(tmp_path / "own.npz")) and reason in message
    assert "or inputs=... for what is no image" in message


def test_no_size_of_what_is_no_image(tmp_path):
    np.savez(tmp_path / "own.npz", x=WINDOWS, y=LABELS)
    refused("image_size is 8, but npz:own.npz has no images", "npz:own.npz", tmp_path, 8)


@pytest.mark.skipif(not HAR.exists(), reason="needs data/har_windows.npz")
def test_the_windows_of_uci_har():
    dataset = load_dataset(f"npz:{HAR}")
    assert dataset.inputs.shape == (3350, 128, 9) and dataset.inputs.dtype == np.float16
    assert dataset.class_names[3] == "sitting" and len(np.unique(dataset.groups)) == 30
    assert not set(dataset.groups[dataset.official["train"]]) & set(
        dataset.groups[dataset.official["test"]]
    )
    clients = make_partition("natural", dataset, 30, tested="last")
    assert all(len(np.unique(dataset.groups[np.concatenate(client)])) == 1 for client in clients)
