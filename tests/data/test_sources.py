"""Every kind of source, from tiny files in the formats that the publishers use."""

import functools
import gzip
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedjax_ht.data.sources import dataset_names, load_dataset
from fedjax_ht.data.sources.images import decode, resize, stack

RNG = np.random.default_rng(0)


def _pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def _write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, quality=95)
    return file.getvalue()


def _tar(folder: Path, archive: Path, mode: str = "w:gz") -> None:
    with tarfile.open(archive, mode) as file:
        file.add(folder, folder.name)


def _zip(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder.parent))


def _error(kind: type[Exception], *args) -> str:
    """The message of the error that `load_dataset(*args)` gives, which must be one line."""
    with pytest.raises(kind) as error:
        load_dataset(*args)
    message = str(error.value)
    assert "\n" not in message
    return message


# Names and arguments


def test_unknown_names_are_answered_with_the_known_ones():
    for name in ("cifar11", "npz:", "zip:x", ""):
        message = _error(ValueError, name)
        assert all(known in message for known in dataset_names())


@pytest.mark.parametrize("size", [0, -1, 2.0, "32", True])
def test_image_size_is_checked(size):
    assert "image_size" in _error(ValueError, "fashion_mnist_10k", None, size)


PLAIN = [name for name in dataset_names() if ":" not in name and name != "fashion_mnist_10k"]


@pytest.mark.parametrize("name", PLAIN)
def test_missing_files_and_folders(tmp_path, name):
    message = _error(FileNotFoundError, name, tmp_path)
    assert name in message and str(tmp_path) in message and "download it from the dataset's page (" in message
    assert "data_dir" in _error(ValueError, name)


def test_the_same_call_gives_the_same_object(tmp_path):
    assert load_dataset("fashion_mnist_10k") is load_dataset("fashion_mnist_10k")


# Embedded


def test_embedded_fashion_mnist():
    dataset = load_dataset("fashion_mnist_10k")
    assert dataset.images.shape == (10_000, 28, 28, 1) and dataset.num_classes == 10
    assert np.bincount(dataset.labels).tolist() == [1000] * 10
    assert dataset.class_names[dataset.labels[0]] == "Ankle boot"
    assert round(float(dataset.images.mean()), 2) == 73.15  # the published mean of the test images is 0.2868
    assert dataset.official == {} and dataset.mean == dataset.std == (0.5,)
    assert load_dataset("fashion_mnist_10k", image_size=14).images.shape == (10_000, 14, 14, 1)


def test_the_package_carries_its_data_and_licence():
    folder = Path(sys.modules["fedjax_ht.data.dataset"].__file__).parent / "embedded"
    assert (folder / "fashion_mnist_10k.npz").stat().st_size <= 4.6e6
    assert "Permission is hereby granted" in (folder / "LICENSE-fashion_mnist_10k.txt").read_text()


# MNIST and Fashion-MNIST


def _idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def _write_mnist(folder: Path, ending: str = "") -> tuple[np.ndarray, list[int]]:
    images, labels = _pixels(5, 28, 28), [7, 2, 1, 0, 9]
    pack = gzip.compress if ending else bytes
    for split, part in (("train", slice(3)), ("t10k", slice(3, 5))):
        _write(folder / f"{split}-images-idx3-ubyte{ending}", pack(_idx(images[part])))
        _write(folder / f"{split}-labels-idx1-ubyte{ending}", pack(_idx(np.array(labels[part], np.uint8))))
    return images[..., None], labels


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "."),
        ("mnist", "mnist"),
        ("mnist", "raw"),
        ("mnist", "MNIST/raw"),
        ("fashion_mnist", "FashionMNIST/raw"),
    ],
)
def test_idx(tmp_path, name, folder, ending):
    images, labels = _write_mnist(tmp_path / folder, ending)
    dataset = load_dataset(name, tmp_path)
    np.testing.assert_array_equal(dataset.images, images)
    assert dataset.labels.tolist() == labels and dataset.num_classes == 10
    assert {k: v.tolist() for k, v in dataset.official.items()} == {"train": [0, 1, 2], "test": [3, 4]}
    assert dataset.images.flags.c_contiguous


def test_idx_prefers_the_folder_of_its_name(tmp_path):
    _write_mnist(tmp_path)
    images, _ = _write_mnist(tmp_path / "fashion_mnist")
    np.testing.assert_array_equal(load_dataset("fashion_mnist", tmp_path).images, images)


def test_data_dir_may_be_a_string(tmp_path):
    _write_mnist(tmp_path)
    assert load_dataset("mnist", str(tmp_path)) is load_dataset("mnist", tmp_path)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("train-images-idx3-ubyte", lambda content: content[:-1]),
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
    message = _error(ValueError, "mnist", tmp_path)
    assert message.startswith(str(tmp_path / file)) and f"expected {file}" in message and "LeCun" in message


def test_truncated_gz(tmp_path):
    _write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    assert _error(ValueError, "mnist", tmp_path).startswith(str(path))


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
                dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
                shape = b"(" + b"".join(map(dump, value.shape)) + b"t"
                return array + b"(K\x01" + shape + dtype + b"\x89" + dump(value.tobytes()) + b"tb"

    return b"\x80\x02" + dump(batch) + b"."


CIFAR = {  # files of images, the folder's name, the keys of the python version
    "cifar10": ([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], "cifar-10", "labels", "label_names"),
    "cifar100": (["train", "test"], "cifar-100", "fine_labels", "fine_label_names"),
}


def _write_cifar(name: str, kind: str, root: Path, dump=_py2_pickle) -> tuple[Path, np.ndarray, np.ndarray]:
    files, stem, labels_key, names_key = CIFAR[name]
    folder = root / f"{stem}-{'batches-' * (name == 'cifar10')}{kind}"
    classes = [f"class{i}" for i in range(int(name[5:]))]
    images, labels = _pixels(2 * len(files), 3, 32, 32), RNG.integers(0, len(classes), 2 * len(files))
    for i, file in enumerate(files):
        rows, own = images[2 * i : 2 * i + 2].reshape(2, 3072), labels[2 * i : 2 * i + 2]
        if kind.startswith("py"):
            content = dump({labels_key: own.tolist(), "data": rows, "filenames": [b"a", b"b"]})
            _write(folder / file, content)
        else:
            coarse = np.zeros((2, name == "cifar100"), np.uint8)
            _write(folder / f"{file}.bin", np.c_[coarse, own.astype(np.uint8), rows].tobytes())
    if kind.startswith("py"):
        _write(
            folder / ("meta" if name == "cifar100" else "batches.meta"),
            dump({names_key: [c.encode() for c in classes]}),
        )
    else:
        meta = "fine_label_names.txt" if name == "cifar100" else "batches.meta.txt"
        _write(folder / meta, "\n".join([*classes, ""]))
    return folder, images.transpose(0, 2, 3, 1), labels


def _check_cifar(dataset, images, labels):
    np.testing.assert_array_equal(dataset.images, images)
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.class_names[3] == "class3" and dataset.images.flags.c_contiguous
    assert dataset.official["test"].tolist() == [len(labels) - 2, len(labels) - 1]
    assert dataset.official["train"].tolist() == list(range(len(labels) - 2))
    assert dataset.mean == (0.5, 0.5, 0.5)


KINDS = [("cifar10", "py"), ("cifar10", "bin"), ("cifar100", "python"), ("cifar100", "binary")]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_cifar_extracted(tmp_path, name, kind):
    folder, images, labels = _write_cifar(name, kind, tmp_path)
    _check_cifar(load_dataset(name, tmp_path), images, labels)
    _check_cifar(load_dataset(name, folder), images, labels)  # the extracted folder itself


@pytest.mark.parametrize(("name", "kind"), KINDS)
@pytest.mark.parametrize("ending", [".tar.gz", ".tar"])
def test_cifar_archive(tmp_path, name, kind, ending):
    folder, images, labels = _write_cifar(name, kind, tmp_path / "made")
    version = "python" if kind.startswith("py") else "binary"
    (tmp_path / name).mkdir()
    _tar(folder, tmp_path / name / f"{CIFAR[name][1]}-{version}{ending}", "w:gz" if "gz" in ending else "w")
    _check_cifar(load_dataset(name, tmp_path), images, labels)


def test_cifar_repickled_by_python_3(tmp_path):
    def dump(batch):
        return pickle.dumps({k: [str(c, "ascii") for c in v] if k == "label_names" else v for k, v in batch.items()})

    _, images, labels = _write_cifar("cifar10", "py", tmp_path, dump)
    _check_cifar(load_dataset("cifar10", tmp_path), images, labels)


def test_cifar_pickle_runs_nothing(tmp_path):
    folder, _, _ = _write_cifar("cifar10", "py", tmp_path)
    target = tmp_path / "written"
    _write(folder / "data_batch_3", b"cposix\nsystem\n(S'touch " + str(target).encode() + b"'\ntR.")
    message = _error(ValueError, "cifar10", tmp_path)
    assert "posix.system" in message and str(folder) in message and not target.exists()


@pytest.mark.parametrize(
    ("kind", "file", "content", "reason"),
    [
        ("bin", "data_batch_2.bin", b"\0" * 3072, "3072 bytes"),
        ("bin", "test_batch.bin", b"", "0 bytes"),
        ("bin", "data_batch_2.bin", None, "data_batch_2.bin"),
        ("py", "batches.meta", None, "batches.meta"),
        ("py", "data_batch_1", pickle.dumps({"data": np.zeros((2, 3)), "labels": [0, 1]}), "uint8 data"),
        ("py", "data_batch_1", pickle.dumps([1]), "list"),
        ("py", "data_batch_1", b"\x80\x02}", "pickle"),
    ],
)
def test_damaged_cifar(tmp_path, kind, file, content, reason):
    folder, _, _ = _write_cifar("cifar10", kind, tmp_path)
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    message = _error(ValueError, "cifar10", tmp_path)
    assert message.startswith(str(folder)) and reason in message and "Krizhevsky" in message


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_truncated_cifar_archive(tmp_path, keep):
    folder, _, _ = _write_cifar("cifar10", "py", tmp_path / "made")
    archive = tmp_path / "cifar-10-python.tar.gz"
    _tar(folder, archive)
    archive.write_bytes(archive.read_bytes()[: int(keep * archive.stat().st_size)])
    assert _error(ValueError, "cifar10", tmp_path).startswith(str(archive))


# SVHN


def _write_svhn(folder: Path) -> np.ndarray:
    images = _pixels(5, 32, 32, 3)
    for split, part, labels in (("train", slice(3), [10, 1, 9]), ("test", slice(3, 5), [2, 10])):
        arrays = {"X": images[part].transpose(1, 2, 3, 0), "y": np.array(labels, np.uint8)[:, None]}
        savemat(folder / f"{split}_32x32.mat", arrays, do_compression=True)
    return images


def test_svhn(tmp_path):
    images = _write_svhn(tmp_path)
    dataset = load_dataset("svhn", tmp_path)
    np.testing.assert_array_equal(dataset.images, images)
    assert dataset.labels.tolist() == [0, 1, 9, 2, 0] and dataset.images.flags.c_contiguous
    assert {k: v.tolist() for k, v in dataset.official.items()} == {"train": [0, 1, 2], "test": [3, 4]}


def test_svhn_without_scipy(tmp_path, monkeypatch):
    _write_svhn(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    assert "pip install scipy" in _error(ImportError, "svhn", tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 2000])
def test_damaged_svhn(tmp_path, keep):
    _write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:keep])
    assert _error(ValueError, "svhn", tmp_path).startswith(str(path))


def test_svhn_of_other_arrays(tmp_path):
    _write_svhn(tmp_path)
    savemat(tmp_path / "test_32x32.mat", {"digits": np.zeros(3)})
    assert "such as X" in _error(ValueError, "svhn", tmp_path)
    savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))})
    assert "not uint8" in _error(ValueError, "svhn", tmp_path)


# Sets of encoded images


def _write_tiny_imagenet(root: Path) -> tuple[Path, list[np.ndarray]]:
    """Two training images of each of two classes (one grey) and three of validation, in PNG to compare exactly."""
    folder = root / "tiny-imagenet-200"
    images = [_pixels(64, 64, 3) for _ in range(7)]
    images[1] = images[1][..., 0]
    names = [f"train/{wnid}/images/{wnid}_{i}.JPEG" for wnid in ("n01", "n02") for i in range(2)]
    names += [f"val/images/val_{i}.JPEG" for i in range(3)]
    for name, image in zip(names, images):
        _write(folder / name, _encoded(image))
    _write(folder / "train/n01/n01_boxes.txt", "n01_0.JPEG\t0\t0\t9\t9\n")
    _write(folder / "test/images/test_0.JPEG", _encoded(_pixels(64, 64, 3)))
    boxes = "".join(f"val_{i}.JPEG\t{wnid}\t0\t0\t9\t9\n" for i, wnid in ((2, "n02"), (0, "n01"), (1, "n02")))
    _write(folder / "val/val_annotations.txt", boxes)
    order = [*range(4), 6, 4, 5]  # validation images in the order of the annotations
    return folder, [np.broadcast_to(images[i].reshape(64, 64, -1), (64, 64, 3)) for i in order]


@pytest.mark.parametrize("form", ["folder", "zip", "inside"])
def test_tiny_imagenet(tmp_path, form):
    folder, images = _write_tiny_imagenet(tmp_path / "made")
    if form == "zip":
        _zip(folder, tmp_path / "tiny-imagenet-200.zip")
    data_dir = {"folder": folder.parent, "zip": tmp_path, "inside": folder}[form]
    dataset = load_dataset("tiny_imagenet", data_dir)
    np.testing.assert_array_equal(dataset.images, images)
    assert dataset.labels.tolist() == [0, 0, 1, 1, 1, 0, 1] and dataset.class_names == ("n01", "n02")
    assert {k: v.tolist() for k, v in dataset.official.items()} == {"train": [0, 1, 2, 3], "test": [4, 5, 6]}
    assert load_dataset("tiny_imagenet", data_dir, 32).images.shape == (7, 32, 32, 3)


def test_tiny_imagenet_with_missing_files(tmp_path):
    folder, _ = _write_tiny_imagenet(tmp_path)
    (folder / "val/images/val_2.JPEG").unlink()
    message = _error(ValueError, "tiny_imagenet", tmp_path)
    assert "1 of 7 images are missing, such as val/images/val_2.JPEG" in message and "Stanford" in message
    (folder / "val/val_annotations.txt").unlink()
    assert "val/val_annotations.txt" in _error(ValueError, "tiny_imagenet", tmp_path)


def test_tiny_imagenet_class_without_training_images(tmp_path):
    folder, _ = _write_tiny_imagenet(tmp_path)
    for path in (folder / "train/n02/images").iterdir():
        path.unlink()
    assert "such as n02" in _error(ValueError, "tiny_imagenet", tmp_path)


def test_truncated_zip(tmp_path):
    folder, _ = _write_tiny_imagenet(tmp_path / "made")
    archive = tmp_path / "tiny-imagenet-200.zip"
    _zip(folder, archive)
    archive.write_bytes(archive.read_bytes()[:-50])
    assert _error(ValueError, "tiny_imagenet", tmp_path).startswith(str(archive))


def _write_flowers(root: Path) -> list[np.ndarray]:
    images = [
        np.full((h, w, 3), 30 * i, np.uint8) for i, (h, w) in enumerate([(80, 100), (90, 70), (64, 64), (70, 200)])
    ]
    for i, image in enumerate(images, 1):
        _write(root / f"jpg/image_{i:05d}.jpg", _encoded(image, "JPEG"))
    savemat(root / "imagelabels.mat", {"labels": np.array([[1, 102, 5, 5]], np.uint8)})
    savemat(root / "setid.mat", {"trnid": [[3, 1]], "valid": [[2]], "tstid": [[4]]})
    return images


@pytest.mark.parametrize("archived", [False, True])
def test_flowers102(tmp_path, archived):
    _write_flowers(tmp_path)
    if archived:
        _tar(tmp_path / "jpg", tmp_path / "102flowers.tgz")
        for path in (tmp_path / "jpg").iterdir():
            path.unlink()
        (tmp_path / "jpg").rmdir()
    dataset = load_dataset("flowers102", tmp_path)
    assert dataset.images.shape == (4, 64, 64, 3) and dataset.num_classes == 102
    np.testing.assert_allclose(dataset.images.mean((1, 2, 3)), [0, 30, 60, 90], atol=1)
    assert dataset.labels.tolist() == [0, 101, 4, 4]
    assert {k: v.tolist() for k, v in dataset.official.items()} == {"train": [2, 0], "val": [1], "test": [3]}
    assert load_dataset("flowers102", tmp_path, 16).images.shape == (4, 16, 16, 3)


def test_damaged_flowers102(tmp_path):
    _write_flowers(tmp_path)
    (tmp_path / "jpg/image_00002.jpg").write_bytes(b"\xff\xd8 no image")
    assert "image image_00002 cannot be decoded" in _error(ValueError, "flowers102", tmp_path)
    (tmp_path / "jpg/image_00002.jpg").unlink()
    assert "such as image_00002" in _error(ValueError, "flowers102", tmp_path)
    savemat(tmp_path / "setid.mat", {"trnid": [[3, 1]], "valid": [[2]], "tstid": [[5]]})
    assert _error(ValueError, "flowers102", tmp_path).startswith(str(tmp_path / "setid.mat"))


def _write_food(root: Path) -> Path:
    folder = root / "food-101"
    lists = {"train": ["pie/10", "pie/9", "soup/1"], "test": ["soup/2", "pie/3"]}
    for split, keys in lists.items():
        _write(folder / f"meta/{split}.txt", "\n".join(keys))
        for key in keys:
            _write(folder / f"images/{key}.jpg", _encoded(np.full((80, 120, 3), 20 * int(key[-1]), np.uint8), "JPEG"))
    return folder


@pytest.mark.parametrize("form", ["folder", "archive", "inside"])
def test_food101(tmp_path, form):
    folder = _write_food(tmp_path / "made")
    if form == "archive":
        _tar(folder, tmp_path / "food-101.tar.gz")
    dataset = load_dataset("food101", {"folder": folder.parent, "archive": tmp_path, "inside": folder}[form])
    assert dataset.images.shape == (5, 64, 64, 3) and dataset.class_names == ("pie", "soup")
    np.testing.assert_allclose(dataset.images.mean((1, 2, 3)), [0, 180, 20, 40, 60], atol=1)
    assert dataset.labels.tolist() == [0, 0, 1, 1, 0]
    assert {k: v.tolist() for k, v in dataset.official.items()} == {"train": [0, 1, 2], "test": [3, 4]}


def test_folder_per_class(tmp_path):
    cat, dogs = _pixels(9, 8, 3), [_pixels(9, 8), _pixels(9, 8, 3)]
    _write(tmp_path / "cat/deeper/a.png", _encoded(cat))
    _write(tmp_path / "dog/a.PNG", _encoded(dogs[0]))
    _write(tmp_path / "dog/b.bmp", _encoded(dogs[1], "BMP"))
    _write(tmp_path / "dog/notes.txt", "no image")
    _write(tmp_path / ".hidden/a.png", b"no image")
    _write(tmp_path / "dog/._a.png", b"no image")
    dataset = load_dataset(f"folder:{tmp_path}")
    np.testing.assert_array_equal(dataset.images, [cat, np.dstack([dogs[0]] * 3), dogs[1]])
    assert dataset.labels.tolist() == [0, 1, 1] and dataset.class_names == ("cat", "dog") and dataset.official == {}


def test_folder_of_splits_and_grey_images(tmp_path):
    for i, name in enumerate(["train/a/1", "train/b/1", "val/b/1", "test/a/1", "test/a/2"]):
        _write(tmp_path / f"set/{name}.png", _encoded(np.full((4, 4), i, np.uint8)))
    dataset = load_dataset("folder:set", tmp_path)
    assert dataset.images.shape == (5, 4, 4, 1) and dataset.class_names == ("a", "b")
    got = {split: dataset.images[i, 0, 0, 0].tolist() for split, i in dataset.official.items()}
    assert got == {"train": [0, 1], "val": [2], "test": [3, 4]}
    assert [int(dataset.labels[dataset.images[:, 0, 0, 0] == i][0]) for i in range(5)] == [0, 1, 1, 0, 0]


def test_a_class_may_be_called_train(tmp_path):
    for name in ("train", "tram"):
        _write(tmp_path / name / "1.png", _encoded(_pixels(4, 4)))
    assert load_dataset(f"folder:{tmp_path}").class_names == ("train", "tram")


def test_folder_errors(tmp_path):
    assert "no such folder" in _error(FileNotFoundError, f"folder:{tmp_path}/none")
    assert "no images" in _error(ValueError, f"folder:{tmp_path}")
    _write(tmp_path / "a/1.png", _encoded(_pixels(4, 4)))
    _write(tmp_path / "a/2.png", _encoded(_pixels(4, 5)))
    assert "2 sizes, from (4, 4) to (4, 5); set image_size" in _error(ValueError, f"folder:{tmp_path}")
    assert load_dataset(f"folder:{tmp_path}", image_size=3).images.shape == (2, 3, 3, 1)
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "a/3.png")
    assert "a/3.png cannot be decoded (mode I;16" in _error(ValueError, f"folder:{tmp_path}")


# The cache of decoded sets


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Loads without the in-process cache, and tells whether images were decoded; the user's cache is in `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    decoded = []
    module = sys.modules["fedjax_ht.data.sources.image_folder"]
    original = module.decode_members
    monkeypatch.setattr(module, "decode_members", lambda *args: decoded.append(1) or original(*args))
    load = sys.modules["fedjax_ht.data.sources.registry"]._load.__wrapped__

    def run(name, data_dir, image_size=None):
        decoded.clear()
        return load(name, data_dir, image_size), bool(decoded)

    return run


def _write_folder(root: Path) -> None:
    for i, name in enumerate(["train/a/1", "train/b/1", "test/b/1"]):
        _write(root / f"{name}.png", _encoded(np.full((4, 4), i, np.uint8)))


def test_decoded_images_are_kept(tmp_path, fresh):
    root = tmp_path / "set"
    _write_folder(root)
    first, decoded = fresh(f"folder:{root}", None)
    assert decoded
    (file,) = (root / ".fedjax_ht_cache").iterdir()  # nothing temporary is left
    second, decoded = fresh(f"folder:{root}", None)
    assert not decoded and not (tmp_path / "user").exists()
    for field in ("images", "labels"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
    assert (second.name, second.class_names) == (first.name, first.class_names)
    assert {k: v.tolist() for k, v in second.official.items()} == {"train": [1, 2], "test": [0]}
    assert fresh(f"folder:{root}", None, 2)[1]  # each size has a file of its own
    file.write_bytes(file.read_bytes()[:-30])
    assert fresh(f"folder:{root}", None)[1]
    assert not fresh(f"folder:{root}", None)[1]


@pytest.mark.parametrize("change", ["content", "time", "added", "removed"])
def test_changed_files_are_decoded_again(tmp_path, fresh, change):
    _write_folder(tmp_path)
    fresh(f"folder:{tmp_path}", None)
    path = tmp_path / "train/a/1.png"
    if change == "content":
        _write(path, _encoded(_pixels(4, 4)))
    elif change == "time":
        os.utime(path, (1, 1))
    elif change == "added":
        _write(tmp_path / "train/a/2.png", path.read_bytes())
    else:
        path.unlink()
    assert fresh(f"folder:{tmp_path}", None)[1]
    assert not fresh(f"folder:{tmp_path}", None)[1]


def test_the_users_cache_serves_a_folder_that_cannot_be_written(tmp_path, fresh):
    root = tmp_path / "set"
    _write_folder(root)
    _write(root / ".fedjax_ht_cache", "a file where the folder would be")
    assert fresh(f"folder:{root}", None)[1]
    assert len(list((tmp_path / "user/fedjax_ht").iterdir())) == 1
    assert not fresh(f"folder:{root}", None)[1]


def test_nothing_writable_is_no_error(tmp_path, fresh):
    root = tmp_path / "set"
    _write_folder(root)
    for path in (root / ".fedjax_ht_cache", tmp_path / "user"):
        _write(path, "a file where the folder would be")
    assert fresh(f"folder:{root}", None)[1]
    assert len(fresh(f"folder:{root}", None)[0].labels) == 3


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
    images = _pixels(4, 6, 5, 3)
    np.savez(tmp_path / "own.npz", **{keys[0]: stored(images), keys[1]: np.array([0, 2, 1, 2])})
    dataset = load_dataset("npz:own.npz", tmp_path)
    np.testing.assert_array_equal(dataset.images, expected(images))
    assert dataset.labels.tolist() == [0, 2, 1, 2] and dataset.class_names == ("0", "1", "2")
    assert dataset.name == "npz:own.npz" and dataset.official == {} and dataset.images.flags.c_contiguous


def test_npz_of_train_and_test(tmp_path):
    x = _pixels(5, 4, 4)
    arrays = {"x_train": x[:3], "y_train": [[0], [1], [0]], "x_test": x[3:], "y_test": [[1], [1]]}
    np.savez_compressed(tmp_path / "own.npz", **arrays)
    dataset = load_dataset(f"npz:{tmp_path}/own.npz")
    np.testing.assert_array_equal(dataset.images[..., 0], x)
    assert dataset.labels.tolist() == [0, 1, 0, 1, 1]
    assert {k: v.tolist() for k, v in dataset.official.items()} == {"train": [0, 1, 2], "test": [3, 4]}
    assert load_dataset(f"npz:{tmp_path}/own.npz", image_size=2).images.shape == (5, 2, 2, 1)


BYTES = np.zeros((2, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"images": BYTES.astype(int), "labels": [0, 1]}, "int64 images"),
        ({"images": BYTES + 255.0, "labels": [0, 1]}, "from 255.0 to 255.0"),
        ({"images": BYTES - 1.5, "labels": [0, 1]}, "from -1.5"),
        ({"images": BYTES * np.nan, "labels": [0, 1]}, "nan"),
        ({"images": np.zeros((2, 4, 4, 2), np.uint8), "labels": [0, 1]}, "(2, 4, 4, 2)"),
        ({"images": BYTES, "labels": [0.0, 1.0]}, "float64"),
        ({"images": BYTES, "labels": [0, -1]}, "labels run from -1"),
        ({"images": BYTES, "labels": [0, 1, 2]}, "2 images but labels of shape (3,)"),
        ({"images": BYTES, "labels": 3}, "labels are int64 ()"),
        ({"images": BYTES, "targets": [0, 1]}, "its arrays are images, targets"),
        ({"images": np.array([{}, {}]), "labels": [0, 1]}, "pickle"),
    ],
)
def test_npz_of_something_else(tmp_path, arrays, reason):
    np.savez(tmp_path / "own.npz", **arrays)
    message = _error(ValueError, "npz:own.npz", tmp_path)
    assert message.startswith(str(tmp_path / "own.npz")) and reason in message


def test_no_npz(tmp_path):
    assert "own.npz" in _error(FileNotFoundError, "npz:own.npz", tmp_path)
    for content in (b"", b"no zip", b"PK\x03\x04 damaged"):
        (tmp_path / "own.npz").write_bytes(content)
        assert _error(ValueError, "npz:own.npz", tmp_path).startswith(str(tmp_path / "own.npz"))
    np.save(tmp_path / "own.npy", BYTES)
    assert "single array" in _error(ValueError, "npz:own.npy", tmp_path)


# Client folders


def _write_clients(root: Path, counts=((3, 1), (0, 2)), channels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    total = sum(map(sum, counts))
    images, labels, start = _pixels(total, channels, 4, 4), np.arange(total) % 3, 0
    x = ((images.astype(np.float32) / 255) - 0.5) / 0.5
    for client, both in enumerate(counts):
        for split, count in zip(("train", "test"), both):
            part = slice(start, start + count)
            (root / split).mkdir(parents=True, exist_ok=True)
            np.savez_compressed(root / split / f"{client}.npz", data={"x": x[part], "y": labels[part]})
            start += count
    (root / "config.json").write_text(json.dumps({"num_clients": len(counts), "num_classes": 4}))
    return images.transpose(0, 2, 3, 1), labels


@pytest.mark.parametrize("channels", [1, 3])
def test_client_folders(tmp_path, channels):
    images, labels = _write_clients(tmp_path / "made", channels=channels)
    dataset = load_dataset("client_folders:made", tmp_path)
    np.testing.assert_array_equal(dataset.images, images)
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.num_classes == 4 and dataset.official == {} and dataset.images.flags.c_contiguous
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
    message = _error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "test/0.npz")) and "functools.partial" in message
    assert not target.exists()


GOOD = {"x": np.zeros((2, 1, 4, 4), np.float32), "y": np.array([0, 1])}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"data": GOOD | {"x": GOOD["x"] + 1.5}}, "x runs from 1.5"),
        ({"data": GOOD | {"x": GOOD["x"] * np.nan}}, "x runs from nan"),
        ({"data": GOOD | {"x": GOOD["x"].astype(np.uint8)}}, "not a dict of float x"),
        ({"data": GOOD | {"y": np.array([0])}}, "not a dict of float x"),
        ({"data": GOOD["x"]}, "not a dict of float x"),
        ({"other": GOOD}, "data.npy"),
    ],
)
def test_damaged_client_folders(tmp_path, arrays, reason):
    _write_clients(tmp_path)
    np.savez(tmp_path / "train/1.npz", **arrays)
    message = _error(ValueError, f"client_folders:{tmp_path}")
    assert message.startswith(str(tmp_path / "train/1.npz")) and reason in message


@pytest.mark.parametrize("config", ["{", "[]", '{"num_clients": 2}', '{"num_clients": 0, "num_classes": 4}'])
def test_client_folders_with_another_config(tmp_path, config):
    _write_clients(tmp_path)
    (tmp_path / "config.json").write_text(config)
    assert _error(ValueError, f"client_folders:{tmp_path}").startswith(str(tmp_path / "config.json"))


def test_client_folders_with_missing_files(tmp_path):
    _write_clients(tmp_path)
    (tmp_path / "test/1.npz").unlink()
    assert _error(FileNotFoundError, f"client_folders:{tmp_path}").startswith(str(tmp_path / "test/1.npz"))
    assert "config.json" in _error(FileNotFoundError, f"client_folders:{tmp_path}/none")


# tensorflow-datasets


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A tensorflow-datasets folder with the set "tiny", prepared in array_record format: 3 images and 2 of test."""
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record")

    class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(8, 6, 3)),
                "label": tfds.features.ClassLabel(names=["a", "b"]),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("image", "label")
            )

        def _split_generators(self, dl_manager):
            return {"test": self._generate_examples([3, 4]), "train": self._generate_examples([0, 1, 2])}

        def _generate_examples(self, values):
            for i in values:
                yield i, {"image": io.BytesIO(_encoded(np.full((8, 6, 3), i, np.uint8))), "label": i % 2}

    root = tmp_path_factory.mktemp("tfds")
    Tiny(data_dir=root, file_format="array_record").download_and_prepare()
    return root


def test_tfds(prepared):
    dataset = load_dataset("tfds:tiny", prepared)
    values = dataset.images[:, 0, 0, 0]
    assert dataset.images.shape == (5, 8, 6, 3) and dataset.class_names == ("a", "b")
    assert {k: sorted(values[v].tolist()) for k, v in dataset.official.items()} == {"train": [0, 1, 2], "test": [3, 4]}
    np.testing.assert_array_equal(dataset.labels, values % 2)
    assert load_dataset("tfds:tiny:1.0.0", prepared, 4).images.shape == (5, 4, 4, 3)
    assert "tensorflow" not in sys.modules


def test_tfds_not_prepared(prepared):
    for name in ("tfds:other", "tfds:tiny:2.0.0"):
        message = _error(FileNotFoundError, name, prepared)
        assert "pip install 'fedjax_ht[tfds]'" in message and "download_and_prepare()" in message


def test_tfds_in_a_format_of_tensorflow(prepared, tmp_path):
    for path in (prepared / "tiny/1.0.0").iterdir():
        content = path.read_bytes()
        if path.name == "dataset_info.json":
            assert b'"array_record"' in content
            content = content.replace(b'"array_record"', b'"tfrecord"')
        _write(tmp_path / "tiny/1.0.0" / path.name, content)
    message = _error(ValueError, "tfds:tiny", tmp_path)
    assert "prepared as tfrecord" in message and "download_and_prepare()" in message


def test_tfds_of_two_versions(prepared, tmp_path):
    for version in ("1.0.0", "2.0.0"):
        _write(tmp_path / f"tiny/{version}/dataset_info.json", "{}")
    assert "(tiny/1.0.0, tiny/2.0.0)" in _error(ValueError, "tfds:tiny", tmp_path)


def test_tfds_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    _write(tmp_path / "tiny/1.0.0/dataset_info.json", "{}")
    assert "pip install 'fedjax_ht[tfds]'" in _error(ImportError, "tfds:tiny", tmp_path)


# Decoding and resizing


def test_resize_takes_the_central_square():
    image = np.zeros((1, 4, 8, 3), np.uint8)
    image[:, :, 2:6] = 200
    assert (resize(image, 2) == 200).all()
    assert (resize(image.transpose(0, 2, 1, 3), 2) == 200).all()
    assert (decode("wide", _encoded(image[0]), 2) == 200).all()
    assert resize(image, None).shape == (1, 4, 8, 3)
    assert resize(image[..., :1], 3).shape == (1, 3, 3, 1)


def test_resize_averages():
    image = np.zeros((1, 4, 4, 1), np.uint8)
    image[:, ::2] = 200  # anti-aliased: no row is dropped
    assert abs(resize(image, 1).item() - 100) <= 1


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)])
def test_image_modes(mode, channels):
    file = io.BytesIO()
    Image.fromarray(np.full((5, 4, 3), 255, np.uint8)).convert(mode).save(file, "PNG")
    assert (decode(mode, file.getvalue(), None) == np.full((5, 4, channels), 255)).all()


def test_truncated_image():
    content = _encoded(_pixels(40, 40, 3), "JPEG")
    with pytest.raises(ValueError, match="image a/b cannot be decoded"):
        decode("a/b", content[: len(content) // 2], None)


def test_stack_of_grey_and_colour():
    stacked = stack([np.full((2, 2, 1), 7, np.uint8), np.full((2, 2, 3), 8, np.uint8)])
    assert stacked.shape == (2, 2, 2, 3) and stacked[:, 0, 0].tolist() == [[7] * 3, [8] * 3]
