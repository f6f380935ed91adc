"""Collects the declarations of all data sets, and loads a set by its name."""

import functools
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.names import meant, unknown
from fedjax_ht.core.user_code import names_user_function
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers import (
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
    hf,
    idx,
    image_folder,
    leaf,
    next_token,
    npz,
    pamap2,
    parquet,
    shakespeare,
    svhn,
    text_file,
    tfds,
    tiny_imagenet,
    user_data,
)
from fedjax_ht.lab.readers.columns import NOT_NAMED, Columns
from fedjax_ht.lab.readers.prefixes import prefix_hint
from fedjax_ht.lab.readers.sizes import Sizes, check_sizes, sizes_of
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.readers.tokens import TextForm
from fedjax_ht.lab.safe.archive import two_places
from fedjax_ht.lab.safe.stamps import stamp_of
from fedjax_ht.lab.safe.tokenizer import tokenizer_file

_LOGGER = logging.getLogger(__name__)

_ALL = (
    embedded.FASHION_MNIST_10K,
    embedded.HAR_10PERSONS,
    embedded.HAR_30PERSONS,
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
    parquet.PARQUET,
    hf.HF,
    tfds.TFDS,
    client_folders.CLIENT_FOLDERS,
    leaf.LEAF,
    text_file.TEXT,
    next_token.NEXT_TOKEN,
)
SOURCES: Mapping[str, Source] = {source.name: source for source in _ALL}
"""Name of a set, or prefix of a kind of sets -> its declaration."""


def dataset_names() -> tuple[str, ...]:
    """The names that `load_dataset` takes; a prefix ends in the part to be filled in,
    "npz:PATH"."""
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


def names_user_data(name: str) -> bool:
    """Returns whether a name is a "module:function" of a user's own, and none of the library's."""
    return find_source(name) is None and names_user_function(name)


def unknown_dataset(name: str, data_dir: str | os.PathLike | None = None) -> str:
    """The message for a name that is no set; with the prefix that reads it, where it is a file."""
    root = None if data_dir is None else Path(data_dir).expanduser()
    if hint := prefix_hint(name, root):
        return f"unknown dataset {name!r}; {hint} T{_listed()[1:]}"
    return unknown("dataset", name, dataset_names(), _listed())


def _listed() -> str:
    return f"there are {', '.join(dataset_names())}, or module:function of your own"


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


@checked
def load_dataset(
    name: str,
    data_dir: str | os.PathLike | None = None,
    image_size: int | None = None,
    text_length: int | None = None,
    *,
    label: str | None = None,
    features: Sequence[str] = (),
    group: str | None = None,
    tokenizer: str | os.PathLike | None = None,
) -> Dataset:
    """Reads a labelled set from disk; nothing is ever downloaded.

    What may have been meant otherwise is logged as a warning, a line each, at every call.

    Args:
      name: the set's name, one of `dataset_names()`; or "module:function" for a function of yours
        that returns a `Dataset`, the module in the current folder or installed.
      data_dir: the folder with the publisher's files, or with a folder of the set's name that has
        them. A path after a prefix is one of the current folder, or else below `data_dir`.
        `fashion_mnist_10k`, `har_10persons` and `har_30persons` come with the package and need
        none.
      image_size: height and width in pixels to resize to (central square, bilinear); None keeps the
        native size, or 64 for sets of mixed sizes (flowers102, food101, domains:PATH). For images
        only.
      text_length: number of tokens to which texts are cut or padded; None for 200, or for the set's
        own length.
      label: name of the column of labels, of a table or a file of texts; None for the usual names.
      features: names of the columns that are the samples; () for all others, and "-NAME" for all
        others but some.
      group: name of the column with the samples' groups, such as persons; None for the usual names.
      tokenizer: tokenizer of texts, a tokenizer.json or a folder with one or with vocab.txt, which
        needs the package `tokenizers`; None for words of the training texts.

    Returns:
      The set. Of images a model sees pixels in [-1, 1], mean and std being 0.5; tables are
      standardised by their training samples; all else is as it is stored. The latest four are kept
      in memory, and read again when their files have changed.

    Raises:
      ValueError: an unknown name, or a damaged file, or one of another format.
      FileNotFoundError: a file is missing; the line says how to get it.
      ImportError: an optional package is missing; the line says how to install it.

    Examples:
      >>> dataset = load_dataset("fashion_mnist_10k")
      >>> dataset.inputs.shape, dataset.num_classes
      ((10000, 28, 28, 1), 10)
    """
    check_sizes(image_size, text_length)
    if names_user_data(name):
        options = {"image_size": image_size, "text_length": text_length}
        options |= {"label": label, "features": features, "group": group, "tokenizer": tokenizer}
        return user_data.load_user_data(name, options, meant(name, dataset_names(), _listed()))
    root = None if data_dir is None else Path(data_dir).expanduser().resolve()
    source = find_source(name)
    if source is None:
        raise ValueError(unknown_dataset(name, root))
    columns = Columns(label or "", tuple(features), group or "")
    argument = name.partition(":")[2]
    files = source.files_of(argument, root)
    vocabulary = tokenizer_file(tokenizer) if tokenizer else None
    if vocabulary:
        files = (*files, vocabulary)
    stamp = stamp_of(files)
    dataset = _load(name, root, image_size, text_length, columns, stamp, tokenizer=vocabulary)
    for line in _doubts(dataset, source, argument, root):
        _LOGGER.warning(f"{name}: {line}")
    return dataset


def _doubts(
    dataset: Dataset, source: Source, argument: str, data_dir: Path | None
) -> tuple[str, ...]:
    """Lines on choices that may have been meant otherwise."""
    reading = dataset.reading or Reading()
    places = ""
    if source.argument == "PATH":
        path = argument.partition(":")[0] if source.columns else argument
        places = two_places(path, data_dir)
    return (*filter(None, [places]), *reading.warnings, *dataset.doubts)


@functools.lru_cache(maxsize=4)
def _load(
    name: str,
    data_dir: Path | None,
    image_size: int | None,
    text_length: int | None = None,
    columns: Columns = NOT_NAMED,
    stamp: str = "",
    *,
    tokenizer: Path | None = None,
) -> Dataset:
    """Reads a set; the stamp of its files is there to tell other calls from this one."""
    del stamp
    source = SOURCES[name.partition(":")[0]]
    size = _size(source, name, image_size, text_length, tokenizer=tokenizer)
    if not source.columns and any(columns):
        field, value = next(pair for pair in columns._asdict().items() if pair[1])
        raise ValueError(f"{field} is {value!r}, but {name} has no columns with names")
    arguments = [name.partition(":")[2]] if source.argument else []
    more = [columns] if source.columns else []
    return source.read(*arguments, data_dir, size, *more)


def _size(
    source: Source,
    name: str,
    image_size: int | None,
    text_length: int | None,
    *,
    tokenizer: Path | None,
) -> int | TextForm | Sizes | None:
    """Returns the size that a source reads its samples at.

    Raises:
      ValueError: an option is for samples of another kind.
    """
    if source.any_kind or source.texts:
        sizes = sizes_of(image_size, text_length, tokenizer)
        if source.any_kind:
            return sizes
        if image_size is not None:
            raise ValueError(f"image_size is {image_size}, but {name} has no images")
        return TextForm(sizes.text, sizes.tokenizer)
    if text_length is not None:
        raise ValueError(f"text_length is {text_length}, but {name} has no texts")
    if tokenizer is not None:
        raise ValueError(f"tokenizer is {str(tokenizer)!r}, but {name} has no texts")
    return image_size
