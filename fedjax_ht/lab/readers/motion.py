"""Reads motion-sensor windows: UCI HAR and PAMAP2, and parts of UCI HAR in the package.

UCI HAR (Anguita et al., ESANN 2013) has 30 persons with a phone at the waist. PFLlib and HtFLlib
reshape [N, 128, 9] to [N, 9, 1, 128] without moving axes, so each signal that their networks see
mixes all nine. Here windows are [128, 9], time first.

PAMAP2 (Reiss and Stricker, ISWC 2012) has nine persons with inertial units on hand, chest and
ankle, at 100 Hz. It is prepared as in PFLlib: windows of 256 steps, one every 128; missing values
are 0; each signal of a person is divided by its largest absolute value over all of that person's
recordings; windows of twelve activities are kept. Differences from PFLlib:

* A window has the activity of most of its steps (the smaller number on a tie). PFLlib takes the
  smallest number in it: one step of "other" (0) drops the window, and walking (4) into cycling (6)
  counts as walking.
* A window lies in one recording. PFLlib lets one run from the end of a person's first file into the
  second.
* A signal without any data of a person stays 0; PFLlib divides 0 by 0.
"""

import functools
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.lab.readers.images import write_stacked
from fedjax_ht.lab.readers.source import (
    IN_PACKAGE,
    SHIPPED,
    Raw,
    ReadOptions,
    Source,
    one_after_another,
)
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import Origin, members, take

SIGNALS = tuple(
    f"{quantity}_{axis}" for quantity in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
)
"""Last axis of a window, at 50 Hz: acceleration without gravity in g, angular velocity in rad/s,
acceleration in g."""

HAR_CLASSES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
_HAR_STEPS = 128
_HAR = Origin(
    "UCI HAR Dataset.zip or its extracted folder, with train/ and test/",
    "download it from the dataset's page (UCI Machine Learning Repository, 240, Human Activity "
    "Recognition Using "
    "Smartphones) and unpack human+activity+recognition+using+smartphones.zip, which has it inside",
    fetched=False,
    names=("UCI HAR Dataset", "UCI HAR Dataset.zip"),
    markers=("train/y_train.txt",),
)
_HAR_PATTERN = re.compile(
    rf"(?:^|/)(?P<split>train|test)/(?:Inertial "
    rf"Signals/)?(?P<what>{'|'.join(SIGNALS)}|y|subject)_(?P=split)\.txt$"
)


def read_har(source: Path, options: ReadOptions) -> Raw:
    """Reads windows, float32 [128, 9], of the signals in `SIGNALS`.

    Official sets train and test have different persons; groups are persons 1 to 30.
    """
    tables = {}
    for match, content in members(source, _HAR_PATTERN):
        file = match[0].strip("/")
        limits.keep(file, len(content), limits.TEXT_BYTES)
        columns, dtype = (_HAR_STEPS, np.float32) if match["what"] in SIGNALS else (1, np.int64)
        tables[match["split"], match["what"]] = read_table(file, content, columns, dtype=dtype)
    windows, labels, persons = zip(*(_har_split(tables, split) for split in ("train", "test")))
    return Raw(
        np.concatenate(windows),
        np.concatenate(labels),
        HAR_CLASSES,
        official=one_after_another(zip(("train", "test"), map(len, labels))),
        groups=np.concatenate(persons),
    )


def _har_split(
    tables: dict[tuple[str, str], np.ndarray], split: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns windows float32 [n, 128, 9], labels int64 [n] from 0, and persons int64 [n]."""
    *signals, labels, persons = take(
        tables, [(split, what) for what in (*SIGNALS, "y", "subject")], "files"
    )
    for what, table in zip((*SIGNALS, "subject"), (*signals, persons)):
        if len(table) != len(labels):
            raise ValueError(f"{what}_{split}.txt has {len(table)} rows for {len(labels)} labels")
    return np.stack(signals, -1), labels[:, 0] - 1, persons[:, 0]


HAR = Source(
    name="har",
    about="windows of motion sensors, 30 persons; no checksums are published: download it by hand "
    "(UCI, set 240)",
    read=read_har,
    origins=(_HAR,),
)


def read_packaged_har(files: Sequence[str], options: ReadOptions) -> Raw:
    """Reads windows of some persons of UCI HAR (CC BY 4.0).

    About a third of their windows, as in set "har" but float16 [128, 9]; groups are the persons.
    There are no official sets; partition "natural" splits each person's windows.
    LICENSE-har_10persons.txt documents the selection and its uncertainties.
    """
    parts = []
    for file in files:
        with np.load(SHIPPED / file) as arrays:
            parts.append((arrays["windows"], arrays["labels"], arrays["persons"]))
    windows, labels, persons = map(np.concatenate, zip(*parts))
    return Raw(windows, labels, HAR_CLASSES, groups=persons)


def _packaged(name: str, *files: str) -> Source:
    return Source(name, IN_PACKAGE, functools.partial(read_packaged_har, files))


HAR_10PERSONS = _packaged("har_10persons", "har_10persons.npz")  # 1 to 10: 1,039 windows
HAR_30PERSONS = _packaged("har_30persons", "har_10persons.npz", "har_20persons.npz")  # 3,350


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
"""The publisher's number -> name of each class, in the order of the labels."""

STEPS, STRIDE, UNITS = 256, 128, 3
_DTYPE = np.dtype(np.float32)
_COLUMNS, _LAST = 54, 24
_ACTIVITY = 1
# For each unit: acceleration up to 16 g, angular velocity and magnetic field, x y z each.
_SIGNALS = [first + i for first in (4, 21, 38) for i in (0, 1, 2, 6, 7, 8, 9, 10, 11)]
_RECORDINGS = sorted(
    [(f"10{i}", "Protocol") for i in range(1, 10)]
    + [(f"10{i}", "Optional") for i in (1, 5, 6, 8, 9)],
    key=lambda recording: (recording[0], recording[1] == "Optional"),
)
_PAMAP2 = Origin(
    "PAMAP2_Dataset.zip or its extracted folder, with Protocol/ and Optional/",
    "download it from the dataset's page (UCI Machine Learning Repository, 231, PAMAP2 Physical "
    "Activity Monitoring) and unpack pamap2+physical+activity+monitoring.zip, which has it inside",
    fetched=False,
    names=("PAMAP2_Dataset", "PAMAP2_Dataset.zip"),
    markers=("Protocol/subject101.dat",),
)
_PAMAP2_PATTERN = re.compile(r"(?:^|/)(?P<part>Protocol|Optional)/subject(?P<person>10[1-9])\.dat$")


def read_pamap2(source: Path, options: ReadOptions) -> Raw:
    """Reads windows, float32 [256, 3, 9], in [-1, 1].

    The units are on hand, chest and ankle; each has x y z of acceleration, angular velocity and
    magnetic field. Groups are the persons, 1 to 9; there are no official sets.
    """
    recordings = {}
    for match, content in members(source, _PAMAP2_PATTERN):
        key = match["person"], match["part"]
        recordings[key] = _recording(match[0].strip("/"), content)
    windows, labels, largest = zip(*take(recordings, _RECORDINGS, "recordings"))
    persons = np.array([int(person) - 100 for person, _ in _RECORDINGS])
    for person in np.unique(persons):
        positions = np.flatnonzero(persons == person)
        scale = np.max([largest[i] for i in positions], 0)
        for i in positions:
            # in place; a signal without any data of a person stays 0
            np.divide(windows[i], scale, out=windows[i], where=scale > 0)
    counts = list(map(len, windows))
    if not any(counts):
        raise ValueError(f"no window of {STEPS} steps of the {len(ACTIVITIES)} activities")
    shape = (sum(counts), STEPS, UNITS, len(_SIGNALS) // UNITS)
    inputs = write_stacked(options.target, shape, _DTYPE, windows)
    groups = np.repeat(persons, counts)
    return Raw(inputs, np.concatenate(labels), tuple(ACTIVITIES.values()), groups=groups)


def _recording(name: str, content: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the windows of one file, their labels, and each signal's largest absolute value.

    Returns:
      float32 [n, 256, 27] as recorded, int64 [n], and float32 [27].
    """
    table = read_table(name, content, _COLUMNS, [_ACTIVITY, *_SIGNALS])
    if not np.isin(table[:, 0], range(_LAST + 1)).all():
        raise ValueError(f"{name}: an activity is not within 0 to {_LAST}")
    activity, signals = table[:, 0].astype(np.int64), table[:, 1:]
    signals[np.isnan(signals)] = 0
    largest = np.abs(signals).max(0)
    if not np.isfinite(largest).all():
        raise ValueError(f"{name}: a signal is infinite")
    label = np.full(_LAST + 1, -1)  # label of each activity; -1 if it is no class
    label[list(ACTIVITIES)] = np.arange(len(ACTIVITIES))
    windows, labels = [], []
    for start in range(0, len(table) - STEPS + 1, STRIDE):
        steps = slice(start, start + STEPS)
        # argmax takes the first of equally frequent activities: the smaller number
        most = np.bincount(activity[steps], minlength=_LAST + 1).argmax()
        if label[most] >= 0:
            windows.append(signals[steps])
            labels.append(label[most])
    windows = np.array(windows, _DTYPE).reshape(-1, STEPS, len(_SIGNALS))
    return windows, np.array(labels, np.int64), largest


PAMAP2 = Source(
    name="pamap2",
    about="windows of motion sensors, 9 persons; no checksums are published: download it by hand "
    "(UCI, set 231)",
    read=read_pamap2,
    origins=(_PAMAP2,),
    is_kept=True,
)


_WIDEST = 64  # most characters of a number and its separator


def read_table(
    name: str,
    content: bytes,
    columns: int,
    used: Sequence[int] | None = None,
    dtype: type = np.float32,
) -> np.ndarray:
    """Reads a file of whitespace-separated numbers, [rows, columns].

    With `used` the result is [rows, len(used)].

    Args:
      name: file name, for the message.
      content: content of the file.
      columns: number of columns of the first line. All lines must match; with `used`, they need
        only the used columns.
      used: positions of the columns to take; None takes all.
      dtype: dtype of the result.

    Raises:
      ValueError: a wrong number of columns, no rows, or a cell that is not a number.
    """
    first = content[: _WIDEST * columns].split(b"\n", 1)[0].split()
    if len(first) != columns:
        raise ValueError(f"{name}: its first line has {len(first)} numbers, not {columns}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # older NumPy reads 2.5 as 2
            return np.loadtxt(
                _lines(content, _WIDEST * columns), dtype, comments=None, usecols=used, ndmin=2
            )
    except ValueError as error:
        raise ValueError(f"{name}: {str(error).partition(';')[0].rstrip('.')}") from error


def _lines(content: bytes, longest: int) -> Iterator[bytes]:
    """Yields the lines one by one, without a second copy of a large file."""
    start = 0
    while start < len(content):
        end = content.find(b"\n", start, start + longest) + 1
        if not end and len(content) - start > longest:
            raise ValueError(f"a line has more than {longest} characters")
        yield bytes(content[start : end or None])
        start = end or len(content)
