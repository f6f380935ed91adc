"""Shakespeare's roles as LEAF makes them: 80 characters of a role's lines, and the next one.

Source: Caldas et al., 2018.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.core.names import short
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.leaf_files import Most, read_users
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.tokens import TextForm
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin, search

# LEAF's 80
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80
_NAMES = {"\n": "newline", " ": "space"}  # of the classes of these letters
_Texts = dict[str, tuple[np.ndarray, np.ndarray]]
"""Role -> token ids uint8 [n, 80], and those of the next letters uint8 [n]."""

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


def read_shakespeare(data_dir: Path | None, form: TextForm) -> Dataset:
    """Token ids uint16 [N, 80]; the label is the next letter.

    LEAF's letters have the ids from 1 on, any other character 0.

    `groups` are the roles. Where every role trains and tests (LEAF's -t sample), `clients` is that
    split, role after role; the official sets train and test are there in any case. A sample whose
    next character is no letter is left out, with one line as a warning.
    """
    refuse_form("shakespeare", form)
    folders = find_shakespeare(data_dir)
    train, test = map(_read, folders)
    samples = _joined(train, test)
    kept = samples.following > 0
    missing = int(np.count_nonzero(~kept))
    samples = _Samples(*(array[kept] for array in samples))
    return letters_set(
        "shakespeare",
        samples.tokens,
        samples.following,
        missing=missing,
        path=str(folders[0].parent),
        official={
            "train": np.flatnonzero(samples.trains),
            "test": np.flatnonzero(~samples.trains),
        },
        clients=_clients(samples, len(train)) if set(train) == set(test) else None,
        groups=samples.roles,
    )


def refuse_form(name: str, form: TextForm) -> None:
    """Refuses a tokenizer, and any length but that of LEAF's texts.

    Raises:
      ValueError: one is given. One line that begins with the set's name.
    """
    if form.tokenizer is not None:
        raise ValueError(f"{name}: its tokens are LEAF's letters; leave tokenizer out")
    if form.length not in (None, LENGTH):
        raise ValueError(
            f"{name}: text_length is {form.length}; the texts have {LENGTH} characters, leave it "
            "at 0"
        )


def letters_set(
    name: str,
    tokens: np.ndarray,
    following: np.ndarray,
    *,
    missing: int,
    path: str,
    **parts: Any,
) -> Dataset:
    """Returns the set of texts whose classes are the next letters.

    Args:
      name: the set's name.
      tokens: ids of the letters, int [N, 80].
      following: id of the next letter, int [N], from 1.
      missing: number of samples that were left out, since their next character is no letter.
      path: the folder that was read.
      **parts: other fields of the `Dataset`.
    """
    left_out, warnings = (), ()
    if missing:
        left_out = (LeftOut(missing, "sample", "their next character is none of LEAF's 80"),)
        warnings = (f"left out: {left_out[0]}",)
    return Dataset(
        name,
        tokens.astype(np.uint16),
        following.astype(np.int32) - 1,
        tuple(_NAMES.get(letter, letter) for letter in LETTERS),
        vocabulary=len(LETTERS) + 1,
        reading=Reading(
            path=path,
            token_texts=("", *LETTERS),
            left_out=left_out,
            warnings=warnings,
        ),
        **parts,
    )


class _Samples(NamedTuple):
    """The samples of all roles.

    Attributes:
      roles: int32 [N], number of the role.
      tokens: uint8 [N, 80], ids of the letters.
      following: uint8 [N], id of the next letter; 0 for none of LEAF's.
      trains: bool [N], True for the training set.
    """

    roles: np.ndarray
    tokens: np.ndarray
    following: np.ndarray
    trains: np.ndarray


def _joined(train: _Texts, test: _Texts) -> _Samples:
    """The training samples and then the test samples, each role by role."""
    numbers = dict(zip({**train, **test}, range(len({**train, **test}))))
    parts = []
    for texts, trains in ((train, True), (test, False)):
        for role, (tokens, following) in texts.items():
            count = len(following)
            roles = np.full(count, numbers[role], np.int32)
            parts.append(_Samples(roles, tokens, following, np.full(count, trains)))
    if not parts:
        raise ValueError("shakespeare: the files have no roles")
    return _Samples(*map(np.concatenate, zip(*parts)))


def _clients(samples: _Samples, num_roles: int) -> Partition:
    """The split that LEAF made, role after role."""
    clients = []
    for role in range(num_roles):
        of_role = samples.roles == role
        clients.append(
            ClientIndices(
                train=np.flatnonzero(of_role & samples.trains),
                val=np.arange(0),
                test=np.flatnonzero(of_role & ~samples.trains),
            )
        )
    return tuple(clients)


def _read(folder: Path) -> _Texts:
    return read_users(
        folder,
        _ORIGIN,
        _samples,
        size=lambda samples: len(samples[1]),
        most=Most(limits.TEXTS_BYTES, limits.MARKS),
        user="role",
        encoding="ascii",
    )


def _samples(role: str, samples: object) -> tuple[np.ndarray, np.ndarray]:
    """Token ids uint8 [n, 80], and those of the next letters uint8 [n], of a role."""
    match samples:
        case {"x": list() as x, "y": list() as y} if len(x) == len(y):
            return letters_of(f"role {short(role)}", x, y)
    raise ValueError(f"role {short(role)} must have as many texts x as next characters y")


def letters_of(owner: str, x: list, y: list) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids of the letters of texts, uint8 [n, 80], and of the next letters, uint8 [n].

    Args:
      owner: the user or role of the texts, for the error.
      x: texts of 80 characters.
      y: the next character of each.

    Raises:
      ValueError: a text has another length. One line.
    """
    for texts, length in ((x, LENGTH), (y, 1)):
        if not all(type(text) is str and len(text) == length for text in texts):
            raise ValueError(f"{owner} has a text that is not of {length} characters")
    return _encode(x).reshape(-1, LENGTH), _encode(y)


def _encode(texts: list[str]) -> np.ndarray:
    """Ids of the characters of all texts, uint8 [characters]; 0 for none of LEAF's letters."""
    code = np.zeros(129, np.uint8)  # the last place is of all characters beyond ASCII
    code[list(map(ord, LETTERS))] = np.arange(1, len(LETTERS) + 1)
    characters = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    return code[np.minimum(characters, 128)]


SHAKESPEARE = Source(
    name="shakespeare",
    about="LEAF's preprocess.sh makes its files, and they have no address",
    read=read_shakespeare,
    find=find_shakespeare,
    texts=True,
)
