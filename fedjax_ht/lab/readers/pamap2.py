"""PAMAP2: nine persons with inertial units on hand, chest and ankle, at 100 Hz.

Source: Reiss and Stricker, ISWC 2012.

As PFLlib prepares it: windows of 256 steps, one every 128; what is missing is 0; every signal of a
person is divided by its largest absolute value over all of that person's recordings; windows of
twelve activities are kept. Settled here:

* A window is of the activity that most of its steps are of (of equally many that with the smaller
  number). PFLlib takes the smallest number in it, so that a single step of "other" (0) drops it,
  and walking (4) into cycling (6) is walking.
* A window is of one recording. PFLlib lets one run from the end of a person's first file into the
  second.
* A signal that a person has nothing of stays 0, where PFLlib divides 0 by 0.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.cache import cached
from fedjax_ht.lab.readers.pile import mapped
from fedjax_ht.lab.readers.raw import Raw, ReadOptions
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.safe.archive import Origin, members, reading, search, take
from fedjax_ht.lab.safe.numbers import read_table

ACTIVITIES = {
    1: "lying",
    2: "sitting",
    3: "standing",
    4: "walking",
    5: "running",
    6: "cycling",
    7: "Nordic walking",
    12: "ascending stairs",
    13: "descending stairs",
    16: "vacuum cleaning",
    17: "ironing",
    24: "rope jumping",
}
"""The publisher's number of each class, in the order of the labels."""

STEPS, STRIDE, UNITS = 256, 128, 3
_DTYPE = np.dtype(np.float32)
_COLUMNS, _LAST = 54, 24
_ACTIVITY = 1
# Of each unit acceleration up to 16 g, angular velocity and magnetic field, x y z.
_SIGNALS = [first + i for first in (4, 21, 38) for i in (0, 1, 2, 6, 7, 8, 9, 10, 11)]
_RECORDINGS = sorted(
    [(f"10{i}", "Protocol") for i in range(1, 10)]
    + [(f"10{i}", "Optional") for i in (1, 5, 6, 8, 9)],
    key=lambda recording: (recording[0], recording[1] == "Optional"),
)
_ORIGIN = Origin(
    "PAMAP2_Dataset.zip or its extracted folder, with Protocol/ and Optional/",
    "download it from the dataset's page (UCI Machine Learning Repository, 231, PAMAP2 Physical "
    "Activity Monitoring) and unpack pamap2+physical+activity+monitoring.zip, which has it inside",
    fetched=False,
)
_PATTERN = re.compile(r"(?:^|/)(?P<part>Protocol|Optional)/subject(?P<person>10[1-9])\.dat$")


def find_pamap2(data_dir: Path | None) -> tuple[Path, ...]:
    """The archive, the folder, or a file of the folder; see `archive.search`."""
    files = ("PAMAP2_Dataset", "PAMAP2_Dataset.zip", "Protocol/subject101.dat")
    path = search("pamap2", data_dir, ("pamap2", ""), files, _ORIGIN)
    return (path.parents[1] if path.name == "subject101.dat" else path,)


def read_pamap2(data_dir: Path | None, options: ReadOptions) -> Raw:
    """Windows, float32 [256, 3, 9], in [-1, 1].

    The units are on hand, chest and ankle; each has acceleration, angular velocity and magnetic
    field, x y z each. Groups are the persons, 1 to 9; there are no official sets. The files are
    read once, see `cache.cached`.
    """
    (source,) = find_pamap2(data_dir)
    with reading(source, _ORIGIN):
        return cached("pamap2", None, data_dir, (source,), lambda target: _build(source, target))


def _build(source: Path, target: Path | None) -> Raw:
    recordings = {}
    for match, content in members(source, _PATTERN):
        key = match["person"], match["part"]
        recordings[key] = _recording(match[0].strip("/"), content)
    windows, labels, largest = zip(*take(recordings, _RECORDINGS, "recordings"))
    persons = np.array([int(person) - 100 for person, _ in _RECORDINGS])
    for person in np.unique(persons):
        positions = np.flatnonzero(persons == person)
        scale = np.max([largest[i] for i in positions], 0)
        for i in positions:
            # in place, and a signal that a person has nothing of stays 0
            np.divide(windows[i], scale, out=windows[i], where=scale > 0)
    counts = list(map(len, windows))
    if not any(counts):
        raise ValueError(f"no window of {STEPS} steps of the {len(ACTIVITIES)} activities")
    inputs = _joined(windows, (sum(counts), STEPS, UNITS, len(_SIGNALS) // UNITS), target)
    groups = np.repeat(persons, counts)
    return Raw(
        inputs,
        np.concatenate(labels),
        tuple(ACTIVITIES.values()),
        groups=groups,
        reading=Reading(path=str(source)),
    )


def _joined(
    windows: Sequence[np.ndarray], shape: tuple[int, ...], target: Path | None
) -> np.ndarray:
    """All windows as one array of this shape; with a target, a map of that .npy file."""
    if target is None:
        return np.concatenate(windows).reshape(shape)
    header = {"descr": _DTYPE.str, "fortran_order": False, "shape": shape}
    with open(target, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in windows:
            file.write(part.tobytes())
    return mapped(target)


def _recording(name: str, content: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows of one file, their labels, and every signal's largest absolute value.

    Returns:
      float32 [n, 256, 27] as they were recorded, int64 [n], and float32 [27].
    """
    table = read_table(name, content, _COLUMNS, [_ACTIVITY, *_SIGNALS])
    if not np.isin(table[:, 0], range(_LAST + 1)).all():
        raise ValueError(f"{name}: an activity is none of 0 to {_LAST}")
    activity, signals = table[:, 0].astype(np.int64), table[:, 1:]
    signals[np.isnan(signals)] = 0
    largest = np.abs(signals).max(0)
    if not np.isfinite(largest).all():
        raise ValueError(f"{name}: a signal is infinite")
    label = np.full(_LAST + 1, -1)  # of an activity; -1 for those that are no class
    label[list(ACTIVITIES)] = np.arange(len(ACTIVITIES))
    windows, labels = [], []
    for start in range(0, len(table) - STEPS + 1, STRIDE):
        steps = slice(start, start + STEPS)
        # of equally frequent activities the first, that with the smaller number
        most = np.bincount(activity[steps], minlength=_LAST + 1).argmax()
        if label[most] >= 0:
            windows.append(signals[steps])
            labels.append(label[most])
    windows = np.array(windows, _DTYPE).reshape(-1, STEPS, len(_SIGNALS))
    return windows, np.array(labels, np.int64), largest


PAMAP2 = Source(
    name="pamap2",
    about="windows of motion sensors, 9 persons; no sums of it are published: download it by hand "
    "(UCI, set 231)",
    read=read_pamap2,
    find=find_pamap2,
)
