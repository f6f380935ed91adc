"""Sets of image files, from tiny ones laid out as their publishers do."""

import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import encoded, load_error, pixels, refused, sets, write


def _tar(folder: Path, archive: Path, mode: str = "w:gz") -> None:
    with tarfile.open(archive, mode) as file:
        file.add(folder, folder.name)


def _zip(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder.parent))


# Sets of encoded images


def _write_tiny_imagenet(root: Path) -> tuple[Path, list[np.ndarray]]:
    """Two training images of each of two classes (one grey) and three of validation, in PNG to
    compare exactly."""
    folder = root / "tiny-imagenet-200"
    images = [pixels(64, 64, 3) for _ in range(7)]
    images[1] = images[1][..., 0]
    names = [f"train/{wnid}/images/{wnid}_{i}.JPEG" for wnid in ("n01", "n02") for i in range(2)]
    names += [f"val/images/val_{i}.JPEG" for i in range(3)]
    for name, image in zip(names, images):
        write(folder / name, encoded(image))
    write(folder / "train/n01/n01_boxes.txt", "n01_0.JPEG\t0\t0\t9\t9\n")
    write(folder / "test/images/test_0.JPEG", encoded(pixels(64, 64, 3)))
    boxes = "".join(
        f"val_{i}.JPEG\t{wnid}\t0\t0\t9\t9\n" for i, wnid in ((2, "n02"), (0, "n01"), (1, "n02"))
    )
    write(folder / "val/val_annotations.txt", boxes)
    order = [*range(4), 6, 4, 5]  # validation images in the order of the annotations
    return folder, [np.broadcast_to(images[i].reshape(64, 64, -1), (64, 64, 3)) for i in order]


@pytest.mark.parametrize("form", ["folder", "zip", "inside"])
def test_tiny_imagenet(tmp_path, form):
    folder, images = _write_tiny_imagenet(tmp_path / "made")
    if form == "zip":
        _zip(folder, tmp_path / "tiny-imagenet-200.zip")
    data_dir = {"folder": folder.parent, "zip": tmp_path, "inside": folder}[form]
    dataset = load_dataset("tiny_imagenet", data_dir)
    np.testing.assert_array_equal(dataset.inputs, images)
    assert dataset.labels.tolist() == [0, 0, 1, 1, 1, 0, 1]
    assert dataset.class_names == ("n01", "n02")
    assert sets(dataset) == {"train": [0, 1, 2, 3], "test": [4, 5, 6]}
    assert load_dataset("tiny_imagenet", data_dir, 32).inputs.shape == (7, 32, 32, 3)


def test_tiny_imagenet_with_missing_files(tmp_path):
    folder, _ = _write_tiny_imagenet(tmp_path)
    (folder / "val/images/val_2.JPEG").unlink()
    message = load_error(ValueError, "tiny_imagenet", tmp_path)
    assert "1 of 7 images are missing, such as val/images/val_2.JPEG" in message
    assert "Stanford" in message
    (folder / "val/val_annotations.txt").unlink()
    refused("val/val_annotations.txt", "tiny_imagenet", tmp_path)


def test_tiny_imagenet_class_without_training_images(tmp_path):
    folder, _ = _write_tiny_imagenet(tmp_path)
    for path in (folder / "train/n02/images").iterdir():
        path.unlink()
    refused("such as n02", "tiny_imagenet", tmp_path)


def test_truncated_zip(tmp_path):
    folder, _ = _write_tiny_imagenet(tmp_path / "made")
    archive = tmp_path / "tiny-imagenet-200.zip"
    _zip(folder, archive)
    archive.write_bytes(archive.read_bytes()[:-50])
    assert load_error(ValueError, "tiny_imagenet", tmp_path).startswith(str(archive))


def _write_flowers(root: Path) -> list[np.ndarray]:
    images = [
        np.full((h, w, 3), 30 * i, np.uint8)
        for i, (h, w) in enumerate([(80, 100), (90, 70), (64, 64), (70, 200)])
    ]
    for i, image in enumerate(images, 1):
        write(root / f"jpg/image_{i:05d}.jpg", encoded(image, "JPEG"))
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
    assert dataset.inputs.shape == (4, 64, 64, 3) and dataset.num_classes == 102
    np.testing.assert_allclose(dataset.inputs.mean((1, 2, 3)), [0, 30, 60, 90], atol=1)
    assert dataset.labels.tolist() == [0, 101, 4, 4]
    assert sets(dataset) == {"train": [2, 0], "val": [1], "test": [3]}
    assert load_dataset("flowers102", tmp_path, 16).inputs.shape == (4, 16, 16, 3)


def test_damaged_flowers102(tmp_path):
    _write_flowers(tmp_path)
    (tmp_path / "jpg/image_00002.jpg").write_bytes(b"\xff\xd8 no image")
    refused("image image_00002 cannot be decoded", "flowers102", tmp_path)
    (tmp_path / "jpg/image_00002.jpg").unlink()
    refused("such as image_00002", "flowers102", tmp_path)
    savemat(tmp_path / "setid.mat", {"trnid": [[3, 1]], "valid": [[2]], "tstid": [[5]]})
    assert load_error(ValueError, "flowers102", tmp_path).startswith(str(tmp_path / "setid.mat"))


def _write_food(root: Path) -> Path:
    folder = root / "food-101"
    lists = {"train": ["pie/10", "pie/9", "soup/1"], "test": ["soup/2", "pie/3"]}
    for split, keys in lists.items():
        write(folder / f"meta/{split}.txt", "\n".join(keys))
        for key in keys:
            write(
                folder / f"images/{key}.jpg",
                encoded(np.full((80, 120, 3), 20 * int(key[-1]), np.uint8), "JPEG"),
            )
    return folder


@pytest.mark.parametrize("form", ["folder", "archive", "inside"])
def test_food101(tmp_path, form):
    folder = _write_food(tmp_path / "made")
    if form == "archive":
        _tar(folder, tmp_path / "food-101.tar.gz")
    dataset = load_dataset(
        "food101", {"folder": folder.parent, "archive": tmp_path, "inside": folder}[form]
    )
    assert dataset.inputs.shape == (5, 64, 64, 3) and dataset.class_names == ("pie", "soup")
    np.testing.assert_allclose(dataset.inputs.mean((1, 2, 3)), [0, 180, 20, 40, 60], atol=1)
    assert dataset.labels.tolist() == [0, 0, 1, 1, 0]
    assert sets(dataset) == {"train": [0, 1, 2], "test": [3, 4]}


def test_folder_per_class(tmp_path):
    cat, dogs = pixels(9, 8, 3), [pixels(9, 8), pixels(9, 8, 3)]
    write(tmp_path / "cat/deeper/a.png", encoded(cat))
    write(tmp_path / "dog/a.PNG", encoded(dogs[0]))
    write(tmp_path / "dog/b.bmp", encoded(dogs[1], "BMP"))
    write(tmp_path / "dog/notes.txt", "no image")
    write(tmp_path / ".hidden/a.png", b"no image")
    write(tmp_path / "dog/._a.png", b"no image")
    dataset = load_dataset(f"folder:{tmp_path}")
    np.testing.assert_array_equal(dataset.inputs, [cat, np.dstack([dogs[0]] * 3), dogs[1]])
    assert dataset.labels.tolist() == [0, 1, 1] and dataset.class_names == ("cat", "dog")
    assert dataset.official == {}


def test_folder_of_splits_and_grey_images(tmp_path):
    for i, name in enumerate(["train/a/1", "train/b/1", "val/b/1", "test/a/1", "test/a/2"]):
        write(tmp_path / f"set/{name}.png", encoded(np.full((4, 4), i, np.uint8)))
    dataset = load_dataset("folder:set", tmp_path)
    assert dataset.inputs.shape == (5, 4, 4, 1) and dataset.class_names == ("a", "b")
    got = {split: dataset.inputs[i, 0, 0, 0].tolist() for split, i in dataset.official.items()}
    assert got == {"train": [0, 1], "val": [2], "test": [3, 4]}
    assert [int(dataset.labels[dataset.inputs[:, 0, 0, 0] == i][0]) for i in range(5)] == [
        0,
        1,
        1,
        0,
        0,
    ]


def test_a_class_may_be_called_train(tmp_path):
    for name in ("train", "tram"):
        write(tmp_path / name / "1.png", encoded(pixels(4, 4)))
    assert load_dataset(f"folder:{tmp_path}").class_names == ("train", "tram")


def test_folder_errors(tmp_path):
    refused("no such folder", f"folder:{tmp_path}/none", kind=FileNotFoundError)
    refused("no images", f"folder:{tmp_path}")
    write(tmp_path / "a/1.png", encoded(pixels(4, 4)))
    write(tmp_path / "a/2.png", encoded(pixels(4, 5)))
    refused("2 sizes, from (4, 4) to (4, 5); set image_size", f"folder:{tmp_path}")
    assert load_dataset(f"folder:{tmp_path}", image_size=3).inputs.shape == (2, 3, 3, 1)
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "a/3.png")
    mode = Image.open(tmp_path / "a/3.png").mode  # I;16, or I in older Pillows
    assert mode.startswith("I")
    assert f"a/3.png cannot be decoded (mode {mode}," in load_error(
        ValueError, f"folder:{tmp_path}"
    )
