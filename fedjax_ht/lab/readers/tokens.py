"""Tokenises texts: words and punctuation, by a vocabulary of the training texts, or by a tokenizer
of a folder of Hugging Face's."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.tokenizer import Tokenizer

PADDING, UNKNOWN = 0, 1  # ids; the vocabulary's words follow
WORDS = 32_000
LENGTH = 200

_RULE = str.maketrans({'"': "", ";": " ", ":": " "} | {mark: f" {mark} " for mark in "'.,()!?"})


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


def tokenised(
    texts: Sequence[str],
    learned: Iterable[int],
    length: int | None,
    tokenizer: Path | None,
) -> Tokens:
    """Returns texts as token ids.

    Args:
      texts: the texts.
      learned: indices of the texts that a vocabulary is learned from, where there is no tokenizer.
      length: number of tokens to which texts are cut or padded; None for `LENGTH`.
      tokenizer: file of a trained tokenizer; None for a vocabulary.

    Raises:
      ValueError: there are more than `limits.WORDS` different words.
    """
    length = length or LENGTH
    if tokenizer is None:
        ids = vocabulary(texts[i] for i in learned)
        return Tokens(encode(texts, ids, length), by_id(ids))
    trained = Tokenizer(tokenizer)
    rows, pieces = trained.encode(texts, length), trained.pieces
    tokens = np.full((len(texts), length), PADDING, smallest_type(len(pieces)))
    for token_ids, row in zip(tokens, rows):
        token_ids[: len(row)] = row
    ambiguous = sum(row[-1:] == [PADDING] for row in rows)
    warnings: tuple[str, ...] = ()
    if ambiguous:
        warnings = (
            f"{ambiguous:,} texts end in the token {pieces[PADDING]!r}, whose id 0 is padding here",
        )
    return Tokens(tokens, ("", *pieces[1:]), warnings)


def smallest_type(count: int) -> type[np.integer]:
    """The smallest type that holds so many token ids."""
    return np.uint16 if count <= 1 << 16 else np.int32


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
