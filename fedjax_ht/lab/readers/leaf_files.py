"""The JSON files of LEAF (Caldas et al., 2018): users, and each user's samples x and labels y."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from fedjax_ht.core.names import short
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin, reading
from fedjax_ht.lab.safe.bounded import read_whole

_T = TypeVar("_T")


class Most(NamedTuple):
    """Limits on a file: its bytes, and its brackets and commas, each of which may be a value."""

    bytes: int
    marks: int


def read_users(
    folder: Path,
    origin: Origin,
    convert: Callable[[str, object], _T],
    *,
    size: Callable[[_T], int],
    most: Most,
    user: str = "user",
    encoding: str = "utf-8",
) -> dict[str, _T]:
    """Reads the users of all .json files of a folder, or of one file, in the files' order.

    Args:
      folder: the folder or the file.
      origin: the files that are expected, for errors.
      convert: makes what is kept of (user, its samples as they are in the file).
      size: number of samples of what is kept.
      most: limits on each file.
      user: the word for a user, for errors.
      encoding: encoding of the files.

    Raises:
      FileNotFoundError, ValueError: there is no file, or it is of another form. One line that names
        it.
    """
    kept: dict[str, _T] = {}
    with reading(folder, origin):
        files = sorted(folder.glob("*.json")) if folder.is_dir() else [folder]
        if not files:
            raise ValueError("no .json file in it")
    count = 0
    for file in files:
        with reading(file, origin):
            for name, samples in _users(file, most, encoding).items():
                if name in kept:
                    raise ValueError(f"{user} {short(name)} occurs twice")
                kept[name] = convert(name, samples)
                count += size(kept[name])
                limits.keep("the set", count, limits.TEXTS, "samples")
    return kept


def _users(file: Path, most: Most, encoding: str) -> dict[str, object]:
    """User -> its samples, in the order of "users"."""
    content = bytes(read_whole(file, most.bytes))
    marks = sum(map(content.count, (b"[", b"{", b",")))
    limits.keep("it", marks, most.marks, "brackets and commas")
    loaded = json.loads(content.decode(encoding))
    match loaded:
        case {"users": list() as users, "user_data": dict() as data}:
            if not all(type(user) is str for user in users) or sorted(users) != sorted(data):
                raise ValueError("users are not the keys of user_data")
            return {user: data[user] for user in users}
    raise ValueError("no object with users and user_data")
