"""Folders of images: their classes, sets and domains, and what is left out of them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedjax_ht as fl
from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import encoded, load_error, pixels, refused, write

CLASSES = ("ant", "bee", "cow")


def write_images(root: Path, *folders: str, count: int = 2) -> None:
    """Writes images of one colour a folder."""
    for number, folder in enumerate(folders):
        for i in range(count):
            image = np.full((4, 4), 100 + 10 * number + i, np.uint8)
            write(root / folder / f"{i}.png", encoded(image))


def in_sets(*sets: str) -> list[str]:
    return [f"{name}/{label}" for name in sets for label in CLASSES]


LAYOUTS = {  # folders, and the official sets that they are
    ("Training", "Testing"): {"train", "test"},
    ("TRAIN", "Valid", "TEST"): {"train", "val", "test"},
    ("training_set", "test_set"): {"train", "test"},
    ("seg_train/seg_train", "seg_test/seg_test"): {"train", "test"},
    ("data/train", "data/dev"): {"train", "val"},
    ("brain/scans/Train", "brain/scans/Test"): {"train", "test"},
    ("train/images", "validation/images"): {"train", "val"},
    ("train-images", "test-images"): {"train", "test"},
    ("train2017", "val2017"): {"train", "val"},
    ("train",): {"train"},
    ("archive/Train",): {"train"},
}


@pytest.mark.parametrize("sets", LAYOUTS, ids="+".join)
def test_sets_by_any_usual_name(tmp_path, sets):
    write_images(tmp_path, *in_sets(*sets))
    dataset = load_dataset(f"folder:{tmp_path}")
    assert dataset.class_names == CLASSES and set(dataset.official) == LAYOUTS[sets]
    assert sum(map(len, dataset.official.values())) == len(dataset.labels) == 6 * len(sets)
    assert fl.describe(dataset).classes == dict.fromkeys(CLASSES, 2 * len(sets))


def test_a_class_may_be_called_train(tmp_path, caplog):
    write_images(tmp_path, "bus", "car", "train")
    assert load_dataset(f"folder:{tmp_path}").class_names == ("bus", "car", "train")
    (line,) = caplog.messages
    assert line.endswith("class train is named like a set but is read as a class")


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        (("Training", "Testing"), "Testing, Training would be a class by its images"),
        (("a/train", "a/test"), "test, train would be a class by its images"),
        (("train/ant", "train/bee", "test"), "test would be a class by its images"),
        (("train/ant", "train/bee", "bus"), "train is named like a set and has subfolders"),
        (("train/ant", "training/ant"), "train and training are both named like a set to train"),
        (("ant/train", "ant/test", "bee/train", "bee/test"), "each have the folders test, train"),
        (("fold1/ant", "fold1/bee", "fold2/ant", "fold2/bee"), "each have the folders ant, bee"),
        (("train/dev", "train/test", "test/dev", "test/train"), "classes would be dev, test"),
        (("domains:", "a/train", "a/test", "b/train", "b/test"), "classes would be test, train"),
        (("domains:", "train/ant", "train/bee", "test/ant"), "its domains would be test, train"),
    ],
)
def test_folders_that_may_be_either_are_refused(tmp_path, folders, reason):
    prefix = "domains:" if folders[0] == "domains:" else "folder:"
    write_images(tmp_path, *(folder for folder in folders if folder != prefix))
    message = load_error(ValueError, f"{prefix}{tmp_path}")
    assert message.startswith(f"{tmp_path}: ") and reason in message


def test_nothing_is_left_out_in_silence(tmp_path, caplog):
    write_images(tmp_path, "train/ant", "train/bee", "test/ant", "test/bee", "extra/fly", "train")
    write_images(tmp_path, ".", count=1)
    for name in ("test/ant/9.heic", "test/ant/8.HEIC", "test/ant/plain", "readme.txt"):
        write(tmp_path / name, b"no image")
    for name in (".hidden/1.png", "test/ant/._0.png"):
        write(tmp_path / name, b"of the system")
    for _ in range(2):  # the second from memory
        dataset = load_dataset(f"folder:{tmp_path}")
        (line,) = caplog.messages
        caplog.clear()
    for part in (
        "1 file without an ending (unsupported image format)",
        "2 files .heic (unsupported image format)",
        "1 file .txt",
        "2 images in extra/fly (not in a class folder)",
        "2 images in train (not in a class folder)",
        "1 image outside of folders (not in a class folder)",
    ):
        assert part in line and part in fl.describe(dataset).lines[1]
    assert len(dataset.labels) == 8


def test_domains_below_another_folder(tmp_path, caplog):
    write_images(tmp_path / "pacs", *in_sets("art", "photo"))
    dataset = load_dataset(f"domains:{tmp_path}")
    assert dataset.class_names == CLASSES and not caplog.messages
    assert fl.describe(dataset).groups == {"art": 6, "photo": 6}
    load_dataset(f"domains:{tmp_path}/pacs/art/..", image_size=8)
    write_images(tmp_path / "alone", "art/ant", "art/bee")
    load_dataset(f"domains:{tmp_path}/alone")
    (line,) = caplog.messages
    assert line.endswith(": all images are of one domain, art")


def test_folder_per_class(tmp_path):
    cat, dogs = pixels(9, 8, 3), [pixels(9, 8), pixels(9, 8, 3)]
    write(tmp_path / "cat/deeper/a.png", encoded(cat))
    write(tmp_path / "dog/a.PNG", encoded(dogs[0]))
    write(tmp_path / "dog/b.bmp", encoded(dogs[1], "BMP"))
    dataset = load_dataset(f"folder:{tmp_path}")
    np.testing.assert_array_equal(dataset.inputs, [cat, np.dstack([dogs[0]] * 3), dogs[1]])
    assert dataset.labels.tolist() == [0, 1, 1] and dataset.class_names == ("cat", "dog")
    assert dataset.official == {}


def test_folders_of_no_images_or_several_sizes_are_refused(tmp_path):
    refused("no such folder", f"folder:{tmp_path}/none", kind=FileNotFoundError)
    refused("no images", f"folder:{tmp_path}")
    write(tmp_path / "a/1.png", encoded(pixels(4, 4)))
    write(tmp_path / "a/2.png", encoded(pixels(4, 5)))
    refused("2 sizes, from (4, 4) to (4, 5); set image_size", f"folder:{tmp_path}")
    assert load_dataset(f"folder:{tmp_path}", image_size=3).inputs.shape == (2, 3, 3, 1)
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "a/3.png")
    refused("a/3.png cannot be decoded (more than 8 bits a channel;", f"folder:{tmp_path}")


FILES = (
    ("amazon", "bike/a.png"),
    ("amazon", "mug/b.jpg"),
    ("webcam", "bike/c.PNG"),
    ("webcam", "bike/sub/d.png"),
    ("webcam", "pen/e.png"),
)


def write_domains(root: Path, below: str = "") -> None:
    for i, (domain, name) in enumerate(FILES):
        image = np.full((70 + i, 90, 3), 40 * i, np.uint8)
        write(root / domain / below / name, encoded(image if i else image[..., 0]))


@pytest.mark.parametrize("below", ["", "images"])
def test_domains(tmp_path, caplog, below):
    write_domains(tmp_path / "office", below)
    write(tmp_path / "office/readme.txt", "no domain")
    dataset = load_dataset("domains:office", tmp_path)
    assert dataset.inputs.shape == (5, 64, 64, 3)
    assert dataset.inputs.mean((1, 2, 3)).tolist() == pytest.approx([0, 40, 80, 120, 160], abs=1)
    assert dataset.class_names == ("bike", "mug", "pen")
    assert dataset.labels.tolist() == [0, 1, 0, 0, 2]
    assert dataset.groups.tolist() == [0, 0, 1, 1, 1] and dataset.official == {}
    first, second = caplog.messages
    assert first.endswith("domain amazon has no images of 1 of the classes: pen")
    assert second.endswith("domain webcam has no images of 1 of the classes: mug")


def test_no_domains(tmp_path):
    refused("no such folder", "domains:office", tmp_path, kind=FileNotFoundError)
    write(tmp_path / "a/1.png", encoded(pixels(8, 8)))  # a folder of classes, without domains
    refused("no images", "domains:.", tmp_path)
    write(tmp_path / "a/b/1.png", b"no image")
    refused("a/b/1.png cannot be decoded", "domains:.", tmp_path)
