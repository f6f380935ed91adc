"""Readers take `ReadOptions` and return `Raw`; `dataset_of` makes a `Dataset` of both."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.inputs import Preprocess
from fedjax_ht.data.conversion import fits_device
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.images import resize
from fedjax_ht.lab.readers.tokens import tokenised, tokenizer_file

_LONGEST = 1 << 14  # tokens of a text


class ReadOptions(NamedTuple):
    """How a user wants a set to be read.

    Attributes:
      image_size: height and width of images in pixels; None as they are.
      text_length: number of tokens of a text; None for the usual number.
      tokenizer: file of a trained tokenizer; None for words of the training texts.
      label: column of the labels; "" for the usual names.
      features: columns of the samples; () for all others; with "-" before every name, all others
        but these.
      group: column of the samples' groups; "" for the usual names.
    """

    image_size: int | None = None
    text_length: int | None = None
    tokenizer: Path | None = None
    label: str = ""
    features: tuple[str, ...] = ()
    group: str = ""


def read_options(
    image_size: int | None = None,
    text_length: int | None = None,
    *,
    tokenizer: str | os.PathLike | None = None,
    label: str | None = None,
    features: Sequence[str] = (),
    group: str | None = None,
) -> ReadOptions:
    """Checks options as a user gives them.

    Raises:
      ValueError: a size is not a positive integer, or features are one text. One line.
      FileNotFoundError: there is no such tokenizer. One line.
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
    if isinstance(features, str):
        raise ValueError(f"features is {features!r}; give a list of names, [{features!r}]")
    return ReadOptions(
        image_size=image_size,
        text_length=text_length,
        tokenizer=tokenizer_file(tokenizer) if tokenizer else None,
        label=label or "",
        features=tuple(features),
        group=group or "",
    )


class Raw(NamedTuple):
    """A set as it was read, with the fields of `Dataset` that a reader knows.

    Attributes:
      inputs: samples [N, ...]; bytes without a `preprocess` are images of their native size. Or N
        texts, which become tokens.
      used_tokenizer: True if the reader itself has made the tokens by the options.
    """

    inputs: np.ndarray | list[str]
    labels: np.ndarray
    class_names: Sequence[str]
    official: Mapping[str, np.ndarray] = MappingProxyType({})
    clients: Partition | None = None
    groups: np.ndarray | None = None
    vocabulary: int | None = None
    preprocess: Preprocess | None = None
    reading: Reading = Reading()
    used_tokenizer: bool = False


def dataset_of(name: str, raw: Raw, options: ReadOptions) -> Dataset:
    """Returns the data set: images of one size, texts as tokens, anything else as it is.

    Raises:
      ValueError: an option is for samples of another kind, or `Dataset` refuses the arrays.
    """
    inputs, vocabulary, reading = raw.inputs, raw.vocabulary, raw.reading
    if isinstance(inputs, list):
        learned = raw.official.get("train", range(len(inputs)))
        tokens = tokenised(inputs, learned, options.text_length, options.tokenizer)
        inputs, vocabulary = tokens.ids, len(tokens.texts)
        reading = dataclasses.replace(
            reading, token_texts=tokens.texts, warnings=reading.warnings + tokens.warnings
        )
    else:
        _refuse_text_options(name, raw, options)
    is_image = inputs.dtype == np.uint8 and raw.preprocess is None
    if is_image:
        inputs = resize(inputs, options.image_size)
    elif options.image_size is not None:
        raise ValueError(
            f"image_size is {options.image_size}, but {name} has no images; leave it at 0 (None)"
        )
    for field in ("label", "features", "group"):
        if not reading.label and getattr(options, field):
            raise ValueError(
                f"{field} is {getattr(options, field)!r}, but {name} has no columns with names"
            )
    return Dataset(
        name,
        inputs,
        raw.labels,
        tuple(raw.class_names),
        preprocess=raw.preprocess,
        official=raw.official,
        clients=raw.clients,
        groups=raw.groups,
        vocabulary=vocabulary,
        reading=reading,
    )


def _refuse_text_options(name: str, raw: Raw, options: ReadOptions) -> None:
    """Refuses options of texts where nothing is left to tokenise."""
    if raw.used_tokenizer:
        return
    if options.tokenizer is not None:
        raise ValueError(
            f"tokenizer is {str(options.tokenizer)!r}, but {name} has no texts to tokenise"
        )
    length = None if raw.vocabulary is None else np.shape(raw.inputs)[-1]
    if options.text_length not in (None, length):
        raise ValueError(
            f"text_length is {options.text_length}, but {name} has no texts to tokenise"
        )


def one_after_another(counts: Iterable[tuple[str, int]]) -> dict[str, np.ndarray]:
    """Returns the indices of sets of which one follows the other, by their numbers of samples."""
    official, start = {}, 0
    for name, count in counts:
        official[name] = np.arange(start, start + count)
        start += count
    return official


def as_stored(name: str, x: np.ndarray) -> np.ndarray:
    """Samples [N, ...] that a model sees as they are.

    Args:
      name: the name of the array, for the error.
      x: floats of 64 bits become float32, integers of more than 16 bits int32; all else keeps its
        type.

    Raises:
      ValueError: of fewer than two axes, of another type, too large, NaN or infinite, or float64
        that float32 cannot tell apart.
    """
    if x.ndim < 2 or x.dtype.kind not in "iuf":
        raise ValueError(
            f"{name} is {x.dtype} {x.shape}; samples are floats or integers of at least two axes"
        )
    fits_device(name, x)
    if x.dtype.kind == "f":
        return x.astype(np.float16 if x.dtype.itemsize == 2 else np.float32, copy=False)
    if x.dtype.itemsize <= 2:
        return x.astype(x.dtype.newbyteorder("="), copy=False)
    return x.astype(np.int32, copy=False)
