"""Folders of images with a mask of the same name for each, which has the class of each pixel.

    images/NAME.jpg  masks/NAME.png        images/FOLDER/NAME.jpg  masks/FOLDER/NAME.png

FOLDER is a set (train, val, test), or else a place whose images are one group.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.check.packages import needing
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.image_folder import ENDINGS
from fedjax_ht.lab.readers.images import common_shape, decode_files, resize
from fedjax_ht.lab.readers.roles import SETS, sets_of
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import Origin, listing, read_whole

_ORIGIN = Origin(
    "images/NAME.jpg and masks/NAME.png, or the same below folders of sets or places",
    "write each mask as a PNG whose grey value, or palette index, is the class, and 255 where "
    "there is none",
)


def read_masks(root: Path, options: ReadOptions) -> Raw:
    """Reads images/... and masks/... of a folder.

    Raises:
      ValueError: the task is another one, an image has no mask, or their sizes differ. One line.
    """
    if options.task != "per-pixel":
        raise ValueError(f"its labels are masks; set task to 'per-pixel', not {options.task!r}")
    names, _ = listing(root)
    images, masks = (
        {
            name.partition("/")[2].rpartition(".")[0]: name
            for name in names
            if name.startswith(f"{of}/") and name.rpartition(".")[2].lower() in ENDINGS
        }
        for of in ("images", "masks")
    )
    alone = sorted(images.keys() ^ masks.keys())
    if alone or not images:
        raise ValueError(
            f"it has {len(images)} images and {len(masks)} masks; of {len(alone)} one is missing"
            f"{(alone and f', first of {alone[0]}') or ''}"
        )
    keys = sorted(images)
    pile, converted = decode_files(
        root, [images[key] for key in keys], options.image_size, options.target
    )
    pixels = list(_decoded(root, [masks[key] for key in keys], options.image_size))
    common_shape([mask.shape for mask in pixels])
    owners = np.array([key.partition("/")[0] if "/" in key else "" for key in keys])
    folders = np.unique(owners).tolist()
    sets = sets_of(folders)
    if sets and len(sets) < len(folders):
        raise ValueError(
            f"folders {listed(folders)} are sets and places; give all images a set, or none"
        )
    official = {x: np.flatnonzero([sets.get(owner) == x for owner in owners]) for x in SETS}
    is_grouped = not sets and len(folders) > 1
    return Raw(
        pile.stack([images[key] for key in keys]),
        np.zeros(len(keys), np.int64),
        (),
        official={x: rows for x, rows in official.items() if len(rows)},
        groups=np.searchsorted(folders, owners) if is_grouped else None,
        targets=np.stack(pixels)[..., 0],
        reading=Reading(
            path=str(root),
            group_names=tuple(folders) if is_grouped else (),
            converted=converted,
        ),
    )


def _decoded(root: Path, names: list[str], size: int | None) -> Iterator[np.ndarray]:
    """Yields the classes of masks' pixels, uint8 [H, W, 1]."""
    with needing("decoding images"):
        from PIL import Image

    for name in names:
        try:
            with Image.open(io.BytesIO(read_whole(root / name)), formats=("PNG", "BMP")) as image:
                limits.keep("it", image.width * image.height, limits.PIXELS, "pixels")
                mode, pixels = image.mode, np.asarray(image)
        except Exception as error:  # Pillow raises nearly anything on a damaged file
            raise ValueError(f"mask {name} cannot be decoded ({error})") from error
        if mode not in ("1", "L", "P"):
            raise ValueError(f"mask {name} has mode {mode}; store classes as grey or palette")
        yield resize(pixels.astype(np.uint8)[None, ..., None], size, nearest=True)[0]


MASKS = Source(
    name="masks:PATH",
    about="they are folders of your own, and nothing is to be downloaded",
    read=read_masks,
    origins=(_ORIGIN,),
)
