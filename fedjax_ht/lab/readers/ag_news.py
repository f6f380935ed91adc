"""AG News as its authors' CSV files: `text:` with names of the classes.

Source: Zhang, Zhao and LeCun, NeurIPS 2015.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.lab.readers.checksums import check_sum
from fedjax_ht.lab.readers.csv_file import texts_of_files
from fedjax_ht.lab.readers.raw import Raw, ReadOptions
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.safe.archive import Origin, reading, search

_NUMBERS = ("1", "2", "3", "4")  # of the classes, in their order
CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_FOLDERS = ("ag_news", "ag_news_csv")
_ORIGIN = Origin(
    "ag_news/train.csv and ag_news/test.csv, rows of class (1 to 4), title and description",
    "take them out of the authors' ag_news_csv.tar.gz",
    fetched=False,
)


def find_ag_news(data_dir: Path | None) -> tuple[Path, ...]:
    """train.csv and test.csv; see `archive.search`."""
    files = ("train.csv", "test.csv")
    return tuple(search("ag_news", data_dir, _FOLDERS, (file,), _ORIGIN) for file in files)


def find_ag_news_test(data_dir: Path | None) -> tuple[Path, ...]:
    """The file of the test set; see `archive.search`."""
    files = ("ag_news_test.csv", "test.csv")
    return (search("ag_news_test", data_dir, (*_FOLDERS, ""), files, _ORIGIN),)


def read_ag_news(find, data_dir: Path | None, options: ReadOptions) -> Raw:
    """Texts of title and description; official sets train and test, or the test set alone.

    The vocabulary is that of train.csv, or of the test set where it is alone.
    """
    files = find(data_dir)
    with reading(files[0] if len(files) == 1 else files[0].parent, _ORIGIN):
        raw = texts_of_files(files, options)
        for i, name in enumerate(raw.class_names):
            if name not in _NUMBERS:
                first = np.flatnonzero(raw.labels == i)[0]
                file = files[int("test" in raw.official and first in raw.official["test"])]
                raise ValueError(f"{file.name}: a class is {short(name)}, not 1 to 4")
        numbers = np.array([_NUMBERS.index(name) for name in raw.class_names])
        warnings = raw.reading.warnings
        for file in files:
            warnings += check_sum(MD5, file)
        record = dataclasses.replace(raw.reading, warnings=warnings)
        return raw._replace(labels=numbers[raw.labels], class_names=CLASSES, reading=record)


MD5 = {
    "train.csv": "b1a00f826fdfbd249f79597b59e1dc12",
    "test.csv": "d52ea96a97a2d943681189a97654912d",
}
AG_NEWS = Source(
    name="ag_news",
    about="its authors' folder has no address that a program could ask; put its train.csv and "
    "test.csv into DIR/ag_news",
    read=functools.partial(read_ag_news, find_ag_news),
    find=find_ag_news,
    md5=MD5,
)
AG_NEWS_TEST = Source(
    name="ag_news_test",
    about="as for ag_news; test.csv alone serves",
    read=functools.partial(read_ag_news, find_ag_news_test),
    find=find_ag_news_test,
    md5=MD5,
)
