"""AG News as its authors' CSV files, and any other CSV file of texts.

Source: Zhang, Zhao and LeCun, NeurIPS 2015.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.files import limits
from fedjax_ht.data.files.archive import Origin, reading, search, user_path
from fedjax_ht.data.files.bounded import read_whole
from fedjax_ht.data.sources.checksums import check_sum
from fedjax_ht.data.sources.source import Source
from fedjax_ht.data.sources.tokens import LENGTH, UNKNOWN, encode, vocabulary

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_FOLDERS = ("ag_news", "ag_news_csv")
_ORIGIN = Origin(
    "ag_news/train.csv and ag_news/test.csv, rows of class (1 to 4), title and description",
    "take them out of the authors' ag_news_csv.tar.gz",
    fetched=False,
)
_OWN = Origin(
    "a CSV file in UTF-8 without a head, rows of a class and one or more columns of text",
    "write it so",
)


def find_ag_news(data_dir: Path | None) -> tuple[Path, ...]:
    """train.csv and test.csv; see `archive.search`."""
    files = ("train.csv", "test.csv")
    return tuple(search("ag_news", data_dir, _FOLDERS, (file,), _ORIGIN) for file in files)


def read_ag_news(data_dir: Path | None, length: int | None) -> Dataset:
    """Token ids of title and description; official sets train and test.

    The vocabulary is that of train.csv.
    """
    train, test = find_ag_news(data_dir)
    return _dataset("ag_news", [train, test], length, _ORIGIN, _ag_news_class)


def read_ag_news_test(data_dir: Path | None, length: int | None) -> Dataset:
    """The test set alone, without official sets; the vocabulary is that of all its texts."""
    files = ("ag_news_test.csv", "test.csv")
    path = search("ag_news_test", data_dir, (*_FOLDERS, ""), files, _ORIGIN)
    return _dataset("ag_news_test", [path], length, _ORIGIN, _ag_news_class)


def read_text(path: str, data_dir: Path | None, length: int | None) -> Dataset:
    """Any CSV of a class and the text in the columns behind it.

    PATH is relative to `data_dir` if that is given. Classes are in the order of their numbers, or
    of their names. The vocabulary is that of all texts.
    """
    return _dataset(f"text:{path}", [user_path(path, data_dir)], length, _OWN, None)


def _ag_news_class(text: str) -> str:
    if text not in ("1", "2", "3", "4"):
        raise ValueError(f"a class is {limits.short(text)}, not 1 to 4")
    return CLASSES[int(text) - 1]


def _dataset(
    name: str,
    paths: Sequence[Path],
    length: int | None,
    origin: Origin,
    class_of: Callable[[str], str] | None,
) -> Dataset:
    """The set of one file, or of a file that trains and one that tests."""
    classes, texts, ends = [], [], [0]
    for path in paths:
        with reading(path, origin):
            for label, text in _rows(path, origin):
                classes.append(class_of(label) if class_of else label)
                texts.append(text)
                limits.keep("the set", len(texts), limits.TEXTS, "texts")
            if len(texts) == ends[-1]:
                raise ValueError("it has no rows")
            ends.append(len(texts))
    with reading(paths[0], origin):
        ids = vocabulary(texts[: ends[1]])  # of the training texts alone
        names = CLASSES if class_of else _in_order(set(classes))
        number = dict(zip(names, range(len(names))))
        official = {}
        if len(paths) == 2:
            official = {"train": np.arange(ends[1]), "test": np.arange(ends[1], ends[2])}
        tokens = encode(texts, ids, length or LENGTH)
        labels = np.array([number[name] for name in classes], np.int32)
        return Dataset(
            name, tokens, labels, names, official=official, vocabulary=len(ids) + UNKNOWN + 1
        )


def _rows(path: Path, origin: Origin) -> Iterator[tuple[str, str]]:
    """Yields (class, text); the columns of a text have a space between them."""
    content = read_whole(path, limits.TEXTS_BYTES)
    if origin is _ORIGIN:
        check_sum(MD5, path, content)
    lines = io.TextIOWrapper(io.BytesIO(content), "utf-8", newline="")
    rows, columns = csv.reader(lines, strict=True), None
    for row in rows:
        if len(row) < 2 or len(row) != (columns or len(row)):
            raise ValueError(
                f"line {rows.line_num} has {len(row)} columns, not {columns or 'a class and texts'}"
            )
        columns = len(row)
        yield row[0].strip(), " ".join(row[1:])


def _in_order(classes: set[str]) -> tuple[str, ...]:
    limits.keep("the set", len(classes), limits.CLASSES, "classes")
    numbers = all(name.isdecimal() and len(name) < 10 for name in classes)
    return tuple(sorted(classes, key=int if numbers else str))


MD5 = {
    "train.csv": "b1a00f826fdfbd249f79597b59e1dc12",
    "test.csv": "d52ea96a97a2d943681189a97654912d",
}
AG_NEWS = Source(
    name="ag_news",
    about="its authors' folder has no address that a program could ask; put its train.csv and "
    "test.csv into DIR/ag_news",
    read=read_ag_news,
    find=find_ag_news,
    md5=MD5,
    texts=True,
)
AG_NEWS_TEST = Source(
    name="ag_news_test",
    about="as for ag_news; test.csv alone serves",
    read=read_ag_news_test,
    md5=MD5,
    texts=True,
)
TEXT = Source(
    name="text",
    argument="PATH",
    about="it is a file of your own, and nothing is to be downloaded",
    read=read_text,
    texts=True,
)
