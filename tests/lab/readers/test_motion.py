"""Sets of sensor windows, as small files of the publishers' layouts."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers import load_dataset, registry
from fedjax_ht.lab.readers.source import SHIPPED
from tests.lab.readers.source_files import load_error, refused, sets, text, write

KINDS = ("folder", "zip", "its files")


def write_files(root: Path, name: str, files: dict[str, str], kind: str) -> None:
    """Writes the files, or a folder or a zip file that has them."""
    above = "" if kind == "its files" else f"{name}/"
    if kind == "zip":
        root.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(root / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file, content in files.items():
                archive.writestr(above + file, content)
    else:
        for file, content in files.items():
            write(root / above / file, content)


# UCI HAR

SIGNALS = (
    *("body_acc_x", "body_acc_y", "body_acc_z", "body_gyro_x", "body_gyro_y", "body_gyro_z"),
    *("total_acc_x", "total_acc_y", "total_acc_z"),
)
PERSONS = {"train": (1, 1, 3, 3, 30, 30), "test": (2, 2, 4, 4)}


def har_files(seed: int = 0) -> tuple[dict[str, str], np.ndarray, np.ndarray]:
    """Files, and the windows [10, 128, 9] and labels [10] in them."""
    rng = np.random.default_rng(seed)
    windows = rng.normal(size=(10, 128, 9)).round(6)
    labels = np.array([0, 5, 1, 2, 3, 4, 4, 0, 1, 1])
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


SIGNAL, LINE = "train/Inertial Signals/body_acc_y_train.txt", "1 " * 128 + "\n"
HAR_DAMAGE = {  # message -> the file and its content
    "har: labels run from -1 to 4": ("train/y_train.txt", "0\n" * 6),
    "subject_test.txt has 3 rows for 4 labels": ("test/subject_test.txt", "1\n" * 3),
    "y_test.txt: could not convert string '2.5'": ("test/y_test.txt", "1\n2.5\n1\n1\n"),
    f"{SIGNAL}: its first line has 3 numbers, not 128": (SIGNAL, "1 2 3\n" * 3),
    "har: inputs has values that are NaN": (SIGNAL, text(np.full((6, 128), np.nan))),
    "columns changed from 128 to 127 at row 2": (SIGNAL, LINE + "1 " * 127 + "\n"),
    "a line has more than 8192 characters": (SIGNAL, LINE + "1 " * 10_000 + "\n"),
    "1 of 11 files are missing": (SIGNAL, None),
}


@pytest.mark.parametrize("message", HAR_DAMAGE)
def test_damaged_har(tmp_path, message):
    file, content = HAR_DAMAGE[message]
    files = har_files()[0] | {file: content}
    files = {name: each for name, each in files.items() if each is not None}
    write_files(tmp_path, "UCI HAR Dataset", files, "folder")
    error = load_error(ValueError, "har", tmp_path)
    assert message in error and error.startswith(f"{tmp_path}/UCI HAR Dataset: ")
    assert "UCI HAR Dataset.zip or" in error


def test_embedded_har():
    dataset = load_dataset("har_10persons")
    assert dataset.inputs.shape == (1039, 128, 9) and dataset.inputs.dtype == np.float16
    assert dataset.input_shape == (128, 9) and dataset.official == {}
    expected = [0, 124, 112, 109, 119, 91, 107, 109, 106, 77, 85]
    assert np.bincount(dataset.groups).tolist() == expected
    assert np.bincount(dataset.labels).tolist() == [202, 162, 156, 162, 175, 182]
    assert zlib.crc32(dataset.inputs.tobytes()) == 1235048265
    # Total acceleration has gravity in it, one g, and lies along x unless the person does.
    upright = dataset.labels < 5
    mean = np.abs(dataset.inputs.astype(np.float32)[..., 6:].mean(1))
    assert (mean[upright].argmax(1) == 0).mean() > 0.99
    assert (mean[~upright].argmax(1) == 0).mean() < 0.1
    licence = " ".join((SHIPPED / "LICENSE-har_10persons.txt").read_text().split())
    assert "CC BY 4.0" in licence and "D. Anguita, A. Ghio" in licence and "wrong one" in licence
    assert (SHIPPED / "har_10persons.npz").stat().st_size < 3e6


def test_thirty_persons_begin_with_the_ten():
    ten, thirty = load_dataset("har_10persons"), load_dataset("har_30persons")
    of_ten = thirty.groups <= 10
    np.testing.assert_array_equal(thirty.inputs[of_ten], ten.inputs)
    np.testing.assert_array_equal(thirty.labels[of_ten], ten.labels)
    assert thirty.name == "har_30persons" and set(thirty.groups) == set(range(1, 31))
    assert len(thirty.labels) == 3350 and np.bincount(thirty.groups)[1:].min() == 77
    assert zlib.crc32(thirty.inputs.tobytes()) == 795789532


RECORDINGS = [f"Protocol/subject10{i}.dat" for i in range(1, 10)]
RECORDINGS += [f"Optional/subject10{i}.dat" for i in (1, 5, 6, 8, 9)]
# as PFLlib counts them
COLUMNS = np.array([[4, 5, 6, 10, 11, 12, 13, 14, 15]]) + np.array([[0], [17], [34]])


def recording(rows: int, activity, seed: int, scale: float = 1.0) -> np.ndarray:
    """float64 [rows, 54]: time, activity, heart rate and three units of 17 columns."""
    table = scale * np.random.default_rng(seed).normal(size=(rows, 54)).round(4)
    table[:, 1] = activity
    return table


def pamap2_tables() -> dict[str, np.ndarray]:
    tables = {}
    for i, file in enumerate(RECORDINGS):
        tables[file] = recording(256 if "Protocol" in file else 20, 4, i)
    activity = np.repeat([1, 0, 5, 12, 24, 24, 0, 0], 128)[:-1]
    activity[128:140], activity[300] = 1, 0
    tables["Protocol/subject101.dat"] = recording(1023, activity, 50)
    tables["Optional/subject101.dat"] = recording(300, 20, 51, 5.0)
    tables["Optional/subject106.dat"] = recording(256, 17, 53)
    # equally many: the smaller
    tables["Protocol/subject102.dat"] = recording(256, np.repeat([7, 6], 128), 52)
    tables["Protocol/subject103.dat"][:, 2:] = np.nan
    tables["Protocol/subject103.dat"][7, 4] = -2.5
    return tables


def pamap2_text(table: np.ndarray) -> str:
    def cell(value: float) -> str:
        return f"{value:.6g}" if value == value else "NaN"

    return "".join(" ".join(map(cell, row)) + "\n" for row in table)


@pytest.mark.parametrize("kind", KINDS)
def test_pamap2(tmp_path, kind, monkeypatch):
    tables = pamap2_tables()
    write_files(tmp_path, "PAMAP2_Dataset", {f: pamap2_text(t) for f, t in tables.items()}, kind)
    dataset = load_dataset("pamap2", tmp_path)
    assert ", ".join(dataset.class_names) == (
        "lying, sitting, standing, walking, running, cycling, Nordic walking, ascending stairs, "
        "descending stairs, vacuum cleaning, ironing, rope jumping"
    )
    # Of person 1 from step 0 lying by 140 of 256, from 128 running by 127 with 117 of no activity;
    # from 384 and from 640 half and half; from 768 there is a step too few.
    assert dataset.labels.tolist() == [0, 4, 7, 7, 11, 5, 3, 3, 3, 3, 10, 3, 3, 3]
    assert dataset.groups.tolist() == [*[1] * 5, 2, 3, 4, 5, 6, 6, 7, 8, 9]
    assert dataset.inputs.dtype == np.float32 and dataset.input_shape == (256, 3, 9)
    assert dataset.official == {}

    first, second = (tables[f"{part}/subject101.dat"] for part in ("Protocol", "Optional"))
    largest = np.abs(np.concatenate([first, second])[:, COLUMNS]).max(0)
    for window, start in zip(dataset.inputs[:5], (0, 128, 256, 384, 512)):
        expected = first[start : start + 256][:, COLUMNS] / largest
        np.testing.assert_allclose(window, expected, rtol=1e-5, atol=1e-6)
    third = dataset.inputs[6]
    assert third[7, 0, 0] == -1 and np.count_nonzero(third) == 1  # what is missing is 0

    registry._load.cache_clear()
    monkeypatch.setattr("fedjax_ht.lab.readers.motion._recording", None)  # kept on disk
    again = load_dataset("pamap2", tmp_path)
    for field in ("inputs", "labels", "groups"):
        np.testing.assert_array_equal(getattr(again, field), getattr(dataset, field))


ROW, SHORT = "1 4 " + "1 " * 52 + "\n", "1 " * 54 + "\n" + "1 " * 49 + "\n"
PAMAP2_DAMAGE = {
    "a file is missing": ("Optional/subject108.dat", None, "1 of 14 recordings are missing"),
    "a short row": ("Protocol/subject102.dat", SHORT, "invalid column index 49 at row 2 with 49"),
    "activity": (
        "Protocol/subject102.dat",
        "1 25 " + "1 " * 52,
        "an activity is not within 0 to 24",
    ),
    "no activity": ("Protocol/subject102.dat", "1 NaN " + "1 " * 52, "an activity is not within 0"),
    "infinite": ("Protocol/subject102.dat", "1 24 " + "inf " * 52, "a signal is infinite"),
}


@pytest.mark.parametrize("damage", PAMAP2_DAMAGE)
def test_damaged_pamap2(tmp_path, damage):
    file, content, message = PAMAP2_DAMAGE[damage]
    files = dict.fromkeys(RECORDINGS, ROW) | {file: content}
    write_files(tmp_path, "PAMAP2_Dataset", {f: c for f, c in files.items() if c}, "folder")
    error = load_error(ValueError, "pamap2", tmp_path)
    assert message in error and error.startswith(f"{tmp_path}/PAMAP2_Dataset: ")
    assert "PAMAP2_Dataset.zip or" in error


def test_pamap2_of_short_recordings(tmp_path):
    files = dict.fromkeys(RECORDINGS, ROW)
    write_files(tmp_path, "PAMAP2_Dataset", files, "zip")
    refused("no window of 256 steps of the 12 activities", "pamap2", tmp_path)
