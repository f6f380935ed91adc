"""Datasets prepared by tensorflow-datasets in its array_record format, read without TensorFlow."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.cache import cached
from fedjax_ht.lab.readers.images import Pile, decode_all
from fedjax_ht.lab.readers.raw import Raw, ReadOptions, one_after_another
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.safe.archive import Origin, fetch, files_below, reading
from fedjax_ht.lab.safe.bounded import open_regular

_SPLITS = {"train": "train", "validation": "val", "test": "test"}
_PREPARE = "pip install 'fedjax_ht[tfds]'"


def read_tfds(dataset: str, data_dir: Path | None, options: ReadOptions) -> Raw:
    """Reads a prepared set; its splits train, validation and test are official sets.

    DATASET is NAME, NAME/CONFIG, or either with :VERSION.

    Without `data_dir` the folder is tensorflow-datasets' own: $TFDS_DATA_DIR or
    ~/tensorflow_datasets. Only what is already prepared is read: nothing is downloaded.
    """
    root = _root(data_dir)
    name = dataset.partition(":")[0]
    origin = Origin(
        f"{dataset} prepared in array_record format",
        f"{_PREPARE} and {fetch(f'tfds:{name}', root)}, which runs "
        f"tfds.builder({name!r}, file_format='array_record', data_dir=...).download_and_prepare()",
    )
    folder = tfds_folder(dataset, data_dir)
    with reading(folder, origin):
        prepared = sorted(path.parent for path in folder.rglob("dataset_info.json"))
        if not prepared:
            raise FileNotFoundError("no prepared dataset")
        if len(prepared) > 1:
            names = ", ".join(path.relative_to(root).as_posix() for path in prepared)
            raise ValueError(
                f"{len(prepared)} prepared versions ({names}), name one as tfds:NAME:VERSION"
            )
        for path in files_below(prepared[0]):  # tensorflow-datasets opens them by itself
            open_regular(path).close()
        build = functools.partial(_decode, dataset, prepared[0], options.image_size)
        return cached("tfds", options.image_size, root, prepared, build)


def tfds_folder(dataset: str, data_dir: Path | None) -> Path:
    """The folder of a set's prepared versions, or of the version that is named."""
    return _root(data_dir) / dataset.replace(":", "/")


def _root(data_dir: Path | None) -> Path:
    return data_dir or Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def _decode(dataset: str, folder: Path, image_size: int | None, target: Path | None) -> Raw:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(f"tfds:{dataset}: needs tensorflow-datasets; run {_PREPARE}") from error
    builder: Any = tfds.builder_from_directory(folder)
    image_key, label_key = builder.info.supervised_keys or ("image", "label")
    features = dict(builder.info.features.items())
    if not isinstance(features.get(image_key), tfds.features.Image) or not isinstance(
        features.get(label_key), tfds.features.ClassLabel
    ):
        raise ValueError(f"has the features {', '.join(features)}, not an image and a class label")
    try:  # our own decoding, so that every source treats image sizes alike
        splits = builder.as_data_source(decoders={image_key: tfds.decode.SkipDecoding()})
    except (NotImplementedError, ImportError) as error:
        raise ValueError(
            f"prepared as {builder.info.file_format.value}, which only TensorFlow reads"
        ) from error
    parts, labels = {}, []
    for split, name in _SPLITS.items():
        if split in splits:
            parts[name] = splits[split]

    def encoded():
        for name, examples in parts.items():
            for i in range(len(examples)):
                example = examples[i]
                labels.append(int(example[label_key]))
                yield (name, i), example[image_key]

    decoded = decode_all(encoded(), image_size)
    pile = Pile(((key, image.pixels) for key, image in decoded), target)
    images = pile.stack(list(pile.places))
    return Raw(
        images,
        np.array(labels),
        tuple(features[label_key].names),
        official=one_after_another((name, len(part)) for name, part in parts.items()),
        reading=Reading(path=str(folder)),
    )


TFDS = Source(
    name="tfds:NAME",
    about="any set that tensorflow-datasets knows, which fetches it",
    read=read_tfds,
    place=tfds_folder,
)
