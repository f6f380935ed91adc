"""Client folders of PFLlib and HtFLlib that hold no images."""

import functools
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.core.inputs import AsStored
from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import load_error, pixels, refused

RNG = np.random.default_rng(0)
TOKENS = np.where(np.arange(6) < [[6], [4], [1], [0], [5], [6]], RNG.integers(1, 70_000, (6, 6)), 0)
LENGTHS = [6, 4, 1, 0, 5, 6]
PAIRS = list(zip(TOKENS.tolist(), LENGTHS))


def write_clients(root: Path, x, classes: int | None = 3, cuts=(0, 3, 4, 4, 6)) -> np.ndarray:
    """Two clients, the second of which has nothing to train on; returns the labels."""
    y = np.arange(len(x)) % 3
    for i, (start, end) in enumerate(itertools.pairwise(cuts)):
        path = root / ("train", "test")[i % 2] / f"{i // 2}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, data={"x": x[start:end], "y": y[start:end]})
    if classes:
        config = {"num_clients": len(cuts) // 2, "num_classes": classes}
        (root / "config.json").write_text(json.dumps(config))
    return y


def objects(pairs) -> np.ndarray:
    """One axis of tuples, not two axes."""
    x = np.empty(len(pairs), object)
    x[:] = pairs
    return x


def one_unit(x) -> np.ndarray:
    return x[:, :, 0].transpose(0, 2, 1)


KINDS = {  # x as the scripts write it, and what is made of it
    "one unit": (3 * RNG.normal(size=(6, 9, 1, 16)), one_unit),
    "units": (np.tanh(RNG.normal(size=(6, 9, 3, 16))), lambda x: x.transpose(0, 3, 2, 1)),
    "three signals": (np.tanh(RNG.normal(size=(6, 3, 1, 16))), one_unit),
    "rows": (3 * RNG.normal(size=(6, 5)), lambda x: x),
    "letters": (RNG.integers(0, 80, (6, 8)), lambda x: x),
    "texts": (np.array(PAIRS, dtype=object), lambda x: TOKENS),
    "texts, tuples": (objects(PAIRS), lambda x: TOKENS),
    "texts, a list": (PAIRS, lambda x: TOKENS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_are_no_images(tmp_path, kind):
    x, expected = KINDS[kind]
    y = write_clients(tmp_path / "made", x)
    dataset = load_dataset("client_folders:made", tmp_path)
    expected = np.asarray(expected(x))
    assert dataset.inputs.dtype == (np.float32 if expected.dtype.kind == "f" else np.int32)
    np.testing.assert_array_equal(dataset.inputs, expected.astype(dataset.inputs.dtype))
    np.testing.assert_array_equal(dataset.labels, y)
    assert isinstance(dataset.preprocess, AsStored) and dataset.inputs.flags.c_contiguous
    expected = [[[0, 1, 2], [], [3]], [[], [], [4, 5]]]
    assert [[part.tolist() for part in client] for client in dataset.clients] == expected
    refused("image_size is 8, but client_folders:made has no", "client_folders:made", tmp_path, 8)


def test_without_a_config_the_files_are_counted(tmp_path):
    write_clients(tmp_path / "made", KINDS["letters"][0], classes=None)
    dataset = load_dataset("client_folders:made", tmp_path)
    assert len(dataset.clients) == 2 and dataset.num_classes == 3


def _pairs(i: int, pair: tuple) -> list:
    return [*PAIRS[:i], pair, *PAIRS[i + 1 :]]


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (_pairs(0, ([1, 2], 2)), "texts of 2 to 6 tokens, padding counted"),
        (_pairs(1, ([1] * 6, 5)), "a length that is not that of its text"),
        (_pairs(1, ([1] * 6, 7)), "a length that is not that of its text"),
        (_pairs(1, ([-1] + [0] * 5, 1)), "tokens below 0"),
        (_pairs(1, ([1 << 40] + [0] * 5, 1)), "beyond int32"),
        (_pairs(1, (["a" * 1000] * 6, 6)), "something else than pairs"),
        (_pairs(1, ([[1]] * 6, 6)), "something else than pairs"),
        (_pairs(1, ("abcdef", 6)), "something else than pairs"),
        (_pairs(1, ([1] * 6, "6")), "something else than pairs"),
        (objects([1, 2, 3, 4, 5, 6]), "something else than pairs"),
        (TOKENS - 1, "the token -1"),
        (3 * KINDS["units"][0] * np.nan, "NaN"),
        (TOKENS > 0, "x is bool (3, 6), neither floats nor integers"),
        (TOKENS[:, None, None], "x is int64 (3, 1, 1, 6), neither floats nor integers"),
    ],
)
def test_wrong_files_are_one_line(tmp_path, x, reason):
    write_clients(tmp_path, x)
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "train/0.npz")) and reason in message


def write_parts(root: Path, x, y, **config) -> str:
    """One client whose training and test samples are the same."""
    for split in ("train", "test"):
        path = root / split / "0.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, data={"x": x, "y": y})
    (root / "config.json").write_text(json.dumps({"num_clients": 1} | config))
    return f"client_folders:{root}"


BITS = RNG.integers(0, 2, (6, 1, 8, 8))
LABELS = np.arange(6) % 3
IMAGES = {  # x as generators write it, and the bytes that are read
    "floats": (BITS * 2 - 1.0, 255),
    "lists of floats": (list(BITS * 2.0 - 1), 255),
    "bool": (BITS.astype(bool), 255),
    "lists of bool": ([image.astype(bool) for image in BITS], 255),
    "bytes": ((BITS * 200).astype(np.uint8), 200),
    "bytes, channels last": ((BITS * 200).astype(np.uint8).transpose(0, 2, 3, 1), 200),
    "bytes without channels": ((BITS[:, 0] * 200).astype(np.uint8), 200),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_images_of_every_generator(tmp_path, kind):
    x, highest = IMAGES[kind]
    dataset = load_dataset(write_parts(tmp_path, x, LABELS, num_classes=3))
    assert dataset.inputs.shape == (12, 8, 8, 1) and dataset.num_classes == 3
    np.testing.assert_array_equal(dataset.inputs[:6, ..., 0], BITS[:, 0] * highest)


def test_windows_of_three_signals_and_units_are_no_images(tmp_path):
    windows = np.tanh(RNG.normal(size=(6, 3, 3, 256)))
    dataset = load_dataset(write_parts(tmp_path, windows, LABELS, num_classes=3))
    assert dataset.inputs.shape == (12, 256, 3, 3) and dataset.inputs.dtype == np.float32


@pytest.mark.parametrize("y", [LABELS.tolist(), LABELS.astype(float), LABELS[:, None]])
def test_labels_of_every_generator(tmp_path, y):
    dataset = load_dataset(write_parts(tmp_path, BITS * 1.0, y))  # config.json of the first form
    assert dataset.labels.tolist() == [*LABELS, *LABELS] and dataset.class_names == ("0", "1", "2")


def test_labels_with_gaps_are_numbered_anew_and_said(tmp_path, caplog):
    gaps = np.array([0, 5, 9])[LABELS]
    dataset = load_dataset(write_parts(tmp_path, BITS * 1.0, gaps, num_classes=3))
    assert dataset.class_names == ("0", "5", "9") and dataset.labels.tolist() == [*LABELS, *LABELS]
    assert "labels 0, 5, 9 numbered 0 to 2" in caplog.text
    many = load_error(ValueError, write_parts(tmp_path, BITS * 1.0, gaps, num_classes=2))
    assert "labels run from 0 to 9, but there are 2 class names" in many


def test_clients_of_two_kinds(tmp_path):
    write_clients(tmp_path, KINDS["letters"][0])
    np.savez(tmp_path / "test/1.npz", data={"x": KINDS["rows"][0], "y": np.zeros(6, int)})
    refused("some clients hold rows and others texts", f"client_folders:{tmp_path}")


# Client folders


@pytest.mark.parametrize("channels", [1, 3])
def test_client_folders(tmp_path, channels):
    images = pixels(6, channels, 4, 4)
    labels = write_clients(tmp_path / "made", images / np.float32(127.5) - 1, 4)
    dataset = load_dataset("client_folders:made", tmp_path)
    np.testing.assert_array_equal(dataset.inputs, images.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.num_classes == 4 and dataset.official == {} and dataset.inputs.flags.c_contiguous
    got = [[part.tolist() for part in client] for client in dataset.clients]
    assert got == [[[0, 1, 2], [], [3]], [[], [], [4, 5]]]
    assert all(part.dtype == np.int64 for client in dataset.clients for part in client)


SMALL = np.zeros((6, 1, 4, 4), np.float32)
GOOD = {"x": np.zeros((2, 1, 4, 4), np.float32), "y": np.array([0, 1])}


class _Touch:
    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return functools.partial(os.system, f"touch {self.target}"), ()


def test_client_folders_run_nothing(tmp_path):
    write_clients(tmp_path, SMALL)
    target = tmp_path / "written"
    np.savez(tmp_path / "test/0.npz", data=np.array({"x": _Touch(target)}, dtype=object))
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "test/0.npz")) and "functools.partial" in message
    assert not target.exists()


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
    write_clients(tmp_path, SMALL)
    np.savez(tmp_path / "train/1.npz", **arrays)
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "train/1.npz")) and reason in message


@pytest.mark.parametrize(
    "config", ["{", "[]", '{"num_classes": 4}', '{"num_clients": 0, "num_classes": 4}']
)
def test_client_folders_with_another_config(tmp_path, config):
    write_clients(tmp_path, SMALL)
    (tmp_path / "config.json").write_text(config)
    assert load_error(ValueError, f"client_folders:{tmp_path}").startswith(
        str(tmp_path / "config.json")
    )


def test_client_folders_without_a_test_sample(tmp_path):
    write_clients(tmp_path, SMALL[:5], cuts=(0, 3, 3, 5, 5))
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path)) and "no client has a test sample" in message


def test_client_folders_with_missing_files(tmp_path):
    write_clients(tmp_path, SMALL)
    (tmp_path / "test/1.npz").unlink()
    assert load_error(FileNotFoundError, f"client_folders:{tmp_path}").startswith(
        str(tmp_path / "test/1.npz")
    )
    refused("config.json", f"client_folders:{tmp_path}/none", kind=FileNotFoundError)
