"""Sets of sensor windows, as small files of the publishers' layouts."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.data.partition import make_partition
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.download import get
from fedjax_ht.lab.readers.motion import read_table
from fedjax_ht.lab.readers.source import SHIPPED
from fedjax_ht.lab.safe import limits
from tests.lab.readers.source_files import load_error, refused, sets, text, write

KINDS = ("folder", "zip", "its files")


def write_files(root: Path, name: str, files: dict[str, str], kind: str) -> Path:
    """The folder to read from."""
    files = (
        files
        if kind == "its files"
        else {f"{name}/{file}": content for file, content in files.items()}
    )
    if kind == "zip":
        root.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(root / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file, content in files.items():
                archive.writestr(file, content)
    else:
        for file, content in files.items():
            write(root / file, content)
    return root


# UCI HAR

SIGNALS = (
    *("body_acc_x", "body_acc_y", "body_acc_z", "body_gyro_x", "body_gyro_y", "body_gyro_z"),
    *("total_acc_x", "total_acc_y", "total_acc_z"),
)
PERSONS = {"train": (1, 1, 3, 3, 30, 30), "test": (2, 2, 4, 4)}


def har_files(seed: int = 0) -> tuple[dict[str, str], np.ndarray, np.ndarray]:
    """Files, and the windows [10, 128, 9] and labels [10] in them."""
    rng = np.random.default_rng(seed)
    windows, labels = (
        rng.normal(size=(10, 128, 9)).round(6),
        np.array([0, 5, 1, 2, 3, 4, 4, 0, 1, 1]),
    )
    files, start = {"activity_labels.txt": "1 WALKING\n", "train/X_train.txt": "of no use\n"}, 0
    for split, persons in PERSONS.items():
        rows = slice(start, start := start + len(persons))
        for i, signal in enumerate(SIGNALS):
            files[f"{split}/Inertial Signals/{signal}_{split}.txt"] = text(windows[rows, :, i])
        files[f"{split}/y_{split}.txt"] = text(labels[rows] + 1)
        files[f"{split}/subject_{split}.txt"] = text(np.array(persons))
    return files, windows, labels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("folder", ["", "har"])
def test_har(tmp_path, kind, folder):
    files, windows, labels = har_files()
    files["train/Inertial Signals/._body_acc_x_train.txt"] = "what a Mac adds"
    write_files(tmp_path / folder, "UCI HAR Dataset", files, kind)
    dataset = load_dataset("har", tmp_path)
    assert dataset.inputs.shape == (10, 128, 9) and dataset.inputs.dtype == np.float32
    np.testing.assert_allclose(dataset.inputs, windows, rtol=1e-6)
    np.testing.assert_array_equal(dataset.labels, labels)
    np.testing.assert_array_equal(dataset.groups, PERSONS["train"] + PERSONS["test"])
    assert sets(dataset) == {"train": [*range(6)], "test": [*range(6, 10)]}
    assert dataset.class_names[:2] == ("WALKING", "WALKING_UPSTAIRS") and dataset.num_classes == 6
    assert dataset.input_shape == (128, 9)
    clients = make_partition("natural", dataset, 5, seed=0)
    held = [sorted(np.concatenate(client).tolist()) for client in clients]
    assert held == [[0, 1], [6, 7], [2, 3], [8, 9], [4, 5]]


HAR_DAMAGE = {
    "train/y_train.txt": ("0\n" * 6, "train: labels run from 0 to 0, not in 1 to 6"),
    "train/subject_train.txt": ("31\n" * 6, "train: persons run from 31 to 31, not in 1 to 30"),
    "test/subject_test.txt": ("1\n" * 3, "subject_test.txt has 3 rows for 4 labels"),
    "test/y_test.txt": (
        "1\n2.5\n1\n1\n",
        "test/y_test.txt: could not convert string '2.5' to int64 at row 1, column 1",
    ),
    "test/Inertial Signals/total_acc_z_test.txt": (
        "1 2 3\n" * 3,
        "test/Inertial Signals/total_acc_z_test.txt: its first line has 3 numbers, not 128",
    ),
    "train/Inertial Signals/body_acc_y_train.txt": (
        text(np.full((6, 128), np.nan)),
        "train: a signal is not finite",
    ),
    "train/Inertial Signals/body_gyro_x_train.txt": ("", "its first line has 0 numbers, not 128"),
    "train/Inertial Signals/body_gyro_y_train.txt": (
        "1 " * 128 + "\n" + "1 " * 127 + "\n",
        "the number of columns changed from 128 to 127 at row 2",
    ),
    "train/Inertial Signals/body_gyro_z_train.txt": (
        "1 " * 128 + "\n" + "1 " * 10_000 + "\n",
        "a line has more than 8192 characters",
    ),
    "test/Inertial Signals/body_acc_z_test.txt": (
        None,
        "1 of 11 files are missing, such as ('test', 'body_acc_z')",
    ),
}


@pytest.mark.parametrize("file", HAR_DAMAGE)
def test_damaged_har(tmp_path, file):
    files = har_files()[0]
    content, message = HAR_DAMAGE[file]
    del files[file]
    write_files(
        tmp_path, "UCI HAR Dataset", files if content is None else files | {file: content}, "folder"
    )
    error = load_error(ValueError, "har", tmp_path)
    assert message in error and error.startswith(f"{tmp_path}/UCI HAR Dataset: ")
    assert "UCI HAR Dataset.zip or" in error


def test_texts_have_a_limit(tmp_path, monkeypatch):
    write_files(tmp_path, "UCI HAR Dataset", har_files()[0], "zip")
    monkeypatch.setattr(limits, "TEXT_BYTES", 5000)
    refused("bytes, more than the 5,000 that are read", "har", tmp_path)


def test_some_columns_of_a_table():
    content = b"1 2 3\n4 NaN 6\n\n"
    np.testing.assert_array_equal(read_table("x", content, 3, [2, 0]), np.float32([[3, 1], [6, 4]]))
    np.testing.assert_array_equal(
        read_table("x", content, 3), np.float32([[1, 2, 3], [4, np.nan, 6]])
    )
    with pytest.raises(ValueError, match=r"^x: invalid column index 2 at row 2 with 2 columns$"):
        read_table("x", b"1 2 3\n4 5\n", 3, [2])


def test_embedded_har():
    dataset = load_dataset("har_10persons")
    assert dataset.inputs.shape == (1039, 128, 9) and dataset.inputs.dtype == np.float16
    assert dataset.input_shape == (128, 9) and dataset.official == {}
    assert np.bincount(dataset.groups).tolist() == [
        0,
        124,
        112,
        109,
        119,
        91,
        107,
        109,
        106,
        77,
        85,
    ]
    assert np.bincount(dataset.labels).tolist() == [202, 162, 156, 162, 175, 182]
    assert zlib.crc32(dataset.inputs.tobytes()) == 1235048265
    # Total acceleration has gravity in it, one g, and lies along x unless the person does.
    upright = dataset.labels < 5
    mean = np.abs(dataset.inputs.astype(np.float32)[..., 6:].mean(1))
    assert (mean[upright].argmax(1) == 0).mean() > 0.99
    assert (mean[~upright].argmax(1) == 0).mean() < 0.1
    folder = SHIPPED
    licence = " ".join((folder / "LICENSE-har_10persons.txt").read_text().split())
    assert "CC BY 4.0" in licence and "D. Anguita, A. Ghio" in licence and "wrong one" in licence
    assert (folder / "har_10persons.npz").stat().st_size < 3e6


def test_thirty_persons_begin_with_the_ten():
    ten, thirty = load_dataset("har_10persons"), load_dataset("har_30persons")
    of_ten = thirty.groups <= 10
    np.testing.assert_array_equal(thirty.inputs[of_ten], ten.inputs)
    np.testing.assert_array_equal(thirty.labels[of_ten], ten.labels)
    assert thirty.name == "har_30persons" and set(thirty.groups) == set(range(1, 31))
    assert len(thirty.labels) == 3350 and np.bincount(thirty.groups)[1:].min() == 77
    assert zlib.crc32(thirty.inputs.tobytes()) == 795789532


@pytest.mark.parametrize("name", ["har", "pamap2"])
def test_sets_without_published_sums_are_fetched_by_hand(tmp_path, name):
    message = load_error(FileNotFoundError, name, tmp_path)
    assert "fedjax-ht data get" not in message and "which has it inside" in message
    with pytest.raises(ValueError, match=f"{name}: .* download it by hand"):
        get(name, tmp_path)


@pytest.mark.parametrize("name", ["har_10persons", "har_30persons"])
def test_no_size_for_what_has_no_images(tmp_path, name):
    message = load_error(ValueError, name, tmp_path, 32)
    assert message == f"image_size is 32, but {name} has no images; leave it at 0 (None)"
