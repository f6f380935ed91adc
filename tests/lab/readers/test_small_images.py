"""Sets of raw pixels, from tiny files in the formats of their publishers."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import load_error, pixels, sets, tar, write

# MNIST and Fashion-MNIST


def _idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def _write_mnist(folder: Path, ending: str = "") -> tuple[np.ndarray, list[int]]:
    images, labels = pixels(5, 28, 28), np.uint8([7, 2, 1, 0, 9])
    pack = gzip.compress if ending else bytes
    for split, part in (("train", slice(3)), ("t10k", slice(3, 5))):
        write(folder / f"{split}-images-idx3-ubyte{ending}", pack(_idx(images[part])))
        write(folder / f"{split}-labels-idx1-ubyte{ending}", pack(_idx(labels[part])))
    return images[..., None], labels.tolist()


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("folder", [".", "raw", "MNIST/raw", "FashionMNIST/raw"])
def test_idx(tmp_path, folder, ending):
    name = "fashion_mnist" if "Fashion" in folder else "mnist"
    images, labels = _write_mnist(tmp_path / folder, ending)
    dataset = load_dataset(name, tmp_path)
    np.testing.assert_array_equal(dataset.inputs, images)
    assert dataset.labels.tolist() == labels and dataset.num_classes == 10
    assert sets(dataset) == {"train": [0, 1, 2], "test": [3, 4]}
    assert dataset.inputs.flags.c_contiguous


def test_the_folder_of_its_name_comes_first(tmp_path):
    _write_mnist(tmp_path)
    images, _ = _write_mnist(tmp_path / "fashion_mnist")
    np.testing.assert_array_equal(load_dataset("fashion_mnist", tmp_path).inputs, images)
    assert load_dataset("mnist", str(tmp_path)) is load_dataset("mnist", tmp_path)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("train-images-idx3-ubyte", lambda content: content + b"\0"),
        ("t10k-labels-idx1-ubyte", lambda content: b"\x1f" + content[1:]),
        ("t10k-labels-idx1-ubyte", lambda content: b""),
        ("t10k-labels-idx1-ubyte", lambda content: content[:6]),
        ("t10k-labels-idx1-ubyte", lambda content: _idx(np.zeros(4, np.uint8))),
    ],
)
def test_damaged_idx(tmp_path, file, damage):
    _write_mnist(tmp_path)
    (tmp_path / file).write_bytes(damage((tmp_path / file).read_bytes()))
    message = load_error(ValueError, "mnist", tmp_path)
    assert message.startswith(str(tmp_path / file)) and f"expected {file}" in message
    assert "LeCun" in message


# CIFAR


def _py2_pickle(batch: dict) -> bytes:
    """`batch` as Python 2 pickled it: byte strings for text and for the content of arrays."""

    def dump(value) -> bytes:
        match value:
            case bytes():
                return b"T" + struct.pack("<I", len(value)) + value
            case int():
                return b"J" + struct.pack("<i", value)
            case list():
                return b"](" + b"".join(map(dump, value)) + b"e"
            case dict():
                return b"}(" + b"".join(dump(k.encode()) + dump(v) for k, v in value.items()) + b"u"
            case np.ndarray():
                array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
                dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNN"
                dtype += 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
                shape = b"(" + b"".join(map(dump, value.shape)) + b"t"
                return array + b"(K\x01" + shape + dtype + b"\x89" + dump(value.tobytes()) + b"tb"

    return b"\x80\x02" + dump(batch) + b"."


BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
CIFAR = {  # files of images, the folder's name, the keys, the file of names
    "cifar10": (BATCHES, "cifar-10-batches-py", "labels", "label_names", "batches.meta"),
    "cifar100": (["train", "test"], "cifar-100-python", "fine_labels", "fine_label_names", "meta"),
}


def _write_cifar(name: str, root: Path, dump=_py2_pickle) -> tuple[Path, np.ndarray, np.ndarray]:
    files, folder, labels_key, names_key, meta = CIFAR[name]
    classes = [f"class{i}" for i in range(int(name[5:]))]
    images = pixels(2 * len(files), 3, 32, 32)
    labels = np.random.default_rng(1).integers(0, len(classes), 2 * len(files))
    for i, file in enumerate(files):
        rows, of_file = images[2 * i : 2 * i + 2].reshape(2, 3072), labels[2 * i : 2 * i + 2]
        content = dump({labels_key: of_file.tolist(), "data": rows, "filenames": [b"a", b"b"]})
        write(root / folder / file, content)
    write(root / folder / meta, dump({names_key: [c.encode() for c in classes]}))
    return root / folder, images.transpose(0, 2, 3, 1), labels


def _check_cifar(dataset, images, labels):
    np.testing.assert_array_equal(dataset.inputs, images)
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.class_names[3] == "class3" and dataset.inputs.flags.c_contiguous
    assert dataset.official["test"].tolist() == [len(labels) - 2, len(labels) - 1]
    assert dataset.official["train"].tolist() == list(range(len(labels) - 2))
    assert dataset.preprocess.mean.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("name", CIFAR)
@pytest.mark.parametrize("form", ["extracted", "inside", ".tar.gz", ".tar"])
def test_cifar(tmp_path, name, form):
    folder, images, labels = _write_cifar(name, tmp_path / "made")
    data_dir = {"extracted": folder.parent, "inside": folder}.get(form, tmp_path)
    if data_dir == tmp_path:
        (tmp_path / name).mkdir()
        archive = tmp_path / name / f"cifar-{name[5:]}-python{form}"
        tar(folder, archive, "w:gz" if "gz" in form else "w")
    _check_cifar(load_dataset(name, data_dir), images, labels)


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar_repickled_with_bytes_as_keys(tmp_path, protocol):
    """Python 3 makes such keys of the publisher's files when it reads them as bytes."""

    def dump(batch):
        return pickle.dumps({k.encode(): v for k, v in batch.items()}, protocol)

    _, images, labels = _write_cifar("cifar10", tmp_path, dump)
    _check_cifar(load_dataset("cifar10", tmp_path), images, labels)


def test_cifar_pickle_runs_nothing(tmp_path):
    folder, _, _ = _write_cifar("cifar10", tmp_path)
    target = tmp_path / "written"
    write(folder / "data_batch_3", b"cposix\nsystem\n(S'touch " + str(target).encode() + b"'\ntR.")
    message = load_error(ValueError, "cifar10", tmp_path)
    assert "posix.system" in message and str(folder) in message and not target.exists()


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("data_batch_2", None, "data_batch_2"),
        ("batches.meta", None, "1 of 7 files are missing"),
        ("data_batch_1", pickle.dumps({"data": np.zeros((2, 3)), "labels": [0, 1]}), "uint8 data"),
        ("data_batch_1", pickle.dumps([1]), "list"),
        ("data_batch_1", b"\x80\x02}", "pickle"),
    ],
)
def test_damaged_cifar(tmp_path, file, content, reason):
    folder, _, _ = _write_cifar("cifar10", tmp_path)
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    message = load_error(ValueError, "cifar10", tmp_path)
    assert message.startswith(str(folder)) and reason in message and "Krizhevsky" in message
