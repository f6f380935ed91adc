"""Next-token prediction on plain texts: windows of tokens, labelled with the token that follows.

A window is an ordinary text sample, so every method and every text model accepts it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.roles import files_of, owners_of
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source
from fedjax_ht.lab.readers.tokens import PADDING, UNKNOWN, smallest_type, token_ids
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import Origin, read_whole

LENGTH = 32  # default number of tokens in a window
_ORIGIN = Origin(
    "a .txt file in UTF-8, or a folder of them, one per client",
    "write each author's text to its own file",
)


class Windows(NamedTuple):
    """Samples of one text.

    Attributes:
      tokens: int32 [n, length], shorter ones padded with `PADDING`.
      following: int32 [n], the token after each window.
    """

    tokens: np.ndarray
    following: np.ndarray


def windows_of(ids: Sequence[int], length: int) -> Windows:
    """Cuts a text into pieces of length + 1 tokens; the last token is the class of the others.

    No token is in two pieces, so no split reveals a test sample's answer in training. A last piece
    of one token is dropped.

    Args:
      ids: token ids of the text.
      length: number of tokens of a window.
    """
    starts = range(0, len(ids) - 1, length + 1)
    tokens = np.full((len(starts), length), PADDING, np.int32)
    following = np.zeros(len(starts), np.int32)
    for row, start in enumerate(starts):
        *before, last = ids[start : start + length + 1]
        tokens[row, : len(before)], following[row] = before, last
    return Windows(tokens, following)


def read_next_token(place: Path, options: ReadOptions) -> Raw:
    """Reads a .txt file, or a folder of them.

    In a folder, each file is a client and its samples a group, or an official set, see
    `roles.owners_of`. Tokens come from the tokenizer, without its special
    tokens, or are words of the training texts. Classes are the tokens that follow some window, in
    the order of their ids.

    Raises:
      ValueError: a file is too large, not UTF-8 or too short. One line.
    """
    files, left_out = files_of(place, (".txt",))
    texts = [_text(file) for file in files]
    trains = owners_of(files, [1] * len(files)).official.get("train", range(len(files)))
    ids, pieces = token_ids(texts, trains, None, options.tokenizer)
    each = [windows_of(text_ids, options.text_length or LENGTH) for text_ids in ids]
    for file, windows in zip(files, each):
        if not len(windows.following):
            raise ValueError(f"{file.name} has fewer than two tokens; remove the file")
    # A model cannot answer with an unknown word.
    if options.tokenizer is None:
        known = [windows.following != UNKNOWN for windows in each]
        missing = sum(int(np.count_nonzero(~kept)) for kept in known)
        each = [Windows(*(x[kept] for x in w)) for w, kept in zip(each, known)]
        if missing:
            left_out += (LeftOut(missing, "sample", "their next word is unknown"),)
    counts = [len(windows.following) for windows in each]
    limits.keep("the set", sum(counts), limits.TEXTS, "samples")
    owners = owners_of(files, counts)
    following = np.concatenate([windows.following for windows in each])
    if not len(following):
        raise ValueError("no window is followed by a known word")
    classes, labels = np.unique(following, return_inverse=True)
    limits.keep("the set", len(classes), limits.CLASSES, "classes")
    return Raw(
        np.concatenate([windows.tokens for windows in each]).astype(smallest_type(len(pieces))),
        labels.astype(np.int32),
        tuple(pieces[i] for i in classes),
        official=owners.official,
        groups=owners.groups,
        vocabulary=len(pieces),
        used_tokenizer=True,
        reading=Reading(
            group_names=owners.names,
            token_texts=pieces,
            left_out=left_out,
            warnings=owners.warnings,
        ),
    )


def _text(file: Path) -> str:
    try:
        return read_whole(file, limits.TEXTS_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name} is not UTF-8 (byte {error.start:,})") from error


NEXT_TOKEN = Source(
    name="next_token:PATH",
    about="it is your own text, or a folder of them; nothing to download",
    read=read_next_token,
    origins=(_ORIGIN,),
)
