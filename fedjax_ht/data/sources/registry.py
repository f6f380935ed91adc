"""Which names `load_dataset` knows."""

import functools
import os
from pathlib import Path

from fedjax_ht.core.names import unknown
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.sources.ag_news import find_ag_news, read_ag_news, read_ag_news_test, read_text
from fedjax_ht.data.sources.camelyon17 import find_camelyon17, read_camelyon17
from fedjax_ht.data.sources.cifar import find_cifar, read_cifar
from fedjax_ht.data.sources.client_folders import read_client_folders
from fedjax_ht.data.sources.csv_file import read_csv
from fedjax_ht.data.sources.domains import read_domains
from fedjax_ht.data.sources.embedded import read_embedded, read_har_10persons
from fedjax_ht.data.sources.flowers102 import find_flowers102, read_flowers102
from fedjax_ht.data.sources.food101 import find_food101, read_food101
from fedjax_ht.data.sources.har import find_har, read_har
from fedjax_ht.data.sources.idx import find_idx, read_idx
from fedjax_ht.data.sources.image_folder import read_folder
from fedjax_ht.data.sources.npz import read_npz
from fedjax_ht.data.sources.pamap2 import find_pamap2, read_pamap2
from fedjax_ht.data.sources.shakespeare import find_shakespeare, read_shakespeare
from fedjax_ht.data.sources.svhn import find_svhn, read_svhn
from fedjax_ht.data.sources.tfds import read_tfds
from fedjax_ht.data.sources.tiny_imagenet import find_tiny_imagenet, read_tiny_imagenet

# A reader takes (data_dir, image_size) or (data_dir, text_length), one of a prefix also what
# follows the prefix.
_READERS = {
    "fashion_mnist_10k": read_embedded,
    "har_10persons": read_har_10persons,
    "fashion_mnist": functools.partial(read_idx, "fashion_mnist"),
    "mnist": functools.partial(read_idx, "mnist"),
    "cifar10": functools.partial(read_cifar, "cifar10"),
    "cifar100": functools.partial(read_cifar, "cifar100"),
    "svhn": read_svhn,
    "tiny_imagenet": read_tiny_imagenet,
    "flowers102": read_flowers102,
    "food101": read_food101,
    "har": read_har,
    "pamap2": read_pamap2,
    "camelyon17": read_camelyon17,
    "ag_news": read_ag_news,
    "ag_news_test": read_ag_news_test,
    "shakespeare": read_shakespeare,
}
_FINDERS = {
    "fashion_mnist": functools.partial(find_idx, "fashion_mnist"),
    "mnist": functools.partial(find_idx, "mnist"),
    "cifar10": functools.partial(find_cifar, "cifar10"),
    "cifar100": functools.partial(find_cifar, "cifar100"),
    "svhn": find_svhn,
    "tiny_imagenet": find_tiny_imagenet,
    "flowers102": find_flowers102,
    "food101": find_food101,
    "har": find_har,
    "pamap2": find_pamap2,
    "camelyon17": find_camelyon17,
    "ag_news": find_ag_news,
    "shakespeare": find_shakespeare,
}
_PREFIX_READERS = {
    "folder": read_folder,
    "domains": read_domains,
    "npz": read_npz,
    "csv": read_csv,
    "tfds": read_tfds,
    "client_folders": read_client_folders,
    "text": read_text,
}
# take a text_length where others take an image_size
TEXTS = ("ag_news", "ag_news_test", "shakespeare", "text")
_LONGEST = 1 << 14


def dataset_names() -> tuple[str, ...]:
    """The names that `load_dataset` takes; those of a prefix end in what is to be filled in, as
    "npz:PATH"."""
    return (
        *_READERS,
        *(f"{prefix}:{'NAME' if prefix == 'tfds' else 'PATH'}" for prefix in _PREFIX_READERS),
    )


def find_dataset(name: str, data_dir: str | os.PathLike) -> tuple[Path, ...]:
    """The files and folders in `data_dir` that `load_dataset` would read, of a set that has a
    publisher.

    Raises:
      ValueError: no such set.
      FileNotFoundError: one of them is missing; the line says how to get it.
    """
    if name not in _FINDERS:
        raise ValueError(
            f"{name!r} is no set with files of a publisher; those are {', '.join(_FINDERS)}"
        )
    return tuple(_FINDERS[name](Path(data_dir).expanduser().resolve()))


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
    """
    if image_size is not None and (type(image_size) is not int or image_size < 1):
        raise ValueError(f"image_size is {image_size!r}; it must be a positive integer or None")
    if text_length is not None and (
        type(text_length) is not int or not 1 <= text_length <= _LONGEST
    ):
        raise ValueError(
            f"text_length is {text_length!r}; it must be a positive integer up to {_LONGEST}, or None"
        )
    root = None if data_dir is None else Path(data_dir).expanduser().resolve()
    return _load(name, root, image_size, text_length)


@functools.lru_cache(maxsize=4)
def _load(
    name: str, data_dir: Path | None, image_size: int | None, text_length: int | None = None
) -> Dataset:
    prefix, colon, rest = name.partition(":")
    size, other, kind = (
        (text_length, image_size, "image_size")
        if prefix in TEXTS
        else (image_size, text_length, "text_length")
    )
    known = name in _READERS or (colon and rest and prefix in _PREFIX_READERS)
    if known and other is not None:
        raise ValueError(f"{kind} is {other}, but {name} has no {kind.split('_')[0]}s")
    if name in _READERS:
        return _READERS[name](data_dir, size)
    if known:
        return _PREFIX_READERS[prefix](rest, data_dir, size)
    raise ValueError(unknown("dataset", name, dataset_names()))
