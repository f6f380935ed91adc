"""Sizes that samples are brought to, as users give them to readers of files and of memory."""

import os
from typing import NamedTuple

from fedjax_ht.lab.safe.tokenizer import Tokenizer, tokenizer_file

_LONGEST = 1 << 14  # tokens of a text


class Sizes(NamedTuple):
    """Sizes to which samples are made: images in pixels, texts in tokens; None as they are.

    Attributes:
      image: height and width of images.
      text: number of tokens of a text.
      tokenizer: a trained tokenizer of texts.
    """

    image: int | None = None
    text: int | None = None
    tokenizer: Tokenizer | None = None


AS_THEY_ARE = Sizes()


def sizes_of(
    image_size: int | None = None,
    text_length: int | None = None,
    tokenizer: str | os.PathLike | None = None,
) -> Sizes:
    """Returns sizes as a user gives them.

    Args:
      image_size: height and width of images in pixels.
      text_length: number of tokens of a text.
      tokenizer: a tokenizer.json, or a folder with one or with vocab.txt.

    Raises:
      ValueError: a size is no positive integer, or the file is no tokenizer. One line.
      FileNotFoundError: there is no such tokenizer. One line.
      ImportError: the package `tokenizers` is not installed. One line.
    """
    check_sizes(image_size, text_length)
    trained = Tokenizer(tokenizer_file(tokenizer)) if tokenizer else None
    return Sizes(image_size, text_length, trained)


def check_sizes(image_size: int | None, text_length: int | None) -> None:
    """Refuses sizes that are no positive integers.

    Raises:
      ValueError: one is none. One line.
    """
    # `type is int`: True is an int, but no size
    if image_size is not None and (type(image_size) is not int or image_size < 1):
        raise ValueError(f"image_size is {image_size!r}; it must be a positive integer or None")
    whole = type(text_length) is int and 1 <= text_length <= _LONGEST
    if text_length is not None and not whole:
        raise ValueError(
            f"text_length is {text_length!r}; it must be a positive integer up to {_LONGEST}, "
            "or None"
        )
