"""Sets in formats of other libraries: .npz files, client folders, tensorflow-datasets."""

import functools
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import load_error, pixels, refused, sets

# .npz


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (lambda b: b[..., 0], lambda b: b[..., :1]),
        (lambda b: b[..., :1], lambda b: b[..., :1]),
        (lambda b: b, lambda b: b),
        (lambda b: b.transpose(0, 3, 1, 2), lambda b: b),
        (lambda b: b[..., :1].transpose(0, 3, 1, 2), lambda b: b[..., :1]),
        (lambda b: b / 255, lambda b: b),
        (lambda b: (b / 255).astype(np.float32), lambda b: b),
        (lambda b: ((b / 255 - 0.5) / 0.5).astype(np.float32), lambda b: b),
    ],
)
@pytest.mark.parametrize("keys", [("images", "labels"), ("x", "y")])
def test_npz(tmp_path, stored, expected, keys):
    images = pixels(4, 6, 5, 3)
    np.savez(tmp_path / "own.npz", **{keys[0]: stored(images), keys[1]: np.array([0, 2, 1, 2])})
    dataset = load_dataset("npz:own.npz", tmp_path)
    np.testing.assert_array_equal(dataset.inputs, expected(images))
    assert dataset.labels.tolist() == [0, 2, 1, 2] and dataset.class_names == ("0", "1", "2")
    assert dataset.name == "npz:own.npz" and dataset.official == {}
    assert dataset.inputs.flags.c_contiguous


def test_npz_of_train_and_test(tmp_path):
    x = pixels(5, 4, 4)
    arrays = {"x_train": x[:3], "y_train": [[0], [1], [0]], "x_test": x[3:], "y_test": [[1], [1]]}
    np.savez_compressed(tmp_path / "own.npz", **arrays)
    dataset = load_dataset(f"npz:{tmp_path}/own.npz")
    np.testing.assert_array_equal(dataset.inputs[..., 0], x)
    assert dataset.labels.tolist() == [0, 1, 0, 1, 1]
    assert sets(dataset) == {"train": [0, 1, 2], "test": [3, 4]}
    assert load_dataset(f"npz:{tmp_path}/own.npz", image_size=2).inputs.shape == (5, 2, 2, 1)


BYTES = np.zeros((2, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"images": BYTES.astype(int), "labels": [0, 1]}, "int64 images"),
        ({"images": BYTES + 255.5, "labels": [0, 1]}, "from 255.5 to 255.5"),
        ({"images": BYTES - 1.5, "labels": [0, 1]}, "from -1.5"),
        ({"images": np.full((2, 4, 4, 1), 16.0), "labels": [0, 1]}, "divide by the maximum"),
        ({"images": BYTES * np.nan, "labels": [0, 1]}, "NaN"),
        ({"images": np.zeros((2, 4, 4, 2), np.uint8), "labels": [0, 1]}, "(2, 4, 4, 2)"),
        ({"images": BYTES[:, :0, :0], "labels": [0, 1]}, "a sample is [0, 0, 1], an array"),
        ({"x": BYTES[:, :0], "y": [0, 1]}, "a sample is [0, 4, 1], an array without any number"),
        ({"inputs": np.zeros((2, 0), np.float32), "labels": [0, 1]}, "a sample is [0], an array"),
        ({"images": BYTES, "labels": [0.5, 1.0]}, "labels have values such as 0.5"),
        ({"images": BYTES, "labels": [0, -1]}, "labels run from -1"),
        ({"images": BYTES, "labels": [0, 1, 2]}, "2 samples but labels of shape (3,)"),
        ({"images": BYTES, "labels": 3}, "2 samples but labels of shape ()"),
        ({"images": BYTES, "names": [0, 1]}, "its arrays are images, names"),
        ({"images": np.array([{}, {}]), "labels": [0, 1]}, "pickle"),
    ],
)
def test_npz_of_something_else(tmp_path, arrays, reason):
    np.savez(tmp_path / "own.npz", **arrays)
    message = load_error(ValueError, "npz:own.npz", tmp_path)
    assert message.startswith(str(tmp_path / "own.npz")) and reason in message


def write_jpegs(path: Path, sizes=(4, 4, 4)) -> None:
    files = []
    for colour, size in zip(("red", "green", "blue"), sizes):
        buffer = io.BytesIO()
        Image.new("RGB", (size, size), colour).save(buffer, "jpeg")
        files.append(np.frombuffer(buffer.getvalue(), np.uint8))
    offset = np.cumsum([0, *map(len, files)])
    np.savez(
        path,
        jpeg=np.concatenate(files),
        offset=offset,
        label=np.int16([2, 0, 2]),
        wnid=["x", "y", "z"],
    )


def test_npz_of_jpeg_files(tmp_path):
    write_jpegs(tmp_path / "own.npz")
    dataset = load_dataset("npz:own.npz", tmp_path)
    assert dataset.class_names == ("x", "y", "z") and dataset.labels.tolist() == [2, 0, 2]
    assert dataset.inputs.shape == (3, 4, 4, 3) and dataset.official == {}
    assert dataset.inputs[2, 1, 1] == pytest.approx([0, 0, 255], abs=3)
    write_jpegs(tmp_path / "mixed.npz", (4, 5, 4))
    refused("of more than one size", "npz:mixed.npz", tmp_path)
    np.savez(tmp_path / "part.npz", jpeg=np.zeros(3, np.uint8))
    refused("no entry label, offset, wnid", "npz:part.npz", tmp_path)


def test_no_npz(tmp_path):
    refused("own.npz", "npz:own.npz", tmp_path, kind=FileNotFoundError)
    for content in (b"", b"no zip", b"PK\x03\x04 damaged"):
        (tmp_path / "own.npz").write_bytes(content)
        assert load_error(ValueError, "npz:own.npz", tmp_path).startswith(str(tmp_path / "own.npz"))
    np.save(tmp_path / "own.npy", BYTES)
    refused("single array", "npz:own.npy", tmp_path)


# Client folders


def _write_clients(
    root: Path, counts=((3, 1), (0, 2)), channels: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    total = sum(map(sum, counts))
    images, labels, start = pixels(total, channels, 4, 4), np.arange(total) % 3, 0
    x = ((images.astype(np.float32) / 255) - 0.5) / 0.5
    for client, both in enumerate(counts):
        for split, count in zip(("train", "test"), both):
            part = slice(start, start + count)
            (root / split).mkdir(parents=True, exist_ok=True)
            np.savez_compressed(
                root / split / f"{client}.npz", data={"x": x[part], "y": labels[part]}
            )
            start += count
    (root / "config.json").write_text(json.dumps({"num_clients": len(counts), "num_classes": 4}))
    return images.transpose(0, 2, 3, 1), labels


@pytest.mark.parametrize("channels", [1, 3])
def test_client_folders(tmp_path, channels):
    images, labels = _write_clients(tmp_path / "made", channels=channels)
    dataset = load_dataset("client_folders:made", tmp_path)
    np.testing.assert_array_equal(dataset.inputs, images)
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.num_classes == 4 and dataset.official == {} and dataset.inputs.flags.c_contiguous
    got = [[part.tolist() for part in client] for client in dataset.clients]
    assert got == [[[0, 1, 2], [], [3]], [[], [], [4, 5]]]
    assert all(part.dtype == np.int64 for client in dataset.clients for part in client)


class _Touch:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return functools.partial(os.system, f"touch {self.target}"), ()


def test_client_folders_run_nothing(tmp_path):
    _write_clients(tmp_path)
    target = tmp_path / "written"
    np.savez(tmp_path / "test/0.npz", data=np.array({"x": _Touch(target)}, dtype=object))
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "test/0.npz")) and "functools.partial" in message
    assert not target.exists()


GOOD = {"x": np.zeros((2, 1, 4, 4), np.float32), "y": np.array([0, 1])}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"data": GOOD | {"x": GOOD["x"] + 1.5}}, "x runs from 1.5"),
        ({"data": GOOD | {"x": GOOD["x"] * np.nan}}, "x runs from nan"),
        ({"data": GOOD | {"x": np.zeros((2, 5, 4, 4), np.uint8)}}, "shape (2, 5, 4, 4)"),
        ({"data": GOOD | {"y": np.array([0])}}, "data is not a dict of x, n samples, and integer"),
        ({"data": GOOD["x"]}, "data is not a dict of x, n samples, and integer y [n]"),
        ({"other": GOOD}, "data.npy"),
    ],
)
def test_damaged_client_folders(tmp_path, arrays, reason):
    _write_clients(tmp_path)
    np.savez(tmp_path / "train/1.npz", **arrays)
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "train/1.npz")) and reason in message


@pytest.mark.parametrize(
    "config", ["{", "[]", '{"num_classes": 4}', '{"num_clients": 0, "num_classes": 4}']
)
def test_client_folders_with_another_config(tmp_path, config):
    _write_clients(tmp_path)
    (tmp_path / "config.json").write_text(config)
    assert load_error(ValueError, f"client_folders:{tmp_path}").startswith(
        str(tmp_path / "config.json")
    )


def test_client_folders_without_a_test_sample(tmp_path):
    _write_clients(tmp_path, counts=((3, 0), (2, 0)))
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path)) and "no client has a test sample" in message


def test_labels_that_start_at_1(tmp_path, caplog):
    np.savez(tmp_path / "own.npz", images=BYTES, labels=[1, 2])
    assert load_dataset("npz:own.npz", tmp_path).num_classes == 3
    _write_clients(tmp_path / "made", counts=((3, 1),))
    for split in ("train", "test"):
        np.savez(tmp_path / f"made/{split}/0.npz", data=GOOD | {"y": np.array([1, 3])})
    assert load_dataset("client_folders:made", tmp_path).num_classes == 4
    of_npz, of_clients = caplog.messages
    assert of_npz.startswith(
        "npz:own.npz: 1 of 3 classes have no sample: class 0; labels run from 1"
    )
    assert "2 of 4 classes have no sample: classes 0, 2; labels run from 1 to 3" in of_clients


def test_client_folders_with_missing_files(tmp_path):
    _write_clients(tmp_path)
    (tmp_path / "test/1.npz").unlink()
    assert load_error(FileNotFoundError, f"client_folders:{tmp_path}").startswith(
        str(tmp_path / "test/1.npz")
    )
    refused("config.json", f"client_folders:{tmp_path}/none", kind=FileNotFoundError)


def test_a_file_that_is_not_there_was_looked_for_in_both_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"mine\.npz: .*No such file.* in the current"):
        load_dataset("npz:mine.npz", tmp_path)
