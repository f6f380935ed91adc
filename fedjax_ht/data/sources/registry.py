"""Collects the declarations of all data sets, and loads a set by its name."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from fedjax_ht.core.names import unknown
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.sources import (
    ag_news,
    camelyon17,
    cifar,
    client_folders,
    csv_file,
    domains,
    embedded,
    flowers102,
    food101,
    har,
    idx,
    image_folder,
    npz,
    pamap2,
    shakespeare,
    svhn,
    tfds,
    tiny_imagenet,
)
from fedjax_ht.data.sources.source import Source

_ALL = (
    embedded.FASHION_MNIST_10K,
    embedded.HAR_10PERSONS,
    idx.FASHION_MNIST,
    idx.MNIST,
    cifar.CIFAR10,
    cifar.CIFAR100,
    svhn.SVHN,
    tiny_imagenet.TINY_IMAGENET,
    flowers102.FLOWERS102,
    food101.FOOD101,
    har.HAR,
    pamap2.PAMAP2,
    camelyon17.CAMELYON17,
    ag_news.AG_NEWS,
    ag_news.AG_NEWS_TEST,
    shakespeare.SHAKESPEARE,
    image_folder.FOLDER,
    domains.DOMAINS,
    npz.NPZ,
    csv_file.CSV,
    tfds.TFDS,
    client_folders.CLIENT_FOLDERS,
    ag_news.TEXT,
)
SOURCES: Mapping[str, Source] = {source.name: source for source in _ALL}
"""Name of a set, or prefix of a kind of sets -> its declaration."""

_LONGEST = 1 << 14  # tokens of a text


def dataset_names() -> tuple[str, ...]:
    """The names that `load_dataset` takes; a prefix ends in what is to be filled in, "npz:PATH"."""
    return tuple(source.title for source in SOURCES.values())


def find_source(name: str) -> Source | None:
    """The declaration that a name belongs to; None for an unknown name.

    The name of a kind of sets needs something behind its colon, the name of a set has no colon.
    """
    prefix, colon, argument = name.partition(":")
    source = SOURCES.get(prefix)
    if source is None or bool(colon and argument) != bool(source.argument):
        return None
    return source if source.argument or source.name == name else None


def find_dataset(name: str, data_dir: str | os.PathLike) -> tuple[Path, ...]:
    """The files and folders in `data_dir` that `load_dataset` would read of a publisher's set.

    Raises:
      ValueError: no such set.
      FileNotFoundError: a file is missing; the line says how to get it.
    """
    source = SOURCES.get(name)
    if source is None or source.find is None:
        findable = ", ".join(source.name for source in SOURCES.values() if source.find)
        raise ValueError(f"{name!r} is no set with files of a publisher; those are {findable}")
    return tuple(source.find(Path(data_dir).expanduser().resolve()))


def load_dataset(
    name: str,
    data_dir: str | os.PathLike | None = None,
    image_size: int | None = None,
    text_length: int | None = None,
) -> Dataset:
    """Reads a labelled set from disk; nothing is ever downloaded.

    Args:
      name: one of `dataset_names()`.
      data_dir: the folder with the publisher's files, or with a folder of the set's name that has
        them. Paths after a prefix are relative to it if given. `fashion_mnist_10k` and
        `har_10persons` come with the package and need none.
      image_size: height and width in pixels to resize to (central square, bilinear); None keeps the
        native size, or 64 for sets of mixed sizes (flowers102, food101, domains:PATH). For images
        only.
      text_length: tokens to which texts are cut or padded; None for 200, or what the set has.

    Returns:
      The set. Of images a model sees pixels in [-1, 1], mean and std being 0.5; all else as it is
      stored. The latest four are kept in memory.

    Raises:
      ValueError: an unknown name, or a damaged file, or one of another format.
      FileNotFoundError: a file is missing; the line says how to get it.
      ImportError: an optional package is missing; the line says how to install it.

    Examples:
      >>> dataset = load_dataset("fashion_mnist_10k")
      >>> dataset.inputs.shape, dataset.num_classes
      ((10000, 28, 28, 1), 10)
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
    root = None if data_dir is None else Path(data_dir).expanduser().resolve()
    return _load(name, root, image_size, text_length)


@functools.lru_cache(maxsize=4)
def _load(
    name: str, data_dir: Path | None, image_size: int | None, text_length: int | None = None
) -> Dataset:
    source = find_source(name)
    if source is None:
        raise ValueError(unknown("dataset", name, dataset_names()))
    if source.texts:
        size = text_length
        if image_size is not None:
            raise ValueError(f"image_size is {image_size}, but {name} has no images")
    else:
        size = image_size
        if text_length is not None:
            raise ValueError(f"text_length is {text_length}, but {name} has no texts")
    if source.argument:
        return source.read(name.partition(":")[2], data_dir, size)
    return source.read(data_dir, size)
