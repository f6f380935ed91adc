"""Piles decoded images that become one array; on disk, so that only some hundred are in memory."""

import io
import tempfile
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.lab.safe.archive import take


class _Place(NamedTuple):
    start: int  # of its bytes in the pile
    shape: tuple[int, int, int]


class Pile:
    """Images one after another as they come, to be put in order when all are there.

    They are written and read, and mapped only when they are whole: a full disk is an OSError then,
    where it would kill a process that writes to a map, and none of it counts as memory of the
    process.

    Attributes:
      target: the .npy file that `stack` writes, beside which the images lie meanwhile, in a file
        without a name; None keeps both in memory.
      places: image key -> where it is, in the order in which they came.
    """

    def __init__(self, images: Iterable[tuple[Hashable, np.ndarray]], target: Path | None):
        """Takes (key, uint8 [H, W, 1 or 3]); of two with one key the last stays."""
        self.target, self.places, end = target, {}, 0
        if target is None:
            self._file = io.BytesIO()
        else:
            self._file = tempfile.TemporaryFile(dir=target.parent)  # noqa: SIM115, `stack` closes it
        for key, image in images:
            self.places[key] = _Place(end, image.shape)
            end += self._file.write(image.tobytes())

    def stack(self, keys: Sequence[Hashable]) -> np.ndarray:
        """Stacks the images of some keys in this order, uint8 [N, H, W, C].

        C is 3 if any image has 3 channels. With a target the result is a read-only map of it. The
        pile is empty then.

        Raises:
          ValueError: an image is missing, there are none, or their sizes differ.
        """
        places = take(self.places, keys, "images")
        shape = common_shape([place.shape for place in places])
        images = (np.broadcast_to(self._read(place), shape) for place in places)
        with self._file:
            if self.target is None:
                stacked = np.empty((len(places), *shape), np.uint8)
                for row, image in zip(stacked, images):
                    row[...] = image
                return stacked
            with open(self.target, "wb") as file:
                header = {"descr": "|u1", "fortran_order": False, "shape": (len(places), *shape)}
                np.lib.format.write_array_header_1_0(file, header)
                for image in images:
                    file.write(image.tobytes())
        return mapped(self.target)

    def _read(self, place: _Place) -> np.ndarray:
        self._file.seek(place.start)
        return np.frombuffer(self._file.read(int(np.prod(place.shape))), np.uint8).reshape(
            place.shape
        )


def mapped(path: Path) -> np.ndarray:
    """The array of an .npy file, read-only, its pages read when they are looked at.

    numpy starts the values at a multiple of 64 bytes, which lets jax use them in place on CPU
    (`core.mesh.spread`).
    """
    return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)


def common_shape(shapes: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    """(H, W, C) of images that are to be stacked; C is the largest.

    Raises:
      ValueError: there are none, or the sizes differ.
    """
    if not shapes:
        raise ValueError("no images")
    sizes = sorted({shape[:2] for shape in shapes})
    if len(sizes) > 1:
        raise ValueError(
            f"the images have {len(sizes)} sizes, from {sizes[0]} to {sizes[-1]}; set image_size"
        )
    return (*sizes[0], max(shape[-1] for shape in shapes))
