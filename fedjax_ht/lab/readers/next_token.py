"""Next-word prediction: plain texts cut into windows of tokens, with the token behind each as its
class.

A window is a sample like any other text, so that every method and every model of texts takes it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.table_files import owners_of
from fedjax_ht.lab.readers.tokens import PADDING, UNKNOWN, TextForm, by_id, vocabulary, words
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.archive import Origin, printable, reading, user_path
from fedjax_ht.lab.safe.bounded import read_whole

LENGTH = 32  # tokens of a window where no text_length is given
_ORIGIN = Origin(
    "a .txt file in UTF-8, or a folder of them, one a client",
    "write each author's text to a file of its own",
)


class Windows(NamedTuple):
    """Samples of one text.

    Attributes:
      tokens: int32 [n, length], `PADDING` behind a shorter one.
      following: int32 [n], the token behind each.
    """

    tokens: np.ndarray
    following: np.ndarray


def windows_of(ids: Sequence[int], length: int) -> Windows:
    """Cuts a text into pieces of length + 1 tokens: the last token of a piece is the class of those
    before it.

    No token is in two pieces, so that no split of the samples shows a test's answer to training. A
    last piece of one token is left out.

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


def read_next_token(path: str, data_dir: Path | None, form: TextForm) -> Dataset:
    """Reads PATH, one of the current folder or `data_dir`.

    It is a .txt file, or a folder of them: one a client, whose samples are a group, or, where all
    are called like sets, the official sets. Tokens are those of the form's tokenizer, without its
    special ones, or words of the training texts. Classes are the tokens that follow some window, in
    the order of their ids.

    Raises:
      ValueError: a file is too large, no UTF-8 or too short. One line.
    """
    place = user_path(path, data_dir)
    with reading(place, _ORIGIN):
        files, left_out = _text_files(place)
        texts = [_text(file) for file in files]
        ids, pieces = _ids(files, texts, form)
        each = [windows_of(text_ids, form.length or LENGTH) for text_ids in ids]
        for file, windows in zip(files, each):
            if not len(windows.following):
                raise ValueError(f"{file.name} has fewer than two tokens; leave the file out")
        # An unknown word is no answer that a model could give.
        if form.tokenizer is None:
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
        smallest = np.uint16 if len(pieces) <= 1 << 16 else np.int32
        return Dataset(
            f"next_token:{path}",
            np.concatenate([windows.tokens for windows in each]).astype(smallest),
            labels.astype(np.int32),
            tuple(pieces[i] for i in classes),
            official=owners.official,
            groups=owners.groups,
            vocabulary=len(pieces),
            reading=Reading(
                path=str(place),
                group_names=owners.names,
                token_texts=pieces,
                left_out=left_out,
                warnings=tuple(f"left out: {entry}" for entry in left_out),
            ),
        )


def _text_files(place: Path) -> tuple[list[Path], tuple[LeftOut, ...]]:
    """The file, or those of a folder by name, and the folder's other entries."""
    if not place.is_dir():
        return [place], ()
    files, left_out = [], []
    for path in sorted(place.iterdir()):
        if path.name.startswith("."):
            continue
        if path.suffix.lower() == ".txt" and not path.is_dir():
            files.append(path)
        else:
            left_out.append(LeftOut(0, printable(path.name), "no .txt file"))
    if not files:
        raise ValueError("no .txt file in the folder")
    return files, tuple(left_out)


def _text(file: Path) -> str:
    try:
        return read_whole(file, limits.TEXTS_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name} is no UTF-8 (byte {error.start:,})") from error


def _ids(
    files: Sequence[Path], texts: Sequence[str], form: TextForm
) -> tuple[list[list[int]], tuple[str, ...]]:
    """Token ids of whole texts, and the text of each id."""
    if form.tokenizer is not None:
        pieces = form.tokenizer.pieces
        return form.tokenizer.encode_whole(texts), ("", *pieces[1:])
    trains = owners_of(files, [1] * len(files)).official.get("train", range(len(files)))
    numbers = vocabulary(texts[i] for i in trains)
    ids = [[numbers.get(word, UNKNOWN) for word in words(text)] for text in texts]
    return ids, by_id(numbers)


NEXT_TOKEN = Source(
    name="next_token",
    argument="PATH",
    about="it is a text of your own, or a folder of them, and nothing is to be downloaded",
    read=read_next_token,
    place=user_path,
    texts=True,
)
