"""Folders in LEAF's layout: FEMNIST, Sent140 and others of its sets, split by user.

Source: Caldas et al., 2018.
"""

import dataclasses
import itertools
import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.names import listed, short
from fedjax_ht.data.conversion import as_array
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.labels import as_labels
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.as_stored import as_stored, refuse_image_size
from fedjax_ht.lab.readers.columns import Roles
from fedjax_ht.lab.readers.images import resize
from fedjax_ht.lab.readers.leaf_files import Most, read_users
from fedjax_ht.lab.readers.shakespeare import letters_of, letters_set, refuse_form
from fedjax_ht.lab.readers.sizes import AS_THEY_ARE, Sizes
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.table_set import texts_set
from fedjax_ht.lab.readers.tokens import TextForm
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin, reading, user_path

SIDE = 28  # of FEMNIST's images
CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""FEMNIST's classes, in the order of its labels."""
_SENTIMENTS = ("negative", "positive")
_FIELDS = 5  # of a tweet of Sent140: id, date, query, user, text
_MARKS = 1 << 25  # brackets and commas of a file: a hundred writers of FEMNIST have 18 million
_ORIGIN = Origin(
    "train/*.json and test/*.json, or *.json, each with users and user_data, of each user as many "
    "samples x as labels y: 784 pixels, a text, a row of a tweet whose last cell is the text, 80 "
    "characters and the next one, or numbers",
    "make them with preprocess.sh of LEAF's data/femnist, sent140 or shakespeare (-s niid -t "
    "sample)",
)


class _User(NamedTuple):
    """A user's samples.

    Attributes:
      kind: "images", "texts", "tweets", "letters" or "rows".
      inputs: the samples, in order.
      labels: classes of the samples, int [n]; of letters the ids from 1.
      missing: number of samples left out, since their next character is no letter.
    """

    kind: str
    inputs: np.ndarray | list[str]
    labels: np.ndarray
    missing: int = 0


def read_leaf(path: str, data_dir: Path | None, sizes: Sizes = AS_THEY_ARE) -> Dataset:
    """Reads PATH/train/*.json and PATH/test/*.json, or PATH/*.json, PATH one of the current folder
    or `data_dir`.

    `groups` are the users. Where train and test have the same users (LEAF's -t sample), `clients`
    is that split, user after user; the official sets train and test are there in any case. A folder
    without train/ and test/ has groups alone.

        x                                   read as
        784 floats in [0, 1], or integers   images uint8 [N, 28, 28, 1]
        up to 255
        a row of five texts                 tokens of the last one, a tweet
        a text                              tokens
        80 characters, and y the next one   ids of the characters, uint16 [N, 80], as of Shakespeare
        numbers                             rows of a table, float32 [N, F]

    Raises:
      ValueError, FileNotFoundError: the files are of another form, or damaged. One line.
    """
    root = user_path(path, data_dir)
    parts = {}
    for name, folder in _folders(root).items():
        parts[name] = read_users(
            folder,
            _ORIGIN,
            _converted,
            size=lambda user: len(user.labels),
            most=Most(limits.FILE_BYTES, _MARKS),
        )
    with reading(root, _ORIGIN):
        return _joined(f"leaf:{path}", root, parts, sizes)


def _folders(root: Path) -> dict[str, Path]:
    """Name of a part -> its folder; "" where there is one part."""
    for folder in (root, root / "data"):
        parts = {part: folder / part for part in ("train", "test")}
        if any(part.is_dir() for part in parts.values()):
            return parts
    return {"": root}


def _joined(
    name: str, root: Path, parts: Mapping[str, Mapping[str, _User]], sizes: Sizes
) -> Dataset:
    """Returns the set of all parts, each user by user."""
    users = tuple(dict.fromkeys(itertools.chain(*parts.values())))
    numbers = dict(zip(users, range(len(users))))
    every = list(itertools.chain(*(of_part.values() for of_part in parts.values())))
    labels = np.concatenate([user.labels for user in every] or [np.arange(0)])
    if not len(labels):
        raise ValueError("no user has a sample")
    groups, official, start = [], {}, 0
    for part, of_part in parts.items():
        counts = [len(user.labels) for user in of_part.values()]
        groups.append(np.repeat([numbers[user] for user in of_part], counts))
        if part:
            official[part] = np.arange(start, start + sum(counts))
        start += sum(counts)
    groups = np.concatenate(groups).astype(np.int32)
    clients, warnings = None, ()
    if official:
        clients, warnings = _clients(parts, users, groups, official)
    dataset = _set_of(name, every, labels, sizes, official)
    record = dataset.reading or Reading()
    record = dataclasses.replace(
        record, path=str(root), group_names=users, warnings=(*record.warnings, *warnings)
    )
    parts_of_set = {"official": official, "clients": clients, "groups": groups}
    return dataclasses.replace(dataset, **parts_of_set, reading=record)


def _clients(
    parts: Mapping[str, Mapping[str, _User]],
    users: tuple[str, ...],
    groups: np.ndarray,
    official: Mapping[str, np.ndarray],
) -> tuple[Partition | None, tuple[str, ...]]:
    """The split that LEAF made, user after user, or None with a warning where users train or test
    alone, though others do both."""
    train, test = (set(parts[part]) for part in ("train", "test"))
    if train != test:
        alone = [user for user in users if (user in train) != (user in test)]
        if not train & test:  # LEAF's -t user
            return None, ()
        named = listed(alone)
        return None, (f"in one of train and test alone, so that no split is given: {named}",)
    clients = []
    for number in range(len(users)):
        trains, tests = (rows[groups[rows] == number] for rows in official.values())
        clients.append(ClientIndices(train=trains, val=np.arange(0), test=tests))
    return tuple(clients), ()


def _set_of(
    name: str,
    users: Iterable[_User],
    labels: np.ndarray,
    sizes: Sizes,
    official: Mapping[str, np.ndarray],
) -> Dataset:
    """Returns the set of all users' samples, one after another, by their kind."""
    with_samples = [user for user in users if len(user.labels)]
    kinds = sorted({user.kind for user in with_samples})
    if len(kinds) > 1:
        raise ValueError(f"some users hold {kinds[0]} and others {kinds[1]}")
    (kind,) = kinds
    names = _class_names(kind, int(labels.max()) + 1)
    if kind in ("texts", "tweets"):
        refuse_image_size(sizes.image)
        texts = [[text] for user in with_samples for text in user.inputs]
        return texts_set(
            name,
            _UNNAMED,
            cells=texts,
            labels=labels,
            class_names=names,
            form=TextForm(sizes.text, sizes.tokenizer),
            official=official,
            reading=Reading(),
        )
    if kind == "letters":
        refuse_image_size(sizes.image)
        refuse_form(name, TextForm(sizes.text, sizes.tokenizer))
        tokens = np.concatenate([user.inputs for user in with_samples])
        missing = sum(user.missing for user in users)
        return letters_set(name, tokens, labels, missing=missing, path="")
    if sizes.text is not None:
        raise ValueError(f"text_length is {sizes.text}, but {name} has no texts")
    if sizes.tokenizer is not None:
        raise ValueError(f"a tokenizer is given, but {name} has no texts")
    widths = {np.shape(user.inputs)[1:] for user in with_samples}
    if len(widths) > 1:
        first, second = sorted(widths)[:2]
        raise ValueError(f"some users have samples of shape {first} and others of {second}")
    inputs = np.concatenate([user.inputs for user in with_samples])
    if kind == "images":
        return Dataset(name, resize(inputs, sizes.image), labels, names, reading=Reading())
    refuse_image_size(sizes.image)
    return Dataset(name, inputs, labels, names, reading=Reading())


_UNNAMED = Roles(label="", features=(), group="", are_named=False, sentence="")


def _class_names(kind: str, count: int) -> tuple[str, ...]:
    if kind == "tweets" and count <= len(_SENTIMENTS):
        return _SENTIMENTS
    if kind == "images" and len(string.digits) < count <= len(CHARACTERS):
        return CHARACTERS
    return limits.numbered_classes(count)


def _converted(name: str, samples: object) -> _User:
    """Converts a user's samples from JSON.

    Raises:
      ValueError: they are of no kind, or not as many as labels. One line that names the user.
    """
    match samples:
        case {"x": list() as x, "y": list() as y} if len(x) == len(y):
            pass
        case _:
            raise ValueError(f"user {short(name)} must have as many samples x as labels y")
    owner = f"user {short(name)}"
    if any(type(label) is str for label in y) and all(type(sample) is str for sample in x):
        tokens, following = letters_of(owner, x, y)
        kept = following > 0
        return _User("letters", tokens[kept], following[kept], int(np.count_nonzero(~kept)))
    labels = as_labels(owner, y) if y else np.arange(0)
    if all(type(sample) is str for sample in x):
        return _User("texts", x, labels)
    if not all(type(sample) is list for sample in x):
        raise ValueError(f"{owner} has samples that are neither texts nor lists")
    if len({len(sample) for sample in x}) > 1:
        raise ValueError(f"{owner} has samples of several lengths")
    if all(type(cell) is str for sample in x for cell in sample):
        if len(x[0]) != _FIELDS:
            raise ValueError(
                f"{owner} has rows of {len(x[0])} texts; those of a tweet are {_FIELDS}: id, date, "
                "query, user and text"
            )
        return _User("tweets", [sample[-1] for sample in x], labels)
    return _converted_numbers(owner, x, labels)


def _converted_numbers(owner: str, x: list, labels: np.ndarray) -> _User:
    """Converts a user's rows of numbers; errors as of `_converted`."""
    if not all(type(cell) in (int, float) for sample in x for cell in sample):
        raise ValueError(f"{owner} has samples that are neither texts nor numbers alone")
    values = as_array(f"{owner}: x", x)
    if values.shape[1:] == (SIDE * SIDE,):
        return _User("images", _pixels(owner, values), labels)
    return _User("rows", as_stored(f"{owner}: x", values.astype(np.float64)), labels)


def _pixels(owner: str, values: np.ndarray) -> np.ndarray:
    """Images uint8 [n, 28, 28, 1] of rows of pixels, floats in [0, 1] or integers up to 255."""
    top = 1 if values.dtype.kind == "f" else 255
    if not (values.min() >= 0 and values.max() <= top):  # NaN fails both
        raise ValueError(
            f"{owner} has pixels from {values.min():g} to {values.max():g}; they must be floats in "
            "[0, 1] or integers from 0 to 255"
        )
    scaled = np.round(values * (255 // top)).astype(np.uint8)
    return scaled.reshape(-1, SIDE, SIDE, 1)


LEAF = Source(
    name="leaf",
    argument="PATH",
    about="LEAF's preprocess.sh makes its files, and they have no address",
    read=read_leaf,
    place=user_path,
    any_kind=True,
)
