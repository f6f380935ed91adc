"""Any folder of images with one folder per class."""

import functools
from pathlib import Path

import numpy as np

from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.cache import cached
from fedjax_ht.lab.readers.image_files import left_out_line, sorted_out
from fedjax_ht.lab.readers.image_layout import layout_of
from fedjax_ht.lab.readers.images import decode_files
from fedjax_ht.lab.readers.raw import Raw, ReadOptions
from fedjax_ht.lab.readers.source import Source
from fedjax_ht.lab.safe.archive import Origin, listing, user_path

_ORIGIN = Origin(
    "CLASS/*.png (or .jpg, .jpeg, .jfif, .gif, .bmp, .ppm, .pgm, .webp, .tif), or the same below "
    "train/ and test/",
    "put each class in a folder of its own",
)


def read_folder(path: str, data_dir: Path | None, options: ReadOptions) -> Raw:
    """Reads PATH/CLASS/... or PATH/SET/CLASS/..., see `image_layout`.

    PATH is one of the current folder, or below `data_dir`. Sets are train, test and val by any
    usual name (`split_names.set_of`); they become official sets. Classes are sorted by name. Images
    keep their size, which must be one size then, and are grey only if all are.

    Raises:
      ValueError: there are no images, their sizes differ, or the folders may be classes as well as
        sets.
    """
    root = user_path(path, data_dir)
    if not root.is_dir():
        raise FileNotFoundError("no such folder")
    build = functools.partial(_decode, root, options.image_size)
    return cached("folder", options.image_size, root, (root,), build)


def _decode(root: Path, image_size: int | None, target: Path | None) -> Raw:
    files = sorted_out(*listing(root))
    layout = layout_of(files.images)
    pile, _, converted = decode_files(root, layout.images, image_size, target)
    classes = sorted(set(layout.classes))
    official = {}
    for name in ("train", "val", "test"):
        indices = np.flatnonzero(np.array(layout.sets) == name)
        if len(indices):
            official[name] = indices
    return Raw(
        pile.stack(layout.images),
        np.searchsorted(classes, layout.classes),
        tuple(classes),
        official=official,
        reading=Reading(
            path=str(root),
            left_out=(*files.left_out, *layout.left_out),
            converted=(*layout.converted, *converted),
            warnings=(*left_out_line(files, layout.left_out), *layout.warnings),
        ),
    )


FOLDER = Source(
    name="folder:PATH",
    place=user_path,
    about="it is a folder of your own, and nothing is to be downloaded",
    read=read_folder,
    origin=_ORIGIN,
)
