"""Sets of photographs, from tiny ones laid out as their publishers do."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import encoded, load_error, pixels, refused, sets, write


def _zip(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder.parent))


def _write_tiny_imagenet(root: Path) -> tuple[Path, list[np.ndarray]]:
    """Two training images of each of two classes (one grey) and three of validation, in PNG."""
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
    for path in (folder / "train/n02/images").iterdir():
        path.unlink()
    refused("such as n02", "tiny_imagenet", tmp_path)
    (folder / "val/val_annotations.txt").unlink()
    refused("val/val_annotations.txt", "tiny_imagenet", tmp_path)


# Camelyon17

COLUMNS = ",patient,node,x_coord,y_coord,tumor,slide,center,split"
ROWS = (  # patient, node, x, y, tumor, slide, center, split
    ("004", 4, 3328, 21792, 1, 0, 0, 0),
    ("004", 4, 3200, 22272, 0, 0, 0, 1),
    ("020", 2, 9824, 3808, 1, 10, 1, 0),
    ("040", 1, 5152, 320, 0, 20, 2, 1),
    ("099", 4, 96, 96, 1, 49, 4, 0),
)


def write_camelyon17(root: Path) -> list[np.ndarray]:
    images = [pixels(96, 96, 3) for _ in ROWS]
    for (patient, node, x, y, *_), image in zip(ROWS, images):
        name = f"patient_{patient}_node_{node}"
        write(root / f"patches/{name}/patch_{name}_x_{x}_y_{y}.png", encoded(image))
    lines = [f"{i}," + ",".join(map(str, row)) for i, row in enumerate(ROWS)]
    write(root / "metadata.csv", "\n".join([COLUMNS, *lines]) + "\n")
    return images


@pytest.mark.parametrize("folder", ["", "camelyon17", "camelyon17_v1.0"])
def test_camelyon17(tmp_path, folder):
    images = write_camelyon17(tmp_path / folder)
    for _ in range(2):  # the second from the cache
        dataset = load_dataset("camelyon17", tmp_path)
        np.testing.assert_array_equal(dataset.inputs, images)
        assert dataset.labels.tolist() == [1, 0, 1, 0, 1]
        assert dataset.class_names == ("normal", "tumor")
        assert dataset.groups.tolist() == [0, 0, 1, 2, 4]
        official = {"train": [0, 4], "id_val": [1], "val": [2], "test": [3]}
        assert sets(dataset) == official
        tmp_path = tmp_path / "."
    assert load_dataset("camelyon17", tmp_path, 32).inputs.shape == (5, 32, 32, 3)


def test_damaged_camelyon17(tmp_path):
    assert "data get" not in load_error(FileNotFoundError, "camelyon17", tmp_path)
    write_camelyon17(tmp_path)
    table = (tmp_path / "metadata.csv").read_text()
    for old, new, reason in (
        ("center", "hospital", "metadata.csv has no column center"),
        ("004,4,3328", "../4,4,3328", "row 1 of metadata.csv is"),
        ("3200,22272,0,0,0,1", "3200,22272,none,0,0,1", "row 2 of metadata.csv is"),
        ("3200,22272,0,0,0,1", "3200,22272,7,0,0,1", "labels run from 0 to 7"),
        ("3200", "3201", "1 of 5 images are missing"),
    ):
        write(tmp_path / "metadata.csv", table.replace(old, new))
        message = load_error(ValueError, "camelyon17", tmp_path)
        assert message.startswith(f"{tmp_path}: ") and reason in message
    write(tmp_path / "metadata.csv", COLUMNS)
    refused("it has no rows", "camelyon17", tmp_path)
