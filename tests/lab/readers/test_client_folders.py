"""Client folders of PFLlib and HtFLlib that hold no images."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.core.inputs import AsStored
from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import load_error, pixels, refused
from tests.pickles import attacks

RNG = np.random.default_rng(0)
TOKENS = np.where(np.arange(6) < [[6], [4], [1], [0], [5], [6]], RNG.integers(1, 70_000, (6, 6)), 0)
LENGTHS = [6, 4, 1, 0, 5, 6]
PAIRS = list(zip(TOKENS.tolist(), LENGTHS))


LABELS = np.arange(6) % 3


def write_clients(root: Path, x, y=LABELS, *, classes: int = 3, cuts=(0, 3, 4, 4, 6)) -> str:
    """Two clients, the second of which has nothing to train on; returns the set's name."""
    for i, (start, end) in enumerate(itertools.pairwise(cuts)):
        path = root / ("train", "test")[i % 2] / f"{i // 2}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, data={"x": x[start:end], "y": y[start:end]})
    config = {"num_clients": len(cuts) // 2, "num_classes": classes}
    (root / "config.json").write_text(json.dumps(config))
    return f"client_folders:{root}"


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
    "three units": (np.tanh(RNG.normal(size=(6, 3, 3, 256))), lambda x: x.transpose(0, 3, 2, 1)),
    "rows": (3 * RNG.normal(size=(6, 5)), lambda x: x),
    "letters": (RNG.integers(0, 80, (6, 8)), lambda x: x),
    "texts": (np.array(PAIRS, dtype=object), lambda x: TOKENS),
    "texts, tuples": (objects(PAIRS), lambda x: TOKENS),
    "texts, a list": (PAIRS, lambda x: TOKENS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_are_no_images(tmp_path, kind):
    x, expected = KINDS[kind]
    name = write_clients(tmp_path, x)
    dataset = load_dataset(name)
    expected = np.asarray(expected(x))
    assert dataset.inputs.dtype == (np.float32 if expected.dtype.kind == "f" else np.int32)
    np.testing.assert_array_equal(dataset.inputs, expected.astype(dataset.inputs.dtype))
    assert isinstance(dataset.preprocess, AsStored) and dataset.inputs.flags.c_contiguous
    refused(f"image_size is 8, but {name} has no", name, image_size=8)


def test_without_a_config_the_files_are_counted(tmp_path):
    name = write_clients(tmp_path, KINDS["letters"][0])
    (tmp_path / "config.json").unlink()
    dataset = load_dataset(name)
    assert len(dataset.clients) == 2 and dataset.num_classes == 3


def _pairs(i: int, pair: tuple) -> list:
    return [*PAIRS[:i], pair, *PAIRS[i + 1 :]]


def _samples(x) -> dict:
    return {"data": {"x": x, "y": np.arange(len(x)) % 3}}


SMALL = np.zeros((6, 1, 4, 4), np.float32)
GOOD = {"x": SMALL[:2], "y": np.array([0, 1])}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        (_samples(_pairs(0, ([1, 2], 2))), "texts of 2 to 6 tokens, including padding"),
        (_samples(_pairs(1, ([1] * 6, 5))), "a length that differs from its text's"),
        (_samples(_pairs(1, ([-1] + [0] * 5, 1))), "tokens below 0"),
        (_samples(_pairs(1, ([1 << 40] + [0] * 5, 1))), "beyond int32"),
        (_samples(_pairs(1, (["a" * 1000] * 6, 6))), "something other than pairs"),
        (_samples(_pairs(1, ([1] * 6, "6"))), "something other than pairs"),
        (_samples(objects([1, 2, 3, 4, 5, 6])), "something other than pairs"),
        (_samples(TOKENS - 1), "the token -1"),
        (_samples(3 * KINDS["units"][0] * np.nan), "NaN"),
        (_samples(TOKENS > 0), "x is bool (6, 6), neither floats nor integers"),
        (_samples(TOKENS[:, None, None]), "x is int64 (6, 1, 1, 6), neither floats nor integers"),
        (_samples(SMALL + 1.5), "x ranges from 1.5"),
        (_samples(SMALL * np.nan), "x ranges from nan"),
        (_samples(np.zeros((2, 5, 4, 4), np.uint8)), "shape (2, 5, 4, 4)"),
        ({"data": GOOD | {"y": np.array([0])}}, "data is not a dict of x, n samples, and integer"),
        ({"data": GOOD["x"]}, "data is not a dict of x, n samples, and integer y [n]"),
        ({"other": GOOD}, "data.npy"),
    ],
)
def test_wrong_files_are_one_line(tmp_path, arrays, reason):
    write_clients(tmp_path, SMALL)
    np.savez(tmp_path / "train/1.npz", **arrays)
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "train/1.npz")) and reason in message


BITS = RNG.integers(0, 2, (6, 1, 8, 8))
IMAGES = {  # x as generators write it, and the bytes that are read
    "lists of floats": (list(BITS * 2.0 - 1), 255),
    "bool": (BITS.astype(bool), 255),
    "bytes": ((BITS * 200).astype(np.uint8), 200),
    "bytes, channels last": ((BITS * 200).astype(np.uint8).transpose(0, 2, 3, 1), 200),
    "bytes without channels": ((BITS[:, 0] * 200).astype(np.uint8), 200),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_images_of_every_generator(tmp_path, kind):
    x, highest = IMAGES[kind]
    dataset = load_dataset(write_clients(tmp_path, x))
    np.testing.assert_array_equal(dataset.inputs, BITS.transpose(0, 2, 3, 1) * highest)


@pytest.mark.parametrize("y", [LABELS.tolist(), LABELS.astype(float), LABELS[:, None]])
def test_labels_of_every_generator(tmp_path, y):
    name = write_clients(tmp_path, BITS * 1.0, y, cuts=(0, 3, 6))
    (tmp_path / "config.json").write_text('{"num_clients": 1}')  # of the first form
    dataset = load_dataset(name)
    assert dataset.labels.tolist() == LABELS.tolist() and dataset.class_names == ("0", "1", "2")


def test_labels_with_gaps_are_numbered_anew_and_said(tmp_path, caplog):
    gaps = np.array([0, 5, 9])[LABELS]
    dataset = load_dataset(write_clients(tmp_path, BITS * 1.0, gaps))
    assert dataset.class_names == ("0", "5", "9") and dataset.labels.tolist() == LABELS.tolist()
    assert "labels 0, 5, 9 numbered 0 to 2" in caplog.text
    name = write_clients(tmp_path, BITS * 1.0, gaps, classes=2)
    refused("labels run from 0 to 9, but there are 2 class names", name)


def test_clients_of_two_kinds(tmp_path):
    name = write_clients(tmp_path, KINDS["letters"][0])
    np.savez(tmp_path / "test/1.npz", data={"x": KINDS["rows"][0], "y": LABELS})
    refused("some clients have rows and others texts", name)


@pytest.mark.parametrize("channels", [1, 3])
def test_client_folders(tmp_path, channels):
    images = pixels(6, channels, 4, 4)
    write_clients(tmp_path / "made", images / np.float32(127.5) - 1, classes=4)
    dataset = load_dataset("client_folders:made", tmp_path)
    np.testing.assert_array_equal(dataset.inputs, images.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(dataset.labels, LABELS)
    assert dataset.num_classes == 4 and dataset.official == {} and dataset.inputs.flags.c_contiguous
    got = [[part.tolist() for part in client] for client in dataset.clients]
    assert got == [[[0, 1, 2], [], [3]], [[], [], [4, 5]]]
    assert all(part.dtype == np.int64 for client in dataset.clients for part in client)


def test_client_folders_run_nothing(tmp_path):
    write_clients(tmp_path, SMALL)
    target = tmp_path / "written"
    attack = np.array({"x": attacks(target)["system"]}, dtype=object)
    np.savez(tmp_path / "test/0.npz", data=attack)
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "test/0.npz")) and ".system" in message
    assert not target.exists()


@pytest.mark.parametrize(
    "config", ["{", "[]", '{"num_classes": 4}', '{"num_clients": 0, "num_classes": 4}']
)
def test_client_folders_with_another_config(tmp_path, config):
    write_clients(tmp_path, SMALL)
    (tmp_path / "config.json").write_text(config)
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "config.json"))


def test_client_folders_without_a_test_sample(tmp_path):
    write_clients(tmp_path, SMALL[:5], cuts=(0, 3, 3, 5, 5))
    message = load_error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path)) and "no client has a test sample" in message


def test_client_folders_with_missing_files(tmp_path):
    write_clients(tmp_path, SMALL)
    (tmp_path / "test/1.npz").unlink()
    message = load_error(FileNotFoundError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "test/1.npz"))
    refused("config.json", f"client_folders:{tmp_path}/none", kind=FileNotFoundError)
