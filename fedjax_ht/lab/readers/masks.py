"""Reads folders of images with an equally named mask for each: the class of each pixel.

    images/NAME.jpg  masks/NAME.png        images/FOLDER/NAME.jpg  masks/FOLDER/NAME.png

FOLDER is a set (train, val, test), or a place whose images form a group.
"""

from pathlib import Path

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.data.reading import Reading
from fedjax_ht.lab.readers.image_folder import ENDINGS
from fedjax_ht.lab.readers.images import Pile, decode_files, decode_mask
from fedjax_ht.lab.readers.roles import SETS, sets_of
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source
from fedjax_ht.lab.safe.bounded import Origin, files_below, read_whole

_ORIGIN = Origin(
    "images/NAME.jpg and masks/NAME.png, or the same below folders of sets or places",
    "write each mask as a PNG whose grey value, or palette index, is the class, and 255 where "
    "there is none",
)


def read_masks(root: Path, options: ReadOptions) -> Raw:
    """Reads images/... and masks/... from a folder.

    Raises:
      ValueError: the task is not "per-pixel", an image has no mask, or sizes differ. One line.
    """
    if options.task != "per-pixel":
        raise ValueError(f"its labels are masks; set task to 'per-pixel', not {options.task!r}")
    names = [path.relative_to(root).as_posix() for path in files_below(root)]
    images, masks = (_by_key(names, folder) for folder in ("images", "masks"))
    if images.keys() != masks.keys() or not images:
        alone = sorted(images.keys() ^ masks.keys())
        raise ValueError(
            f"it has {len(images)} images and {len(masks)} masks; unmatched: "
            f"{listed(alone, 5) or 'none'}"
        )
    keys = sorted(images)
    files = [images[key] for key in keys]
    pile = decode_files(root, files, options.image_size, options.target)
    of_images = [masks[key] for key in keys]
    decoded = ((x, decode_mask(x, read_whole(root / x), options.image_size)) for x in of_images)
    pixels = Pile(decoded, None).stack(of_images)
    owners = np.array([key.partition("/")[0] if "/" in key else "" for key in keys])
    folders = np.unique(owners).tolist()
    sets = sets_of(folders)
    if sets and len(sets) < len(folders):
        raise ValueError(
            f"folders {listed(folders)} are sets and places; give every image a set, or none"
        )
    official = {x: np.flatnonzero([sets.get(owner) == x for owner in owners]) for x in SETS}
    is_grouped = not sets and len(folders) > 1
    return Raw(
        pile.stack(files),
        np.zeros(len(keys), np.int64),
        (),
        official={x: rows for x, rows in official.items() if len(rows)},
        groups=np.searchsorted(folders, owners) if is_grouped else None,
        targets=pixels[..., 0],
        reading=Reading(group_names=tuple(folders) if is_grouped else ()),
    )


def _by_key(names: list[str], folder: str) -> dict[str, str]:
    """Returns name without folder and extension -> name, for the images in a folder."""
    found: dict[str, str] = {}
    for name in names:
        key, _, ending = name.rpartition(".")
        if not name.startswith(f"{folder}/") or ending.lower() not in ENDINGS:
            continue
        key = key.removeprefix(f"{folder}/")
        if key in found:
            raise ValueError(f"{found[key]} and {name} may both be meant; remove one")
        found[key] = name
    return found


MASKS = Source(
    name="masks:PATH",
    about="they are your own folders; nothing to download",
    read=read_masks,
    origins=(_ORIGIN,),
)
