"""Datasets prepared by tensorflow-datasets in its array_record format, read without TensorFlow."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.images import Pile, decode_all
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source, one_after_another
from fedjax_ht.lab.safe.bounded import Origin, files_below, open_regular

_SPLITS = {"train": "train", "validation": "val", "test": "test"}
_ORIGIN = Origin(
    "a set prepared in array_record format",
    "pip install 'fedjax_ht[tfds]' and `fedjax-ht data get tfds:NAME --data_dir=DIR`, which runs "
    "tfds.builder(NAME, file_format='array_record', data_dir=DIR).download_and_prepare()",
)


def read_tfds(folder: Path, options: ReadOptions) -> Raw:
    """Reads a prepared set; its splits train, validation and test are official sets.

    Only what is already prepared is read: nothing is downloaded.
    """
    prepared = sorted(path.parent for path in folder.rglob("dataset_info.json"))
    if not prepared:
        raise FileNotFoundError("no prepared dataset")
    if len(prepared) > 1:
        names = ", ".join(path.relative_to(folder.parent).as_posix() for path in prepared)
        raise ValueError(
            f"{len(prepared)} prepared versions ({names}), name one as tfds:NAME:VERSION"
        )
    for path in files_below(prepared[0]):  # tensorflow-datasets opens them by itself
        open_regular(path).close()
    try:  # a dependency that BUILD.md lets a user leave out
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

    decoded = decode_all(encoded(), options.image_size)
    pile = Pile(((key, image.pixels) for key, image in decoded), options.target)
    images = pile.stack(list(pile.places))
    return Raw(
        images,
        np.array(labels),
        tuple(features[label_key].names),
        official=one_after_another((name, len(part)) for name, part in parts.items()),
        reading=Reading(path=str(prepared[0])),
    )


def _folder(dataset: str, data_dir: Path | None) -> Path:
    """The folder of NAME, NAME/CONFIG or either with :VERSION, by default tensorflow-datasets'."""
    root = data_dir or Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    return root.expanduser() / dataset.replace(":", "/")


TFDS = Source(
    name="tfds:NAME",
    about="any set that tensorflow-datasets knows, which fetches it",
    read=read_tfds,
    origins=(_ORIGIN,),
    place=_folder,
    is_kept=True,
)
