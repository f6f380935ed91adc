"""Options and results of readers, and the declarations of data sets."""

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.check.options import Count, Within, checked
from fedjax_ht.core.inputs import Preprocess
from fedjax_ht.data.conversion import fits_device
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.reading import Reading
from fedjax_ht.data.targets import multi_label_dataset, per_pixel_dataset, regression_dataset
from fedjax_ht.lab.readers.images import resize
from fedjax_ht.lab.readers.tokens import tokenised, tokenizer_file
from fedjax_ht.lab.safe.bounded import Origin, search, user_path

_LOGGER = logging.getLogger(__name__)

TaskName = Literal["classification", "regression", "multi-label", "per-pixel"]
"""The meaning of labels: classes, numbers to predict, 0 or 1 for each of several labels, or a class
for each pixel."""

_LONGEST = 1 << 14  # most tokens of a text


class ReadOptions(NamedTuple):
    """A user's options for reading a set.

    Attributes:
      image_size: height and width of images in pixels; None keeps them.
      text_length: number of tokens of a text; None for the usual number.
      tokenizer: file of a trained tokenizer; None for words of the training texts.
      label: label column; "" for the usual names.
      features: feature columns; () for all others; with "-" before every name, all others but
        these.
      group: column of the samples' groups; "" for the usual names.
      task: meaning of the labels. For tasks other than classification they are numbers, and `label`
        may name several columns, "a,b".
      name: name of a table without its columns, "csv:mine.csv", for messages; "" in memory.
      target: file in which a reader stacks images; None keeps them in memory.
    """

    image_size: int | None = None
    text_length: int | None = None
    tokenizer: Path | None = None
    label: str = ""
    features: tuple[str, ...] = ()
    group: str = ""
    task: TaskName = "classification"
    name: str = ""
    target: Path | None = None


@checked
def read_options(
    image_size: Count | None = None,
    text_length: Annotated[int, Within(1, _LONGEST)] | None = None,
    *,
    tokenizer: str | os.PathLike | None = None,
    label: str | None = None,
    features: Sequence[str] = (),
    group: str | None = None,
    task: TaskName = "classification",
) -> ReadOptions:
    """Checks the options that a user gives.

    Raises:
      ValueError: a size is not a positive integer, or features are one string. One line.
      FileNotFoundError: there is no such tokenizer. One line.
    """
    return ReadOptions(
        image_size=image_size,
        text_length=text_length,
        tokenizer=tokenizer_file(tokenizer) if tokenizer else None,
        label=label or "",
        features=tuple(features),
        group=group or "",
        task=task,
    )


def named_in(name: str, options: ReadOptions) -> ReadOptions:
    """Adds the name and columns in PREFIX:PATH[:LABEL[:GROUP]], a table's name, to the options.

    Raises:
      ValueError: more than two columns are named, or two different ones for a role.
    """
    prefix, path, *names = name.split(":")
    if len(names) > 2:
        raise ValueError(
            f"{len(names)} columns are named, {', '.join(names)}; name at most a label and "
            "a group, as PATH:LABEL:GROUP"
        )
    for role, column in zip(("label", "group"), names):
        other = getattr(options, role)
        if column and other and column != other:
            raise ValueError(f"the {role} is named {column!r} and {other!r}; name it once")
        options = options._replace(**{role: column or other})
    return options._replace(name=f"{prefix}:{path}")


class Raw(NamedTuple):
    """A data set as read, with the fields of `Dataset` that a reader knows.

    Attributes:
      inputs: samples [N, ...]; bytes without a `preprocess` are images of their native size. Or N
        texts, which become tokens.
      targets: for tasks other than classification, which ignore `labels`: numbers [N] or
        [N, columns] to predict, 0 and 1 [N, labels] with the labels' names as `class_names`, or
        classes [N, H, W] of pixels.
      used_tokenizer: True if the reader has already made tokens by the options.
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
    targets: np.ndarray | None = None
    used_tokenizer: bool = False

    def read_from(self, path: str) -> "Raw":
        """Returns the set with its path; a path recorded by the reader takes precedence."""
        return self._replace(
            reading=dataclasses.replace(self.reading, path=self.reading.path or path)
        )


def dataset_of(name: str, raw: Raw, options: ReadOptions) -> Dataset:
    """Builds the data set: resizes images, tokenises texts, and keeps anything else.

    Raises:
      ValueError: an option does not fit the kind of samples, or `Dataset` rejects the arrays.
    """
    inputs, vocabulary, reading = raw.inputs, raw.vocabulary, raw.reading
    if isinstance(inputs, list):
        learned = raw.official.get("train", range(len(inputs)))
        inputs, pieces = tokenised(inputs, learned, options.text_length, options.tokenizer)
        vocabulary, reading = len(pieces), dataclasses.replace(reading, token_texts=pieces)
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
                f"{field} is {getattr(options, field)!r}, but {name} has no named columns"
            )
    if not all(each.is_usual for each in reading.left_out):
        line = f"left out: {listed(list(map(str, reading.left_out)), 20)}"
        reading = dataclasses.replace(reading, warnings=(*reading.warnings, line))
    names = tuple(raw.class_names)
    fields: dict[str, Any] = {
        "preprocess": raw.preprocess,
        "official": raw.official,
        "clients": raw.clients,
        "groups": raw.groups,
        "vocabulary": vocabulary,
        "reading": reading,
    }
    if options.task == "classification":
        return Dataset(name, inputs, raw.labels, names, **fields)
    if raw.targets is None:
        raise ValueError(
            f"task is {options.task!r}, but the labels of {name} are classes; only tables, "
            "npz:, hf: and masks: have other targets"
        )
    if options.task == "regression":
        return regression_dataset(name, inputs, raw.targets, **fields)
    if options.task == "per-pixel":
        masks = raw.targets
        if masks.dtype.kind in "iub" and masks.size and 0 <= masks.min() <= masks.max() <= 255:
            masks = masks.astype(np.uint8, copy=False)
        if is_image and masks.ndim == 3 and masks.dtype == np.uint8:
            masks = resize(masks[..., None], options.image_size, nearest=True)[..., 0]
        return per_pixel_dataset(name, inputs, masks, names, **fields)
    return multi_label_dataset(name, inputs, raw.targets, names, **fields)


def logged(dataset: Dataset) -> Dataset:
    """Logs a data set's warnings, one line each, and returns it."""
    for line in (*(dataset.reading or Reading()).warnings, *dataset.doubts):
        _LOGGER.warning(f"{dataset.name}: {line}")
    return dataset


def _refuse_text_options(name: str, raw: Raw, options: ReadOptions) -> None:
    """Rejects options of texts if nothing is left to tokenise."""
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
    """Returns the indices of consecutive sets, given their numbers of samples."""
    official, start = {}, 0
    for name, count in counts:
        official[name] = np.arange(start, start + count)
        start += count
    return official


def as_stored(name: str, x: np.ndarray) -> np.ndarray:
    """Returns samples [N, ...] in a type that a model takes as stored.

    Args:
      name: name of the array, for the error.
      x: samples. 64-bit floats become float32, integers of more than 16 bits int32; other types
        stay.

    Raises:
      ValueError: fewer than two axes, another type, too large, NaN or infinite.
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


class Moments(NamedTuple):
    """Mean and standard deviation of pixels in [0, 1], one number per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


CIFAR100_MOMENTS = Moments(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
IMAGENET_MOMENTS = Moments(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
SHIPPED = Path(__file__).parent / "shipped"
"""Folder of the data sets in the package."""

IN_PACKAGE = "it is part of the package; nothing to download"


class File(NamedTuple):
    """Size in bytes and MD5 sum in hexadecimal digits of a publisher's file."""

    size: int
    md5: str


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set, or a kind of data sets, that `load_dataset` reads.

    Attributes:
      name: name of the set, such as "cifar10"; for a kind, a prefix and what follows the colon,
        such as "npz:PATH".
      about: one-line description, or the reason why it has no address.
      read: the reader, (*places, options=options) -> Raw.
      origins: the files and folders that it takes; for a kind one, given by the name.
      place: path of that one, a function of (text after the colon, data_dir).
      has_columns: True for a kind whose names may end in :LABEL or :LABEL:GROUP.
      is_kept: True to cache the decoded set on disk, see `registry.cached`.
      size: default height and width of its images; None for the native ones.
      home: URL of the folder with the files to download; "" if there is none.
      files: name of each file to download into a folder of the set's name -> its size and sum.
      builder: name in tensorflow-datasets, which then downloads and prepares the set; else "".
      moments: mean and standard deviation of the pixels; None if unknown.
    """

    name: str
    about: str
    read: Callable[..., Raw]
    origins: tuple[Origin, ...] = ()
    place: Callable[[str, Path | None], Path] = user_path
    has_columns: bool = False
    is_kept: bool = False
    size: int | None = None
    home: str = ""
    files: Mapping[str, File] = dataclasses.field(default_factory=dict)
    builder: str = ""
    moments: Moments | None = None

    def places(self, argument: str, data_dir: Path | None) -> tuple[Path, ...]:
        """Returns the files and folders that `read` takes; () for a set in the package.

        Args:
          argument: for a kind, the text after the colon.
          data_dir: folder of the data sets.

        Raises:
          ValueError, FileNotFoundError: a publisher's file is not found, see `bounded.search`.
        """
        if self.argument:
            path = argument.partition(":")[0] if self.has_columns else argument
            return (self.place(path, data_dir),)
        return tuple(search(self.name, data_dir, origin) for origin in self.origins)

    @property
    def argument(self) -> str:
        """The part of `name` after the colon; "" for a set."""
        return self.name.partition(":")[2]
