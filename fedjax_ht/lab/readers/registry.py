"""Registry of all data sets; loads a set by its name.

Decoded images are cached on disk, so JPEG files are decoded only once.
"""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_ht.check.names import kind_of_value, meant, unknown
from fedjax_ht.check.options import checked
from fedjax_ht.check.registration import Registry
from fedjax_ht.core.inputs import Pixels, described, is_image
from fedjax_ht.core.user_code import (
    call_user_function,
    names_user_function,
    user_file,
    user_function,
)
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.files import is_caused_by
from fedjax_ht.lab.readers.images import mapped
from fedjax_ht.lab.readers.source import (
    IMAGENET_MOMENTS,
    Raw,
    ReadOptions,
    Source,
    TaskName,
    dataset_of,
    logged,
    named_in,
    read_options,
)
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.lab.safe.bounded import reading, sha256_of, stamp_of, user_path

_DECLARED = {
    "fashion_mnist_10k": "small_images:FASHION_MNIST_10K",
    "har_10persons": "motion:HAR_10PERSONS",
    "har_30persons": "motion:HAR_30PERSONS",
    "fashion_mnist": "small_images:FASHION_MNIST",
    "mnist": "small_images:MNIST",
    "cifar10": "small_images:CIFAR10",
    "cifar100": "small_images:CIFAR100",
    "svhn": "tfds:SVHN",
    "tiny_imagenet": "photographs:TINY_IMAGENET",
    "flowers102": "tfds:FLOWERS102",
    "food101": "tfds:FOOD101",
    "har": "motion:HAR",
    "pamap2": "motion:PAMAP2",
    "camelyon17": "photographs:CAMELYON17",
    "ag_news": "table_files:AG_NEWS",
    "ag_news_test": "table_files:AG_NEWS_TEST",
    "folder:PATH": "image_folder:FOLDER",
    "domains:PATH": "image_folder:DOMAINS",
    "masks:PATH": "masks:MASKS",
    "npz:PATH": "npz:NPZ",
    "csv:PATH": "table_files:CSV",
    "text:PATH": "table_files:TEXT",
    "parquet:PATH": "table_files:PARQUET",
    "hf:PATH": "in_memory:HF",
    "tfds:NAME": "tfds:TFDS",
    "client_folders:PATH": "client_folders:CLIENT_FOLDERS",
    "leaf:PATH": "leaf:LEAF",
    "next_token:PATH": "next_token:NEXT_TOKEN",
}
"""Name of a set, or prefix of a kind of sets and its argument -> its declaration, MODULE:NAME."""

SOURCES: Mapping[str, Source] = Registry(
    {name.partition(":")[0]: f"{__package__}.{place}" for name, place in _DECLARED.items()}
)
"""Name or prefix -> declaration; a lookup imports the declaring module."""


def dataset_names() -> tuple[str, ...]:
    """Returns the names that `load_dataset` takes; a prefix shows its argument, "npz:PATH"."""
    return tuple(_DECLARED)


def find_source(name: str) -> Source | None:
    """Returns the declaration that a name belongs to; None for an unknown name.

    The name of a kind of sets needs an argument after its colon; the name of a set has no colon.
    """
    prefix, colon, argument = name.partition(":")
    source = SOURCES.get(prefix)
    if source is None or bool(colon and argument) != bool(source.argument):
        return None
    return source if source.argument or source.name == name else None


def names_user_data(name: str) -> bool:
    """Returns whether a name is a user's "module:function" and not a library name."""
    return find_source(name) is None and names_user_function(name)


def unknown_dataset(name: str, data_dir: str | os.PathLike | None = None) -> str:
    """Returns the message for an unknown name; for a file, with the prefix that reads it."""
    root = None if data_dir is None else Path(data_dir).expanduser()
    if hint := _prefix_hint(name, root):
        return f"unknown dataset {name!r}; did you mean {hint!r}? Otherwise {_listed()}"
    return unknown("dataset", name, dataset_names(), _listed())


def _prefix_hint(name: str, data_dir: Path | None) -> str:
    """Returns the name with the prefix that reads this file or folder; "" if it is no path."""
    prefixes = {"npz": "npz", "csv": "csv", "tsv": "csv", "parquet": "parquet"}
    if not name or ":" in name:
        return ""
    prefix = prefixes.get(name.lower().removesuffix(".gz").rpartition(".")[2], "")
    path = user_path(name, data_dir)
    if not prefix and path.is_dir():
        marks = {"train/0.npz": "client_folders", "train/*.json": "leaf", "dataset_*.json": "hf"}
        marks |= {"*.csv": "csv", "*.tsv": "csv", "*": "folder"}
        prefix = next((kind for mark, kind in marks.items() if any(path.glob(mark))), "")
    return f"{prefix}:{name}" if prefix else ""


def _listed() -> str:
    return f"there are {', '.join(dataset_names())}, or module:function of your own"


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
    task: TaskName = "classification",
) -> Dataset:
    """Reads a labelled data set from disk; nothing is ever downloaded.

    Doubtful choices are logged as warnings, one line each, at every call.

    Args:
      name: name of the set, one of `dataset_names()`; or "module:function", a function of yours
        that returns a `Dataset`, in a module of the current folder or an installed one.
      data_dir: folder with the publisher's files, or with a folder of the set's name that has them.
        A path after a prefix is relative to the current folder, or else to `data_dir`.
        `fashion_mnist_10k`, `har_10persons` and `har_30persons` come with the package and need
        none.
      image_size: height and width in pixels to resize to (central square, bilinear); None keeps the
        native size, or 64 for sets of mixed sizes (flowers102, food101, domains:PATH). For images
        only.
      text_length: number of tokens to which texts are cut or padded; None for 200, or for the set's
        own length.
      label: name of the label column of a table or a file of texts; None for the usual names.
      features: names of the feature columns; () for all others, and "-NAME" for all others but
        some.
      group: name of the column of the samples' groups, such as persons; None for the usual names.
      tokenizer: tokenizer of texts, a tokenizer.json or a folder with one or with vocab.txt; needs
        the package `tokenizers`. None for words of the training texts.
      task: meaning of the labels. For "regression" they are numbers; for "multi-label", 0 or 1 for
        each label, in several columns of a table or an array [N, labels]. `label` may then name
        several columns, "a,b,c". For "per-pixel" they are masks, masks:PATH or an array [N, H, W].

    Returns:
      The data set. Models see pixels in [-1, 1] (mean and std 0.5), tables standardised by their
      training samples, and anything else as stored. The latest four sets are cached in memory, and
      read again if their files have changed.

    Raises:
      ValueError: an unknown name, or a damaged file, or one of another format.
      FileNotFoundError: a file is missing; the message says how to get it.
      ImportError: an optional package is missing; the message says how to install it.

    Examples:
      >>> dataset = load_dataset("fashion_mnist_10k")
      >>> dataset.inputs.shape, dataset.num_classes
      ((10000, 28, 28, 1), 10)
    """
    options = read_options(
        image_size,
        text_length,
        tokenizer=tokenizer,
        label=label,
        features=features,
        group=group,
        task=task,
    )
    if names_user_data(name):
        return _user_data(name, options)
    root = None if data_dir is None else Path(data_dir).expanduser().resolve()
    source = find_source(name)
    if source is None:
        raise ValueError(unknown_dataset(name, root))
    argument = name.partition(":")[2]
    files = source.places(argument, root)
    stamp = stamp_of((*files, options.tokenizer) if options.tokenizer else files)
    return logged(_load(name, root, options, stamp))


@functools.lru_cache(maxsize=4)
def _load(name: str, data_dir: Path | None, options: ReadOptions, stamp: str) -> Dataset:
    """Reads a set; `stamp`, of its files, is only a cache key."""
    del stamp
    prefix, _, argument = name.partition(":")
    source = SOURCES[prefix]
    places = source.places(argument, data_dir)
    if not places:
        return dataset_of(name, source.read(options=options), options)
    place = places[0] if len(places) == 1 else places[0].parent
    with reading(place, source.origins[0]):
        if source.has_columns:
            options = named_in(name, options)
        if source.is_kept and argument and not places[0].is_dir():
            raise FileNotFoundError("no such folder")
        if source.is_kept:
            sized = options._replace(image_size=options.image_size or source.size)
            raw = cached(
                f"{prefix}-{sized.image_size or 'native'}",
                data_dir if data_dir and not argument else places[0],
                places,
                lambda target: source.read(*places, options=sized._replace(target=target)),
            )
        else:
            raw = source.read(*places, options=options)
        return dataset_of(name, raw.read_from(str(place)), options)


def _user_data(name: str, options: ReadOptions) -> Dataset:
    """Returns the data set made by a user's function; the latest one is cached.

    Raises:
      ValueError: there is no such function, it raises or returns something else, or an option is
        given. One line.
    """
    for option, value in options._asdict().items():
        if value and value != getattr(ReadOptions(), option):
            raise ValueError(f"{option} is {value!r}, but {name} makes its own samples; remove it")
    hint = meant(name, dataset_names(), _listed())
    return _made(user_function("dataset", name, hint), name)


@functools.lru_cache(maxsize=1)
def _made(function: Callable[..., Any], name: str) -> Dataset:
    del function  # only a cache key: a reloaded module has another function
    dataset = call_user_function("dataset", name)
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"dataset {name!r} returns {kind_of_value(dataset)}; it must return an fl.Dataset"
        )
    reading = dataset.reading or Reading()
    if reading.path:
        return dataset
    return dataclasses.replace(dataset, reading=dataclasses.replace(reading, path=user_file(name)))


Normalisation = Literal["half", "dataset", "imagenet"]
"""half: mean and standard deviation 0.5, so a model sees pixels in [-1, 1], the range of a
generator's tanh. dataset: those declared for the set; tanh then covers only part of a model's
input range. imagenet: those of ImageNet for any set, as in FedSSA's released code for CIFAR-10
and as pre-trained weights expect; three channels.
"""


def normalised(dataset: Dataset, kind: Normalisation) -> Dataset:
    """Returns the data set with another mean and standard deviation.

    Raises:
      ValueError: the set's moments are unknown, or do not match the number of channels.
    """
    if kind == "half":
        return dataset
    if kind == "imagenet":
        shape = dataset.input_shape
        if not is_image(shape) or shape[-1] != len(IMAGENET_MOMENTS.mean):
            raise ValueError(
                "normalisation is 'imagenet', which needs images of three channels; a sample of "
                f"{dataset.name} is {described(shape)}"
            )
        if not isinstance(dataset.preprocess, Pixels):
            raise ValueError(
                f"normalisation is 'imagenet', but models see the floats of {dataset.name} as "
                "stored; give images as bytes, or leave normalisation at 'half'"
            )
        return dataclasses.replace(dataset, preprocess=Pixels(*IMAGENET_MOMENTS))
    source = SOURCES.get(dataset.name)
    if source is None or source.moments is None:
        known = ", ".join(source.name for source in SOURCES.values() if source.moments)
        raise ValueError(
            f"normalisation is 'dataset', but the moments of {dataset.name} are unknown; known "
            f"are {known}; normalisation='half' needs none"
        )
    return dataclasses.replace(dataset, preprocess=Pixels(*source.moments))


_FORMAT = 4  # increase it when decoding changes, so that older files are not used
_DAY = 86_400  # seconds


def cached(
    name: str,
    place: Path,
    sources: Sequence[Path],
    build: Callable[[Path | None], Raw],
) -> Raw:
    """Returns `build(target)`, or its cached result if the files of `sources` are unchanged.

    `stamp_of` decides whether they are. Each name (a set and a size) has two files in
    `.fedjax_ht_cache` of the folder `place`, or in the user's cache folder if that is not writable.
    The images are an .npy, which the set maps; an .npz holds the rest and their SHA-256, and is
    renamed into place last. `build` stacks the images in `target` (`images.Pile`). Without a
    writable folder, or space in it, `target` is None, nothing is cached, and the images are in
    memory.
    """
    first = str(sources[0].resolve()).encode("utf-8", "surrogatepass")
    stem = f"{name}-{hashlib.sha256(first).hexdigest()[:16]}"
    folders = cache_folders(place)
    stamp = hashlib.sha256(f"{_FORMAT} {stamp_of(sources)}".encode()).hexdigest()
    for folder in folders:
        if raw := _stored(folder / f"{stem}.npz", stamp):
            return raw
    for folder in folders:
        with contextlib.ExitStack() as stack:
            try:
                target = stack.enter_context(_temporary(folder))
            except OSError:
                continue
            try:
                raw = build(target)
            except Exception as error:
                # the disk is full, whatever error a reader has made of it
                if is_caused_by(error, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)):
                    continue
                raise
            with contextlib.suppress(OSError):  # the map stays valid without the file's name
                _store(raw, target, folder / f"{stem}.npz", stamp)
            return raw
    return build(None)


def cache_folders(place: Path) -> tuple[Path, Path]:
    """Returns the cache folders; the second is for a `place` that is not writable."""
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedjax_ht"
    return place / ".fedjax_ht_cache", user_cache


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Yields a new file, which is deleted afterwards unless it was renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    os.close(handle)
    try:
        yield Path(temporary)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _stored(path: Path, stamp: str) -> Raw | None:
    """Loads the set in `path` and the .npy beside it; None if absent, damaged or outdated."""
    try:
        with opened_npz(path) as arrays:
            if str(arrays["stamp"]) != stamp:
                return None
            images = _images(path, stamp)
            if str(arrays["images_sha256"]) != sha256_of(images):
                return None
            official = {}
            for key in arrays:
                if key.startswith("official_"):
                    official[key.removeprefix("official_")] = arrays[key]
            names = tuple(map(str, arrays["class_names"]))
            return Raw(
                mapped(images),
                arrays["labels"],
                names,
                official=official,
                groups=arrays.get("groups"),
                reading=Reading.from_json(str(arrays["reading"])),
            )
    except Exception:  # zipfile, zlib and numpy raise many types on a damaged file
        return None


def _store(raw: Raw, target: Path, path: Path, stamp: str) -> None:
    """Renames the images in `target`, and then stores the rest at `path`."""
    arrays: dict[str, Any] = {f"official_{k}": v for k, v in raw.official.items()}
    arrays |= {"labels": raw.labels, "class_names": np.array(raw.class_names)}
    if raw.groups is not None:
        arrays["groups"] = raw.groups
    arrays["reading"] = np.array(raw.reading.to_json())
    arrays |= {"stamp": np.array(stamp), "images_sha256": np.array(sha256_of(target))}
    with _temporary(path.parent) as rest:
        with open(rest, "wb") as file:
            np.savez(file, **arrays)
        for temporary, final in ((target, _images(path, stamp)), (rest, path)):
            temporary.chmod(0o644)  # data folders are shared
            temporary.replace(final)
    _sweep(path, stamp)


def _images(path: Path, stamp: str) -> Path:
    """Returns the file with the images of the set at `path`.

    Each state of the sources has its own file. So neither a process that is killed here nor one
    that maps the former file sees a mixture.
    """
    return path.with_name(f"{path.stem}-{stamp[:16]}.npy")


def _sweep(path: Path, stamp: str) -> None:
    """Removes images of former states of the sources, and files left by killed processes."""
    former = [
        file for file in path.parent.glob(f"{path.stem}-*.npy") if file != _images(path, stamp)
    ]
    for file in (*former, *path.parent.glob("*.tmp")):
        with contextlib.suppress(OSError):
            if file in former or time.time() - file.stat().st_mtime > _DAY:
                file.unlink()
