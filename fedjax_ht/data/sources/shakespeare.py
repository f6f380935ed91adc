"""Shakespeare's roles as LEAF (Caldas et al., 2018) makes them: 80 characters of a role's lines,
and the next one."""

import json
import logging
from pathlib import Path

import numpy as np

from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.data.files import limits
from fedjax_ht.data.files.archive import Origin, reading, search
from fedjax_ht.data.files.bounded import read_whole
from fedjax_ht.data.sources.source import Source

# LEAF's 80
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80
_ORIGIN = Origin(
    "shakespeare/train/*.json and shakespeare/test/*.json of LEAF, with users and user_data",
    "make them with LEAF's data/shakespeare/preprocess.sh -s niid -t sample, of at most "
    f"{limits.TEXTS_BYTES >> 20} MiB each (--sf 0.1)",
    fetched=False,
)


def find_shakespeare(data_dir: Path | None) -> tuple[Path, ...]:
    """The folders train and test; see `archive.search`."""
    folders = ("shakespeare", "shakespeare/data")
    return tuple(
        search("shakespeare", data_dir, folders, (part,), _ORIGIN) for part in ("train", "test")
    )


def read_shakespeare(data_dir: Path | None, length: int | None) -> Dataset:
    """Token ids uint16 [N, 80]: LEAF's letters from 1 on, 0 for any other character. The label is
    the next letter.

    `groups` are the roles. Where every role trains and tests (LEAF's -t sample), `clients` is that
    split, role after role; the official sets train and test are there in any case. A sample whose
    next character is no letter is left out, with one line as a warning.
    """
    if length not in (None, LENGTH):
        raise ValueError(
            f"shakespeare: text_length is {length}; the texts have {LENGTH} characters, leave it "
            "at 0"
        )
    parts = [_read(folder) for folder in find_shakespeare(data_dir)]
    roles = {role: i for i, role in enumerate({**parts[0], **parts[1]})}
    found = [(roles[role], x, y) for part in parts for role, (x, y) in part.items()]
    groups = np.concatenate([np.full(len(y), role, np.int32) for role, _, y in found])
    tokens, following = (np.concatenate([row[i] for row in found]) for i in (1, 2))
    train = np.arange(len(groups)) < sum(len(y) for _, y in parts[0].values())
    if missing := np.count_nonzero(following == 0):
        logging.warning(
            f"shakespeare: {missing} samples are left out, whose next character is none of LEAF's "
            "80"
        )
    kept = following > 0
    tokens, labels, groups, train = tokens[kept], following[kept] - 1, groups[kept], train[kept]
    clients = None
    if set(parts[0]) == set(parts[1]):
        own = [groups == role for role in range(len(roles))]
        clients = tuple(
            ClientIndices(np.flatnonzero(mine & train), np.arange(0), np.flatnonzero(mine & ~train))
            for mine in own
        )
    return Dataset(
        "shakespeare",
        tokens.astype(np.uint16),
        labels.astype(np.int32),
        tuple({"\n": "newline", " ": "space"}.get(letter, letter) for letter in LETTERS),
        official={"train": np.flatnonzero(train), "test": np.flatnonzero(~train)},
        clients=clients,
        groups=groups,
        vocabulary=len(LETTERS) + 1,
    )


def _read(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """role -> (token ids uint8 [n, 80], the next letter's uint8 [n])."""
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    with reading(folder, _ORIGIN):
        if not (files := sorted(folder.glob("*.json"))):
            raise ValueError("no .json file in it")
    for file in files:
        with reading(file, _ORIGIN):
            for role, own in _users(file).items():
                if role in found:
                    raise ValueError(f"role {limits.short(role)} is there twice")
                found[role] = _samples(role, own)
                limits.keep(
                    "the set", sum(len(y) for _, y in found.values()), limits.TEXTS, "samples"
                )
    return found


def _users(file: Path) -> dict[str, dict]:
    """user -> {"x", "y"}, in the order of "users"."""
    content = bytes(read_whole(file, limits.TEXTS_BYTES))
    limits.keep(
        "it", sum(map(content.count, (b"[", b"{", b","))), limits.MARKS, "brackets and commas"
    )
    loaded = json.loads(content.decode("ascii"))
    match loaded:
        case {"users": list() as users, "user_data": dict() as data}:
            if not all(type(user) is str for user in users) or sorted(users) != sorted(data):
                raise ValueError("users are not the keys of user_data")
            return {user: data[user] for user in users}
    raise ValueError("no object with users and user_data")


def _samples(role: str, own: object) -> tuple[np.ndarray, np.ndarray]:
    match own:
        case {"x": list() as x, "y": list() as y} if len(x) == len(y):
            for texts, length in ((x, LENGTH), (y, 1)):
                if not all(type(text) is str and len(text) == length for text in texts):
                    raise ValueError(
                        f"role {limits.short(role)} has a text that is not of {length} characters"
                    )
            return _encode(x).reshape(-1, LENGTH), _encode(y)
    raise ValueError(f"role {limits.short(role)} is no object of as many x as y")


def _encode(texts: list[str]) -> np.ndarray:
    """uint8 [characters of all texts]."""
    code = np.zeros(129, np.uint8)
    code[[ord(letter) for letter in LETTERS]] = np.arange(1, len(LETTERS) + 1)
    characters = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    return code[np.minimum(characters, 128)]


SHAKESPEARE = Source(
    name="shakespeare",
    about="LEAF's preprocess.sh makes its files, and they have no address",
    read=read_shakespeare,
    find=find_shakespeare,
    texts=True,
)
