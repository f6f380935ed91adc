"""Texts to token ids: words and punctuation, and the vocabulary that is learned from training
texts."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fedjax_ht.data.files import limits

PADDING, UNKNOWN = 0, 1  # ids; the vocabulary's words follow
WORDS = 32_000
LENGTH = 200

_RULE = str.maketrans({'"': "", ";": " ", ":": " "} | {mark: f" {mark} " for mark in "'.,()!?"})


def words(text: str) -> list[str]:
    """Lower case, double quotes left out, the marks ' . , ( ) ! ? by themselves, and split at white
    space, semicolons, colons and "<br />": torchtext's "basic_english", which PFLlib and HtFLlib
    use."""
    return text.lower().translate(_RULE).replace("<br />", " ").split()


def vocabulary(texts: Iterable[str], size: int = WORDS) -> dict[str, int]:
    """word -> id of the `size` most frequent words, from 2 on; of equally frequent ones those that
    come first.

    Raises:
      ValueError: there are more than `limits.WORDS` different words.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
        limits.keep("the set", len(counts), limits.WORDS, "different words")
    return {word: i + 2 for i, (word, _) in enumerate(counts.most_common(size))}


def encode(texts: Sequence[str], ids: dict[str, int], length: int) -> np.ndarray:
    """uint16 [N, length], cut or padded behind with `PADDING`; words that are not in `ids` are
    `UNKNOWN`."""
    tokens = np.full((len(texts), length), PADDING, np.uint16)
    for row, text in zip(tokens, texts):
        found = [ids.get(word, UNKNOWN) for word in words(text)[:length]]
        row[: len(found)] = found
    return tokens
