"""AG News as its authors' CSV files.

Source: Zhang, Zhao and LeCun, NeurIPS 2015.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.core.names import short
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.checksums import check_sum
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.tokens import TextForm, text_rows, tokenised
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin, reading, search
from fedjax_ht.lab.safe.bounded import read_whole

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


def read_ag_news(data_dir: Path | None, form: TextForm) -> Dataset:
    """Token ids of title and description; official sets train and test.

    The vocabulary is that of train.csv.
    """
    train, test = find_ag_news(data_dir)
    return _dataset("ag_news", [train, test], form)


def find_ag_news_test(data_dir: Path | None) -> tuple[Path, ...]:
    """The file of the test set; see `archive.search`."""
    files = ("ag_news_test.csv", "test.csv")
    return (search("ag_news_test", data_dir, (*_FOLDERS, ""), files, _ORIGIN),)


def read_ag_news_test(data_dir: Path | None, form: TextForm) -> Dataset:
    """The test set alone, without official sets; the vocabulary is that of all its texts."""
    return _dataset("ag_news_test", find_ag_news_test(data_dir), form)


def _dataset(name: str, paths: Sequence[Path], form: TextForm) -> Dataset:
    """The set of one file, or of a file that trains and one that tests."""
    labels, texts, ends, warnings = [], [], [0], ()
    for path in paths:
        with reading(path, _ORIGIN):
            content = read_whole(path, limits.TEXTS_BYTES)
            warnings += check_sum(MD5, path, content)
            for _, (label, *columns) in text_rows(content):
                if label.strip() not in _NUMBERS:
                    raise ValueError(f"a class is {short(label)}, not 1 to 4")
                labels.append(_NUMBERS.index(label.strip()))
                texts.append(" ".join(columns))
                limits.keep("the set", len(texts), limits.TEXTS, "texts")
            if len(texts) == ends[-1]:
                raise ValueError("it has no rows")
            ends.append(len(texts))
    with reading(paths[0], _ORIGIN):
        # a vocabulary is of the training texts alone
        tokens = tokenised(texts, np.arange(ends[1]), form)
        official = {}
        if len(paths) == 2:
            official = {"train": np.arange(ends[1]), "test": np.arange(ends[1], ends[2])}
        return Dataset(
            name,
            tokens.ids,
            np.array(labels, np.int32),
            CLASSES,
            official=official,
            vocabulary=len(tokens.texts),
            reading=Reading(
                path=str(paths[0].parent),
                token_texts=tokens.texts,
                warnings=warnings + tokens.warnings,
            ),
        )


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
    find=find_ag_news_test,
    md5=MD5,
    texts=True,
)
