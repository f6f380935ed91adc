"""Images of several domains and hospitals, laid out as their publishers do."""

from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.data.partition import make_partition
from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import encoded, load_error, pixels, refused, sets, write

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
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "domain amazon has no images of 1 of the classes: pen",
        "domain webcam has no images of 1 of the classes: mug",
    ]
    clients = make_partition("natural", dataset, 2, train_share=0.5)
    assert [sorted(np.concatenate(client)) for client in clients] == [[0, 1], [2, 3, 4]]


def test_decoded_domains_are_kept(tmp_path):
    write_domains(tmp_path)
    first = load_dataset("domains:.", tmp_path)
    again = load_dataset("domains:./", tmp_path)
    assert list(tmp_path.glob(".fedjax_ht_cache/domains-64-*.npz")) and again is not first
    for name in ("inputs", "labels", "groups"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
    assert load_dataset("domains:.", tmp_path, 8).inputs.shape == (5, 8, 8, 3)


LISTS = {  # classes in another order, and one image in no list
    "amazon_train": "amazon/mug/b.jpg 0\n",
    "amazon_test": "amazon/bike/a.png 1\n",
    "webcam_train": "webcam/bike/c.PNG 1\nwebcam/pen/e.png 2\n",
    "webcam_test": "",
    "quickdraw_test": "quickdraw/x/y.png 7\n",
}


def write_lists(root: Path, **lists: str) -> None:
    for name, text in (LISTS | lists).items():
        write(root / f"splits/{name}.txt", text)


def test_the_lists_of_domainnet(tmp_path):
    write_domains(tmp_path)
    write_lists(tmp_path)
    dataset = load_dataset("domains:.", tmp_path)
    assert dataset.class_names == ("mug", "bike", "pen") and dataset.labels.tolist() == [0, 1, 2, 1]
    assert dataset.inputs.mean((1, 2, 3)).tolist() == pytest.approx([40, 80, 160, 0], abs=1)
    assert dataset.groups.tolist() == [0, 1, 1, 0]
    assert sets(dataset) == {"train": [0, 1, 2], "test": [3]}


@pytest.mark.parametrize(
    ("lists", "reason"),
    [
        ({"amazon_train": "amazon/mug/x.jpg 0\n"}, "1 of 4 images of the lists are missing, such"),
        ({"amazon_train": "amazon/mug/b.jpg\n"}, "line 1 of splits/amazon_train.txt is"),
        ({"amazon_train": "webcam/pen/e.png 0\n"}, "line 1 of splits/amazon_train.txt"),
        ({"amazon_train": "amazon/mug/b.jpg 5\n"}, "the lists give 3 classes 3 numbers; each"),
        ({"amazon_train": "amazon/mug/b.jpg 1\n"}, "the lists give 3 classes 3 numbers"),
        ({"webcam_train": "webcam/bike/c.PNG 3\nwebcam/pen/e.png 2\n"}, "the lists give 3"),
        ({"amazon_test": "amazon/mug/b.jpg 0\n"}, "an image is in a train and a test list"),
    ],
)
def test_lists_that_do_not_fit_are_one_line(tmp_path, lists, reason):
    write_domains(tmp_path)
    write_lists(tmp_path, **lists)
    message = load_error(ValueError, "domains:.", tmp_path)
    assert message.startswith(f"{tmp_path}: ") and reason in message


def test_lists_of_some_domains_only(tmp_path):
    write_domains(tmp_path)
    write(tmp_path / "splits/webcam_train.txt", LISTS["webcam_train"])
    refused("no splits/amazon_train.txt, but lists of other domains", "domains:.", tmp_path)
    write(tmp_path / "splits/amazon_train.txt", LISTS["amazon_train"])
    refused("there are no lists of one of the two", "domains:.", tmp_path)


def test_no_domains(tmp_path):
    refused("no such folder", "domains:office", tmp_path, kind=FileNotFoundError)
    write(tmp_path / "a/1.png", encoded(pixels(8, 8)))  # a folder of classes, without domains
    refused("no images", "domains:.", tmp_path)
    write(tmp_path / "a/b/1.png", b"no image")
    refused("a/b/1.png cannot be decoded", "domains:.", tmp_path)


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
        (
            "3200",
            "3201",
            "1 of 5 images are missing, such as patches/patient_004_node_4/patch_patient_004_node_4_x_3201",
        ),
    ):
        write(tmp_path / "metadata.csv", table.replace(old, new))
        message = load_error(ValueError, "camelyon17", tmp_path)
        assert message.startswith(f"{tmp_path}: ") and reason in message
    write(tmp_path / "metadata.csv", COLUMNS)
    refused("it has no rows", "camelyon17", tmp_path)
