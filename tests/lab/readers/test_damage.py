"""One wrong bit in a file that carries a sum: an error, or the same data, never other data."""

import gzip
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers.registry import _load
from fedjax_ht.lab.readers.source import ReadOptions
from fedjax_ht.lab.safe.torch_files import load_state_dict
from tests.lab.readers.source_files import pixels, tar, write
from tests.lab.readers.test_motion import har_files, write_files
from tests.lab.readers.test_photographs import _write_tiny_imagenet
from tests.lab.readers.test_photographs import _zip as _zipped
from tests.lab.readers.test_small_images import _write_cifar, _write_mnist
from tests.lab.runs.folders import refused
from tests.lab.safe.test_torch_files import state_dict, tensor
from tests.lab.safe.test_torch_files import write as write_weights


def _samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures that compress a little, as real ones do, and labels of ten classes."""
    return pixels(count, 32, 32, 3) & 0xF8, np.arange(count, dtype=np.uint8) % 10


def _idx(folder: Path, count: int) -> Path:
    _write_mnist(folder, ".gz")
    return folder / "train-images-idx3-ubyte.gz"


def _cifar(folder: Path, count: int) -> Path:
    path = folder / "cifar-10-python.tar.gz"
    tar(_write_cifar("cifar10", folder / "made")[0], path)
    shutil.rmtree(folder / "made")
    return path


def _npz(save: Callable) -> Callable[[Path, int], Path]:
    def make(folder, count):
        x, y = _samples(count)
        half = count // 2
        save(folder / "x.npz", x_train=x[:half], y_train=y[:half], x_test=x[half:], y_test=y[half:])
        return folder / "x.npz"

    return make


def _zip(folder: Path, count: int) -> Path:
    path = folder / "tiny-imagenet-200.zip"
    _zipped(_write_tiny_imagenet(folder / "made")[0], path)
    shutil.rmtree(folder / "made")
    return path


def _har(folder: Path, count: int) -> Path:
    write_files(folder, "UCI HAR Dataset", har_files()[0], "zip")
    return folder / "UCI HAR Dataset.zip"


def _client(folder: Path, x, y) -> Path:
    write(folder / "config.json", '{"num_clients": 1, "num_classes": 10}')
    for split in ("train", "test"):
        (folder / split).mkdir()
        np.savez_compressed(folder / split / "0.npz", data={"x": x, "y": y})
    return folder / "train/0.npz"


def _images(folder: Path, count: int) -> Path:
    images, labels = _samples(count)
    x = (images.transpose(0, 3, 1, 2) / 127.5 - 1).astype(np.float32)
    return _client(folder, x, labels.astype(np.int64))


def _texts(folder: Path, count: int) -> Path:
    tokens = np.random.default_rng(0).integers(1, 500, (count, 9)).tolist()
    return _client(folder, [(text, 9) for text in tokens], np.arange(count) % 2)


def _windows(folder: Path, count: int) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 16, 3)).astype(np.float16)
    persons = rng.integers(0, 9, count).astype(str)
    np.savez_compressed(folder / "x.npz", inputs=x, labels=np.arange(count) % 2, person=persons)
    return folder / "x.npz"


def _table(folder: Path, count: int) -> Path:
    rows = np.random.default_rng(0).normal(size=(count, 9))
    lines = ["a,b,c,d,e,f,g,h,i,label"]
    for i, row in enumerate(rows):
        lines.append(",".join([*(f"{x:.4f}" for x in row), str(i % 3)]))
    write(folder / "x.csv.gz", gzip.compress("\n".join([*lines, ""]).encode()))
    return folder / "x.csv.gz"


def _dataset(name: str) -> Callable[[Path], list]:
    def read(folder):
        dataset = _load.__wrapped__(name, folder, ReadOptions(), "")
        parts = list(dataset.official.values())
        for client in dataset.clients or ():
            parts += client
        groups = np.zeros(0) if dataset.groups is None else dataset.groups
        return [dataset.inputs, dataset.labels, groups, np.array(dataset.class_names), *parts]

    return read


def _weights(folder: Path, count: int) -> Path:
    pickled = state_dict(a=tensor(shape=(count, 4), strides=(4, 1)), b=tensor(key="1", shape=(3,)))
    storages = {"0": np.arange(4.0 * count, dtype=np.float32), "1": np.ones(3, np.float32)}
    return write_weights(folder / "x.pth", pickled, storages)


def _state(folder: Path) -> list:
    state = load_state_dict(folder / "x.pth")
    return [np.array(list(state)), *state.values()]


FORMATS = {  # how a file is made, and read
    "tar.gz": (_cifar, _dataset("cifar10")),
    "idx.gz": (_idx, _dataset("mnist")),
    "npz, compressed": (_npz(np.savez_compressed), _dataset("npz:x.npz")),
    "npz, stored": (_npz(np.savez), _dataset("npz:x.npz")),
    "zip": (_zip, _dataset("tiny_imagenet")),
    "sensors' zip": (_har, _dataset("har")),
    "client's npz": (_images, _dataset("client_folders:.")),
    "client's texts": (_texts, _dataset("client_folders:.")),
    "csv.gz": (_table, _dataset("csv:x.csv.gz")),
    "npz of windows": (_windows, _dataset("npz:x.npz")),
    "weights": (_weights, _state),
}


def _flipped(folder: Path, make: Callable, read: Callable, count: int, flips: int) -> Counter:
    """Counts the wrong bits that were refused, gave the same data, or other data."""
    path = make(folder, count)
    whole, ends, rng = path.read_bytes(), Counter(), np.random.default_rng(0)
    expected = read(folder)
    # Half of them in the first and last kilobytes, where the structure is.
    edge = min(1024, len(whole) // 2)
    anywhere = rng.integers(0, len(whole), flips // 2)
    at_the_edges = rng.integers(-edge, edge, flips - flips // 2) % len(whole)
    for place in (*anywhere, *at_the_edges):
        content = bytearray(whole)
        content[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            arrays = read(folder)
        except (ValueError, FileNotFoundError) as error:
            assert "\n" not in str(error)
            ends["refused"] += 1
        else:
            same = len(arrays) == len(expected) and all(map(np.array_equal, arrays, expected))
            ends["the same data" if same else "other data"] += 1
    return ends


@pytest.mark.parametrize(
    ("count", "flips"), [(12, 24), pytest.param(240, 200, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", FORMATS)
def test_wrong_bits_are_seen(tmp_path, name, count, flips):
    ends = _flipped(tmp_path, *FORMATS[name], count, flips)
    print(f"{name}: {dict(ends)}")
    assert ends["other data"] == 0 and ends["refused"] > 6, ends


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("name", FORMATS)
def test_a_truncated_file_is_refused(tmp_path, name, kept):
    make, read = FORMATS[name]
    path = make(tmp_path, 12)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with refused(re.escape(str(tmp_path))):
        read(tmp_path)
