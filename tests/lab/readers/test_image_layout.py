"""Classes and sets of folders of images, and what is left out of them."""

from pathlib import Path

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import encoded, load_error, refused, write

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


def test_a_folder_without_sets_below_another(tmp_path, caplog):
    write_images(tmp_path, *(f"archive/{label}" for label in CLASSES))
    dataset = load_dataset(f"folder:{tmp_path}")
    assert dataset.class_names == CLASSES and dataset.official == {} and not caplog.messages
    assert "classes are the folders below archive" in fl.describe(dataset).lines[0]


def test_classes_with_folders_of_one_name_are_said(tmp_path, caplog):
    write_images(tmp_path, "one/ant", "one/bee", "two/ant")
    load_dataset(f"folder:{tmp_path}")
    (line,) = caplog.messages
    assert "one, two are taken for classes, and have folders of one name, ant: if those are" in line


def test_a_class_may_be_called_train(tmp_path, caplog):
    write_images(tmp_path, "bus", "car", "train")
    assert load_dataset(f"folder:{tmp_path}").class_names == ("bus", "car", "train")
    (line,) = caplog.messages
    assert line.endswith("class train is called like a set, and is read as a class")


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        (("Training", "Testing"), "Testing, Training would be a class by its images"),
        (("a/train", "a/test"), "test, train would be a class by its images"),
        (("train/ant", "train/bee", "test"), "test would be a class by its images"),
        (("train/ant", "train/bee", "bus"), "train is called like a set and has folders in it"),
        (("train/ant", "training/ant"), "train and training are both called like a set to train"),
        (("ant/train", "ant/test", "bee/train", "bee/test"), "each have the folders test, train"),
        (("fold1/ant", "fold1/bee", "fold2/ant", "fold2/bee"), "each have the folders ant, bee"),
        (("train/dev", "train/test", "test/dev", "test/train"), "classes would be dev, test"),
    ],
)
def test_folders_that_may_be_either_are_refused(tmp_path, folders, reason):
    write_images(tmp_path, *folders)
    message = load_error(ValueError, f"folder:{tmp_path}")
    assert message.startswith(f"{tmp_path}: ") and reason in message


def test_sets_that_lack_a_class_are_said(tmp_path, caplog):
    write_images(tmp_path, "train/ant", "train/bee", "test/ant", "test/Bee")
    dataset = load_dataset(f"folder:{tmp_path}")
    assert dataset.class_names == ("Bee", "ant", "bee")
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        "set test has no images of 1 classes: bee",
        "set train has no images of 1 classes: Bee",
    ]


# What is left out


def test_nothing_is_left_out_in_silence(tmp_path, caplog):
    write_images(tmp_path, "train/ant", "train/bee", "test/ant", "test/bee", "extra/fly", "train")
    write_images(tmp_path, ".", count=1)
    (tmp_path / "train/cow").mkdir()
    for name in ("test/ant/9.heic", "test/ant/8.HEIC", "test/ant/plain", "readme.txt"):
        write(tmp_path / name, b"no image")
    for name in (".hidden/1.png", "test/ant/._0.png"):
        write(tmp_path / name, b"of the system")
    for _ in range(2):  # the second from memory
        dataset = load_dataset(f"folder:{tmp_path}")
        (line,) = caplog.messages
        caplog.clear()
    for part in (
        "1 file without an ending (no kind of image that is read)",
        "2 files .heic (no kind of image that is read)",
        "1 file .txt",
        "folder train/cow (no images in it)",
        "2 images in extra/fly (in no folder of a class)",
        "2 images in train (in no folder of a class)",
        "1 image outside of folders (in no folder of a class)",
    ):
        assert part in line and part in fl.describe(dataset).lines[1]
    assert len(dataset.labels) == 8


def test_what_stands_beside_images_is_no_warning(tmp_path, caplog):
    write_images(tmp_path, "ant", "bee")
    write(tmp_path / "labels.csv", "a,b")
    dataset = load_dataset(f"folder:{tmp_path}")
    assert not caplog.messages
    assert (
        fl.describe(dataset)
        .lines[1]
        .endswith("left out: 1 file .csv (no kind of image that is read)")
    )


def test_domains_say_what_they_leave_out(tmp_path, caplog):
    write_images(tmp_path, "clinic/ant", "clinic/bee", "home/ant", "home/bee", "clinic")
    (tmp_path / "office").mkdir()
    load_dataset(f"domains:{tmp_path}")
    (line,) = caplog.messages
    assert "folder office (no images in it), 2 images in clinic (in no folder of a class of" in line


def test_domains_below_another_folder(tmp_path, caplog):
    write_images(
        tmp_path, *(f"pacs/{name}/{label}" for name in ("art", "photo") for label in CLASSES)
    )
    dataset = load_dataset(f"domains:{tmp_path}")
    assert dataset.class_names == CLASSES and not caplog.messages
    assert fl.describe(dataset).groups == {"art": 6, "photo": 6}
    load_dataset(f"domains:{tmp_path}/pacs/art/..", image_size=8)
    write_images(tmp_path / "alone", "art/ant", "art/bee")
    load_dataset(f"domains:{tmp_path}/alone")
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        "all images are of one domain, art"
    ]


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        (("a/train", "a/test", "b/train", "b/test"), "its classes would be test, train"),
        (("train/ant", "train/bee", "test/ant", "test/bee"), "its domains would be test, train"),
    ],
)
def test_domains_that_are_sets_are_refused(tmp_path, folders, reason):
    write_images(tmp_path, *folders)
    refused(reason, f"domains:{tmp_path}")


def test_a_link_in_a_circle_is_refused(tmp_path):
    write_images(tmp_path, "ant", "bee")
    (tmp_path / "ant/up").symlink_to(tmp_path)
    refused("ant/up is a link to a folder that it is in", f"folder:{tmp_path}")
