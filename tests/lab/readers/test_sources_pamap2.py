"""PAMAP2, as small files of the publisher's layout."""

import numpy as np
import pytest

from fedjax_ht.lab.readers import load_dataset, registry
from tests.lab.readers.source_files import load_error, refused
from tests.lab.readers.test_sources_sensors import KINDS, write_files

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
    tables = {
        file: recording(256 if "Protocol" in file else 20, 4, i)
        for i, file in enumerate(RECORDINGS)
    }
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
    return (
        "\n".join(
            " ".join(f"{value:.6g}" if value == value else "NaN" for value in row) for row in table
        )
        + "\n"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_pamap2(tmp_path, kind, monkeypatch):
    tables = pamap2_tables()
    write_files(tmp_path, "PAMAP2_Dataset", {f: pamap2_text(t) for f, t in tables.items()}, kind)
    dataset = load_dataset("pamap2", tmp_path)
    assert dataset.class_names[:8] == (
        *(
            "lying",
            "sitting",
            "standing",
            "walking",
            "running",
            "cycling",
            "Nordic walking",
            "ascending stairs",
        ),
    )
    assert dataset.class_names[8:] == (
        "descending stairs",
        "vacuum cleaning",
        "ironing",
        "rope jumping",
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
        np.testing.assert_allclose(
            window, first[start : start + 256][:, COLUMNS] / largest, rtol=1e-5, atol=1e-6
        )
    third = dataset.inputs[6]
    assert third[7, 0, 0] == -1 and np.count_nonzero(third) == 1  # what is missing is 0

    registry._load.cache_clear()
    monkeypatch.setattr("fedjax_ht.lab.readers.motion._build", None)  # kept on disk
    again = load_dataset("pamap2", tmp_path)
    for field in ("inputs", "labels", "groups"):
        np.testing.assert_array_equal(getattr(again, field), getattr(dataset, field))


PAMAP2_DAMAGE = {
    "a file is missing": (
        "Optional/subject108.dat",
        None,
        "1 of 14 recordings are missing, such as ('108', 'Optional')",
    ),
    "columns": (
        "Protocol/subject102.dat",
        "1 2 3\n",
        "Protocol/subject102.dat: its first line has 3 numbers, not 54",
    ),
    "a short row": (
        "Protocol/subject102.dat",
        "1 " * 54 + "\n" + "1 " * 49 + "\n",
        "Protocol/subject102.dat: invalid column index 49 at row 2 with 49 columns",
    ),
    "no number": (
        "Protocol/subject102.dat",
        "1 1 x 1 " + "o " * 50,
        "could not convert string 'o' to float32 at row 0, column 5",
    ),
    "activity": ("Protocol/subject102.dat", "1 25 " + "1 " * 52, "an activity is none of 0 to 24"),
    "no activity": (
        "Protocol/subject102.dat",
        "1 NaN " + "1 " * 52,
        "an activity is none of 0 to 24",
    ),
    "infinite": (
        "Protocol/subject102.dat",
        "1 24 " + "inf " * 52,
        "Protocol/subject102.dat: a signal is infinite",
    ),
}


@pytest.mark.parametrize("damage", PAMAP2_DAMAGE)
def test_damaged_pamap2(tmp_path, damage):
    row = "1 4 " + "1 " * 52 + "\n"
    file, content, message = PAMAP2_DAMAGE[damage]
    files = dict.fromkeys(RECORDINGS, row) | {file: content}
    write_files(tmp_path, "PAMAP2_Dataset", {f: c for f, c in files.items() if c}, "folder")
    error = load_error(ValueError, "pamap2", tmp_path)
    assert message in error and error.startswith(f"{tmp_path}/PAMAP2_Dataset: ")
    assert "PAMAP2_Dataset.zip or" in error


def test_pamap2_of_short_recordings(tmp_path):
    write_files(
        tmp_path, "PAMAP2_Dataset", dict.fromkeys(RECORDINGS, "1 4 " + "1 " * 52 + "\n"), "zip"
    )
    refused("no window of 256 steps of the 12 activities", "pamap2", tmp_path)
