"""Tokenises texts: words and punctuation, by a vocabulary of the training texts."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fedjax_ht.data.files import limits

PADDING, UNKNOWN = 0, 1  # ids; the vocabulary's words follow
WORDS = 32_000
LENGTH = 200

_RULE = str.maketrans({'"': "", ";": " ", ":": " "} | {mark: f" {mark} " for mark in "'.,()!?"})


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


def encode(texts: Sequence[str], ids: dict[str, int], length: int) -> np.ndarray:
    """Token ids, uint16 [N, length], of texts cut or padded behind with `PADDING`.

    Words that are not in `ids` are `UNKNOWN`.
    """
    tokens = np.full((len(texts), length), PADDING, np.uint16)
    for row, text in zip(tokens, texts):
        token_ids = [ids.get(word, UNKNOWN) for word in words(text)[:length]]
        row[: len(token_ids)] = token_ids
    return tokens
