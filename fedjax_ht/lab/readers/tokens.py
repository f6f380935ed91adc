"""Tokenises texts: words and punctuation, by a vocabulary of the training texts, or by a tokenizer
of a folder of Hugging Face's."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.tokenizer import Tokenizer

PADDING, UNKNOWN = 0, 1  # ids; the vocabulary's words follow
WORDS = 32_000
LENGTH = 200

_RULE = str.maketrans({'"': "", ";": " ", ":": " "} | {mark: f" {mark} " for mark in "'.,()!?"})


class TextForm(NamedTuple):
    """The form that texts are brought into.

    Attributes:
      length: number of tokens to which texts are cut or padded; None for `LENGTH`.
      tokenizer: a trained tokenizer; None for a vocabulary of the training texts.
    """

    length: int | None = None
    tokenizer: Tokenizer | None = None


class Tokens(NamedTuple):
    """Texts as token ids.

    Attributes:
      ids: token ids, uint16 or int32 [N, length], 0 behind a text's end.
      texts: the text of each token id.
      warnings: lines on texts whose end is not told from padding.
    """

    ids: np.ndarray
    texts: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def tokenised(texts: Sequence[str], learned: Sequence[int] | np.ndarray, form: TextForm) -> Tokens:
    """Returns texts as token ids.

    Args:
      texts: the texts.
      learned: indices of the texts that a vocabulary is learned from, where there is no tokenizer.
      form: the form of the result.

    Raises:
      ValueError: there are more than `limits.WORDS` different words.
    """
    length = form.length or LENGTH
    if form.tokenizer is None:
        ids = vocabulary(texts[i] for i in learned)
        return Tokens(encode(texts, ids, length), by_id(ids))
    rows, pieces = form.tokenizer.encode(texts, length), form.tokenizer.pieces
    smallest = np.uint16 if len(pieces) <= 1 << 16 else np.int32
    tokens = np.full((len(texts), length), PADDING, smallest)
    for token_ids, row in zip(tokens, rows):
        token_ids[: len(row)] = row
    ambiguous = sum(row[-1:] == [PADDING] for row in rows)
    warnings: tuple[str, ...] = ()
    if ambiguous:
        warnings = (
            f"{ambiguous:,} texts end in the token {pieces[PADDING]!r}, whose id 0 is padding here",
        )
    return Tokens(tokens, ("", *pieces[1:]), warnings)


def text_rows(content: bytes | bytearray, mark: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yields (line, cells) of a CSV file of texts, each row with as many cells as the first.

    Args:
      content: the content of the file, UTF-8.
      mark: the character between cells.

    Raises:
      ValueError: a row has one cell, or another number of cells.
    """
    # a byte order mark, which other programs write, is no part of the first cell
    lines = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    rows, columns = csv.reader(lines, delimiter=mark, strict=True), None
    for row in rows:
        if len(row) < 2 or len(row) != (columns or len(row)):
            raise ValueError(
                f"line {rows.line_num} has {len(row)} columns, not {columns or 'a class and texts'}"
            )
        columns = len(row)
        yield rows.line_num, row


def words(text: str) -> list[str]:
    """Splits a text into words by torchtext's rule "basic_english", which PFLlib and HtFLlib use.

    Lower case, double quotes left out, the marks ' . , ( ) ! ? by themselves, and split at white
    space, semicolons, colons and "<br />".
    """
    return text.lower().translate(_RULE).replace("<br />", " ").split()


def vocabulary(texts: Iterable[str], size: int = WORDS) -> dict[str, int]:
    """The ids of the `size` most frequent words, from 2 on.

    Of equally frequent words those that come first.

    Raises:
      ValueError: there are more than `limits.WORDS` different words.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
        limits.keep("the set", len(counts), limits.WORDS, "different words")
    words_in_order = [word for word, _ in counts.most_common(size)]
    return {word: i for i, word in enumerate(words_in_order, UNKNOWN + 1)}


def by_id(ids: dict[str, int]) -> tuple[str, ...]:
    """The text of each token id: of a vocabulary, padding and unknown words."""
    return ("", "?", *ids)


def encode(texts: Sequence[str], ids: dict[str, int], length: int) -> np.ndarray:
    """Token ids, uint16 [N, length], of texts cut or padded behind with `PADDING`.

    Words that are not in `ids` are `UNKNOWN`.
    """
    tokens = np.full((len(texts), length), PADDING, np.uint16)
    for row, text in zip(tokens, texts):
        token_ids = [ids.get(word, UNKNOWN) for word in words(text)[:length]]
        row[: len(token_ids)] = token_ids
    return tokens
