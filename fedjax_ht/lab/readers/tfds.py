"""Datasets prepared by tensorflow-datasets in its array_record format, read without TensorFlow."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.images import Pile, decode_all
from fedjax_ht.lab.readers.source import (
    CIFAR100_MOMENTS,
    Moments,
    Raw,
    ReadOptions,
    Source,
    one_after_another,
)
from fedjax_ht.lab.safe.bounded import Origin, files_below, open_regular

_SPLITS = {"train": "train", "validation": "val", "test": "test"}
_SIZE = 64  # pixels, for sets of mixed sizes


def read_tfds(folder: Path, options: ReadOptions, splits: Mapping[str, str] = _SPLITS) -> Raw:
    """Reads a prepared set; nothing is downloaded.

    Args:
      folder: folder of the set.
      options: the options.
      splits: name of a split in the folder -> its official set; other splits are skipped.
    """
    prepared = sorted(path.parent for path in folder.rglob("dataset_info.json"))
    if not prepared:
        raise FileNotFoundError("no prepared dataset")
    if len(prepared) > 1:
        names = ", ".join(path.relative_to(folder.parent).as_posix() for path in prepared)
        raise ValueError(
            f"{len(prepared)} prepared versions ({names}); name one as tfds:NAME:VERSION"
        )
    for path in files_below(prepared[0]):  # rejects pipes: tensorflow-datasets opens all by itself
        open_regular(path).close()
    try:  # an optional dependency, see BUILD.md
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            "reading tfds:NAME needs tensorflow-datasets; run pip install tensorflow-datasets"
        ) from error
    builder: Any = tfds.builder_from_directory(prepared[0])
    image_key, label_key = builder.info.supervised_keys or ("image", "label")
    features = dict(builder.info.features.items())
    if not isinstance(features.get(image_key), tfds.features.Image) or not isinstance(
        features.get(label_key), tfds.features.ClassLabel
    ):
        raise ValueError(f"has the features {', '.join(features)}, not an image and a class label")
    try:  # decoded here, so that every source treats image sizes alike
        data = builder.as_data_source(decoders={image_key: tfds.decode.SkipDecoding()})
    except (NotImplementedError, ImportError) as error:
        raise ValueError(
            f"prepared as {builder.info.file_format.value}, which only TensorFlow reads"
        ) from error
    parts, labels = {}, []
    for split, name in splits.items():
        if split in data:
            parts[name] = data[split]

    def encoded():
        for name, examples in parts.items():
            for i in range(len(examples)):
                example = examples[i]
                labels.append(int(example[label_key]))
                yield (name, i), example[image_key]

    pile = Pile(decode_all(encoded(), options.image_size), options.target)
    images = pile.stack(list(pile.places))
    return Raw(
        images,
        np.array(labels),
        tuple(features[label_key].names),
        official=one_after_another((name, len(part)) for name, part in parts.items()),
        reading=Reading(path=str(prepared[0])),
    )


def _folder(dataset: str, data_dir: Path | None) -> Path:
    """Returns the folder of NAME, NAME/CONFIG or either with :VERSION; default as in tfds."""
    root = data_dir or Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    return root.expanduser() / dataset.replace(":", "/")


def _origin(builder: str, get: str) -> Origin:
    return Origin(
        f"{builder} prepared in array_record format",
        f"pip install 'fedjax_ht[tfds]' and {get}tfds.builder({builder!r}, "
        "file_format='array_record', data_dir=DIR).download_and_prepare()",
        names=(builder,),
        folders=("",),
    )


TFDS = Source(
    name="tfds:NAME",
    about="any set that tensorflow-datasets knows, which fetches it",
    read=read_tfds,
    origins=(_origin("NAME", "`fedjax-ht data get tfds:NAME --data_dir=DIR`, which runs "),),
    place=_folder,
    is_kept=True,
)


def _named(
    name: str, builder: str, about: str, splits: Mapping[str, str] = _SPLITS, **fields: Any
) -> Source:
    """Declares a set that has its own name here."""
    return Source(
        name=name,
        about=f"{about}; tensorflow-datasets fetches it, as {builder}",
        read=functools.partial(read_tfds, splits=splits),
        origins=(_origin(builder, ""),),
        is_kept=True,
        builder=builder,
        **fields,
    )


SVHN = _named(
    "svhn",
    "svhn_cropped",
    "99,289 house numbers, 32x32, 10 classes",
    moments=Moments(mean=(0.5,), std=(0.5,)),
)
FLOWERS102 = _named(
    "flowers102",
    "oxford_flowers102",
    "8,189 photographs of flowers, many sizes, 102 classes",
    size=_SIZE,
)
FOOD101 = _named(
    "food101",
    "food101",
    "101,000 photographs of dishes, many sizes, 101 classes",
    {"train": "train", "validation": "test"},  # the publisher's test set
    size=_SIZE,
    moments=CIFAR100_MOMENTS,  # as in DFRD's released code
)
