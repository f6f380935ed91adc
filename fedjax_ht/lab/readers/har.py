"""UCI HAR: windows of a waist-mounted phone's motion sensors while 30 persons move.

Source: Anguita et al., ESANN 2013.

PFLlib's and HtFLlib's script reshapes [N, 128, 9] to [N, 9, 1, 128] without moving axes, so that
what their networks take for a signal in time is a mixture of all nine. Here windows are [128, 9],
time first.
"""

import re
from pathlib import Path

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.raw import Raw, ReadOptions, one_after_another
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin, members, reading, search, take
from fedjax_ht.lab.safe.numbers import read_table

SIGNALS = tuple(
    f"{quantity}_{axis}" for quantity in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
)
"""Last axis of a window: acceleration without gravity in g, angular velocity in rad/s, acceleration
in g; at 50 Hz."""

CLASSES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
STEPS, PERSONS = 128, 30
_ORIGIN = Origin(
    "UCI HAR Dataset.zip or its extracted folder, with train/ and test/",
    "download it from the dataset's page (UCI Machine Learning Repository, 240, Human Activity "
    "Recognition Using "
    "Smartphones) and unpack human+activity+recognition+using+smartphones.zip, which has it inside",
    fetched=False,
)
_PATTERN = re.compile(
    rf"(?:^|/)(?P<split>train|test)/(?:Inertial "
    rf"Signals/)?(?P<what>{'|'.join(SIGNALS)}|y|subject)_(?P=split)\.txt$"
)


def find_har(data_dir: Path | None) -> tuple[Path, ...]:
    """The archive, the folder, or a file of the folder; see `archive.search`."""
    files = ("UCI HAR Dataset", "UCI HAR Dataset.zip", "train/y_train.txt")
    path = search("har", data_dir, ("har", ""), files, _ORIGIN)
    return (path.parents[1] if path.name == "y_train.txt" else path,)


def read_har(data_dir: Path | None, options: ReadOptions) -> Raw:
    """Windows, float32 [128, 9], of the signals in `SIGNALS`.

    Official sets train and test are of other persons; groups are persons 1 to 30.
    """
    (source,) = find_har(data_dir)
    with reading(source, _ORIGIN):
        tables = {}
        for match, content in members(source, _PATTERN):
            file = match[0].strip("/")
            limits.keep(file, len(content), limits.TEXT_BYTES)
            columns, dtype = (STEPS, np.float32) if match["what"] in SIGNALS else (1, np.int64)
            tables[match["split"], match["what"]] = read_table(file, content, columns, dtype=dtype)
        windows, labels, persons = zip(*(_split(tables, split) for split in ("train", "test")))
    return Raw(
        np.concatenate(windows),
        np.concatenate(labels),
        CLASSES,
        official=one_after_another(zip(("train", "test"), map(len, labels))),
        groups=np.concatenate(persons),
        reading=Reading(path=str(source)),
    )


def _split(
    tables: dict[tuple[str, str], np.ndarray], split: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows float32 [n, 128, 9], labels int64 [n] from 0, and persons int64 [n]."""
    *signals, labels, persons = take(
        tables, [(split, what) for what in (*SIGNALS, "y", "subject")], "files"
    )
    for what, table in zip((*SIGNALS, "subject"), (*signals, persons)):
        if len(table) != len(labels):
            raise ValueError(f"{what}_{split}.txt has {len(table)} rows for {len(labels)} labels")
    for what, values, last in (("labels", labels, len(CLASSES)), ("persons", persons, PERSONS)):
        if not 1 <= values.min() <= values.max() <= last:
            raise ValueError(
                f"{split}: {what} run from {values.min()} to {values.max()}, not in 1 to {last}"
            )
    windows = np.stack(signals, -1)
    if not np.isfinite(windows).all():
        raise ValueError(f"{split}: a signal is not finite")
    return windows, labels[:, 0] - 1, persons[:, 0]


HAR = Source(
    name="har",
    about="windows of motion sensors, 30 persons; no sums of it are published: download it by hand "
    "(UCI, set 240)",
    read=read_har,
    find=find_har,
)
