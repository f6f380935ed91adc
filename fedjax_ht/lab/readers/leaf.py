"""Reads folders in LEAF's layout: FEMNIST, Sent140 and other sets, split by user.

Source: Caldas et al., 2018.
"""

import dataclasses
import itertools
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.check.names import short
from fedjax_ht.data.conversion import as_array, as_labels
from fedjax_ht.data.indices import ClientIndices, Partition
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source, as_stored, one_after_another
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import Origin, read_whole, reading

SIDE = 28  # pixels per side of FEMNIST's images
CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""FEMNIST's classes, in the order of its labels."""
_SENTIMENTS = ("negative", "positive")
_FIELDS = 5  # of a tweet of Sent140: id, date, query, user, text
# LEAF's 80 characters
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80
_LETTER_NAMES = {"\n": "newline", " ": "space"}  # class names of these letters
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
      labels: classes of the samples, int [n]; for letters the ids from 1.
      missing: number of samples skipped because their next character is unknown.
    """

    kind: str
    inputs: np.ndarray | list[str]
    labels: np.ndarray
    missing: int = 0


def read_leaf(root: Path, options: ReadOptions) -> Raw:
    """Reads train/*.json and test/*.json from a folder, or its *.json.

    `groups` are the users. If train and test have the same users (LEAF's -t sample), `clients` is
    that split, in user order; the official sets train and test exist in any case. A folder without
    train/ and test/ has only groups.

        x                                   read as
        784 floats in [0, 1], or integers   images uint8 [N, 28, 28, 1]
        up to 255
        a row of five texts                 tokens of the last one, the tweet
        a text                              tokens
        80 characters, and y the next one   ids of the characters, uint16 [N, 80], as in Shakespeare
        numbers                             rows of a table, float32 [N, F]

    Raises:
      ValueError, FileNotFoundError: the files have another form, or are damaged. One line.
    """
    parts = {name: _read_users(folder) for name, folder in _folders(root).items()}
    users = tuple(dict.fromkeys(itertools.chain(*parts.values())))
    numbers = dict(zip(users, range(len(users))))
    every = list(itertools.chain(*(of_part.values() for of_part in parts.values())))
    counts = [len(user.labels) for user in every]
    if not sum(counts):
        raise ValueError("no user has a sample")
    owners = [numbers[user] for of_part in parts.values() for user in of_part]
    groups = np.repeat(owners, counts).astype(np.int32)
    official, clients = {}, None
    if "" not in parts:
        sizes = [sum(len(user.labels) for user in of_part.values()) for of_part in parts.values()]
        official = one_after_another(zip(parts, sizes))
        clients = _clients(parts, users, groups, official)
    raw = _samples([user for user in every if len(user.labels)])
    missing = sum(user.missing for user in every)
    left_out = ()
    if missing:
        left_out = (LeftOut(missing, "sample", "their next character is not one of LEAF's 80"),)
    record = dataclasses.replace(raw.reading, group_names=users, left_out=left_out)
    return raw._replace(official=official, clients=clients, groups=groups, reading=record)


def _folders(root: Path) -> dict[str, Path]:
    """Returns name of a part -> its folder; the name is "" if there is only one part."""
    for folder in (root, root / "data"):
        parts = {part: folder / part for part in ("train", "test")}
        if any(part.is_dir() for part in parts.values()):
            return parts
    return {"": root}


def _read_users(folder: Path) -> dict[str, _User]:
    """Reads the users of a folder's .json files, or of one file, in the files' order.

    Raises:
      FileNotFoundError, ValueError: there is no file, or it has another form. One line that names
        it.
    """
    kept: dict[str, _User] = {}
    with reading(folder, _ORIGIN):
        files = sorted(folder.glob("*.json")) if folder.is_dir() else [folder]
        if not files:
            raise ValueError("no .json file in it")
    count = 0
    for file in files:
        with reading(file, _ORIGIN):
            for name, samples in _users(file).items():
                if name in kept:
                    raise ValueError(f"user {short(name)} occurs twice")
                kept[name] = _converted(name, samples)
                count += len(kept[name].labels)
                limits.keep("the set", count, limits.TEXTS, "samples")
    return kept


def _users(file: Path) -> dict[str, object]:
    """Returns user -> samples, in the order of "users"."""
    content = bytes(read_whole(file))
    marks = sum(map(content.count, (b"[", b"{", b",")))
    limits.keep("it", marks, limits.JSON_MARKS, "brackets and commas")
    limits.keep("it", content.count(b"{"), limits.JSON_OBJECTS, "objects")
    match json.loads(content.decode()):
        case {"users": list() as users, "user_data": dict() as data}:
            if not all(type(user) is str for user in users) or sorted(users) != sorted(data):
                raise ValueError("users are not the keys of user_data")
            return {user: data[user] for user in users}
    raise ValueError("not an object with users and user_data")


def _clients(
    parts: Mapping[str, Mapping[str, _User]],
    users: tuple[str, ...],
    groups: np.ndarray,
    official: Mapping[str, np.ndarray],
) -> Partition | None:
    """Returns LEAF's split in user order; None if some users only train or only test."""
    if parts["train"].keys() != parts["test"].keys():
        return None
    clients = []
    for number in range(len(users)):
        trains, tests = (rows[groups[rows] == number] for rows in official.values())
        clients.append(ClientIndices(train=trains, val=np.arange(0), test=tests))
    return tuple(clients)


def _samples(users: Sequence[_User]) -> Raw:
    """Returns the samples of all users in order, converted by their kind."""
    kinds = sorted({user.kind for user in users})
    if len(kinds) > 1:
        raise ValueError(f"some users have {kinds[0]} and others {kinds[1]}")
    (kind,) = kinds
    labels = np.concatenate([user.labels for user in users])
    names = _class_names(kind, int(labels.max()) + 1)
    if kind in ("texts", "tweets"):
        return Raw([text for user in users for text in user.inputs], labels, names)
    widths = {np.shape(user.inputs)[1:] for user in users}
    if len(widths) > 1:
        first, second = sorted(widths)[:2]
        raise ValueError(f"some users have samples of shape {first} and others of {second}")
    if kind == "images":
        pixels = np.concatenate([user.inputs for user in users])
        return Raw(pixels.reshape(-1, SIDE, SIDE, 1), labels, names)
    inputs = np.concatenate([user.inputs for user in users])
    if kind != "letters":
        return Raw(inputs, labels, names)
    return Raw(
        inputs.astype(np.uint16),
        labels - 1,
        tuple(_LETTER_NAMES.get(letter, letter) for letter in LETTERS),
        vocabulary=len(LETTERS) + 1,
        reading=Reading(token_texts=("", *LETTERS)),
    )


def _class_names(kind: str, count: int) -> tuple[str, ...]:
    if kind == "tweets" and count <= len(_SENTIMENTS):
        return _SENTIMENTS
    if kind == "images" and len(string.digits) < count <= len(CHARACTERS):
        return CHARACTERS
    return limits.numbered_classes(count)


def _converted(name: str, samples: object) -> _User:
    """Converts a user's samples from JSON.

    Raises:
      ValueError: unknown kind, or x and y differ in length. One line that names the user.
    """
    match samples:
        case {"x": list() as x, "y": list() as y} if len(x) == len(y):
            pass
        case _:
            raise ValueError(f"user {short(name)} must have as many samples x as labels y")
    owner = f"user {short(name)}"
    if any(type(label) is str for label in y) and all(type(sample) is str for sample in x):
        tokens, following = _letters(owner, x, y)
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
                f"{owner} has rows of {len(x[0])} texts; a tweet has {_FIELDS}: id, date, "
                "query, user and text"
            )
        return _User("tweets", [sample[-1] for sample in x], labels)
    return _converted_numbers(owner, x, labels)


def _converted_numbers(owner: str, x: list, labels: np.ndarray) -> _User:
    """Converts a user's rows of numbers; errors as of `_converted`."""
    if not all(type(cell) in (int, float) for sample in x for cell in sample):
        raise ValueError(f"{owner} has samples that are neither only texts nor only numbers")
    values = as_array(f"{owner}: x", x)
    if values.shape[1:] == (SIDE * SIDE,):
        top = 1 if values.dtype.kind == "f" else 255
        if not (values.min() >= 0 and values.max() <= top):  # NaN fails both
            raise ValueError(
                f"{owner} has pixels from {values.min():g} to {values.max():g}; they must be "
                "floats in [0, 1] or integers from 0 to 255"
            )
        # a writer may have stored floats that are all 0 or 1 as integers
        scale = 255 if values.max() <= 1 else 1
        inputs = np.round(values * scale).astype(np.uint8)
        return _User("images", inputs, labels)
    return _User("rows", as_stored(f"{owner}: x", values.astype(np.float64)), labels)


def _letters(owner: str, x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
    """Returns letter ids of texts, uint8 [n, 80], and ids of the next letters, uint8 [n].

    Raises:
      ValueError: a text has another length. One line.
    """
    for texts, length in ((x, LENGTH), (y, 1)):
        if not all(type(text) is str and len(text) == length for text in texts):
            raise ValueError(f"{owner} has a text of other than {length} characters")
    # 0 for characters that LEAF lacks; the last entry is for all characters beyond ASCII
    code = np.zeros(129, np.uint8)
    code[list(map(ord, LETTERS))] = np.arange(1, len(LETTERS) + 1)
    encoded = ("".join(texts).encode("utf-32-le", "surrogatepass") for texts in (x, y))
    letters, following = (code[np.minimum(np.frombuffer(x, np.uint32), 128)] for x in encoded)
    return letters.reshape(-1, LENGTH), following


LEAF = Source(
    name="leaf:PATH",
    about="LEAF's preprocess.sh generates its files; they have no download address",
    read=read_leaf,
    origins=(_ORIGIN,),
)
