"""Decodes and resizes images."""

import io
import itertools
import re
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedjax_ht.check.packages import needing
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import members, read_whole, take

# Pillow is imported only where images are decoded or resized: sets of arrays do not need it
if TYPE_CHECKING:
    from PIL import Image

# formats that Pillow decodes without an external program
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "TIFF", "GIF")
_GREY_MODES = ("1", "L", "LA")
_COLOUR_MODES = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
_BITS_PER_SAMPLE = 258  # TIFF tag


class _Place(NamedTuple):
    start: int  # offset of its bytes in the pile
    shape: tuple[int, int, int]


class Pile:
    """Images stored in order of arrival, which `stack` reorders when all are there.

    The file is written and read normally, and mapped only when complete. A full disk then raises
    OSError, whereas it would kill a process that writes to a map. The pile takes no process memory.

    Attributes:
      target: .npy file that `stack` writes. Meanwhile the images lie beside it, in a file without a
        name; None keeps both in memory.
      places: image key -> its place, in order of arrival.
    """

    def __init__(self, images: Iterable[tuple[Hashable, np.ndarray]], target: Path | None):
        """Takes (key, uint8 [H, W, 1 or 3]) pairs; the last image of a key wins."""
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

        C is 3 if any image has 3 channels. With a target, the result is a read-only map of it. The
        pile is closed afterwards.

        Raises:
          ValueError: an image is missing, there are none, or their sizes differ.
        """
        places = take(self.places, keys, "images")
        if not places:
            raise ValueError("no images")
        sizes = sorted({place.shape[:2] for place in places})
        if len(sizes) > 1:
            raise ValueError(
                f"the images have {len(sizes)} sizes, from {sizes[0]} to {sizes[-1]}; set "
                "image_size"
            )
        shape = (*sizes[0], max(place.shape[-1] for place in places))
        images = (np.broadcast_to(self._read(place), shape)[None] for place in places)
        with self._file:
            return write_stacked(self.target, (len(places), *shape), np.uint8, images)

    def _read(self, place: _Place) -> np.ndarray:
        self._file.seek(place.start)
        return np.frombuffer(self._file.read(int(np.prod(place.shape))), np.uint8).reshape(
            place.shape
        )


def write_stacked(
    target: Path | None,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    parts: Iterable[np.ndarray],
) -> np.ndarray:
    """Concatenates arrays to one of this shape; with a target, as a read-only map of that .npy."""
    if target is None:
        joined, start = np.empty(shape, dtype), 0
        for part in parts:
            joined[start : start + len(part)] = part.reshape(-1, *shape[1:])
            start += len(part)
        return joined
    with open(target, "wb") as file:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            file.write(part.tobytes())
    return mapped(target)


def mapped(path: Path) -> np.ndarray:
    """Maps the array of an .npy file read-only; pages are read on access.

    NumPy aligns the values to 64 bytes, which lets JAX use them in place on CPU
    (`core.mesh.spread`).
    """
    return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)


def decode_members(
    source: Path, pattern: re.Pattern, size: int | None, target: Path | None
) -> tuple[Pile, dict[str, str]]:
    """Decodes the images and reads the text files of a publisher's folder or archive in one pass.

    Args:
      source: a folder or an archive.
      pattern: pattern of the names. Its groups `image` and `text`, the latter optional, match the
        keys.
      size: height and width; None for the native size.
      target: file in which the pile will be stacked; see `Pile`.

    Returns:
      The decoded images, and key -> content of the text files.
    """
    texts = {}

    def encoded():
        for match, content in members(source, pattern):
            groups = match.groupdict()
            if groups["image"]:
                yield groups["image"], content
            else:
                limits.keep(groups["text"], len(content), limits.TEXT_BYTES)
                texts[groups["text"]] = content.decode()

    return Pile(decode_all(encoded(), size), target), texts


def decode_files(folder: Path, names: Iterable[str], size: int | None, target: Path | None) -> Pile:
    """Decodes image files of a user's folder as a viewer shows them.

    Args:
      folder: the folder of the files.
      names: relative paths of the files, which are the keys.
      size, target: image size and the pile's file, as for `decode_members`.
    """
    encoded = ((name, read_whole(folder / name)) for name in names)
    return Pile(decode_all(encoded, size, as_shown=True), target)


def decode_all(
    encoded: Iterable[tuple[Hashable, bytes]], size: int | None, as_shown: bool = False
) -> Iterator[tuple[Hashable, np.ndarray]]:
    """Decodes (key, file content) pairs in threads, and yields (key, pixels); see `decode`."""

    def decoded(item: tuple[Hashable, bytes]) -> np.ndarray:
        return decode(*item, size, as_shown=as_shown)

    encoded = iter(encoded)
    with ThreadPoolExecutor() as pool:
        # limits how many images are in memory
        while batch := list(itertools.islice(encoded, 256)):
            yield from zip((key for key, _ in batch), pool.map(decoded, batch))


def decode(
    name: Hashable, content: bytes, size: int | None, *, as_shown: bool = False
) -> np.ndarray:
    """Decodes one image file: uint8 [H, W, 1 or 3].

    Args:
      name: file name, for the error.
      content: content of the file.
      size: height and width to which the central square is resized; None keeps the whole image.
      as_shown: True applies the EXIF orientation and blends transparent pixels onto white, as
        viewers do. Published sets are used with the pixels as stored.

    Raises:
      ValueError: not an image, damaged, more than 8 bits a channel, or more than `limits.PIXELS`
        pixels.
    """

    def pixels(image: "Image.Image") -> np.ndarray:
        if image.mode not in _GREY_MODES + _COLOUR_MODES:
            raise ValueError(f"mode {image.mode}, not 8-bit grey or colour")
        mode = "L" if image.mode in _GREY_MODES else "RGB"
        if as_shown:
            image = _opaque(_upright(image), mode)
        if image.mode != mode:
            image = image.convert(mode)
        return np.asarray(image if size is None else _central_square(image, size))

    found = _opened(f"image {name}", content, _FORMATS, pixels)
    return found.reshape(*found.shape[:2], -1)


def decode_mask(name: str, content: bytes, size: int | None) -> np.ndarray:
    """Decodes class masks, uint8 [H, W, 1]; resizing mixes no classes. As `decode` otherwise."""

    def classes(image: "Image.Image") -> np.ndarray:
        if image.mode not in ("1", "L", "P"):
            raise ValueError(f"mode {image.mode}; store classes as grey or palette")
        return np.asarray(image if size is None else _central_square(image, size, nearest=True))

    return _opened(f"mask {name}", content, ("PNG", "BMP"), classes).astype(np.uint8)[..., None]


def _opened(
    what: str,
    content: bytes,
    formats: tuple[str, ...],
    pixels: Callable[["Image.Image"], np.ndarray],
) -> np.ndarray:
    """Returns the pixels of an image of at most `limits.PIXELS` pixels."""
    with needing("decoding images"):
        from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=formats) as image:
            limits.keep("it", image.width * image.height, limits.PIXELS, "pixels")
            if _is_deep(image):
                raise ValueError("more than 8 bits a channel; store it with 8")
            image.load()
            return pixels(image)
    except Exception as error:  # Pillow raises nearly any type on a damaged file
        unknown = isinstance(error, Image.UnidentifiedImageError)
        reason = "no known image format" if unknown else error
        raise ValueError(f"{what} cannot be decoded ({reason})") from error


def _is_deep(image: Any) -> bool:
    """Returns whether a file has more than 8 bits a channel: Pillow would cut colours to 8.

    Args:
      image: an image that is not loaded yet, of any of Pillow's classes.
    """
    if image.format == "TIFF":
        return max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))) > 8
    if image.format not in ("PNG", "PPM"):
        return False
    # layout: the mode of stored pixels, or for some PPM files (mode, largest value)
    return any(
        layout[-1] > 255 if isinstance(layout, tuple) else layout.endswith(";16B")
        for *_, layout in image.tile
    )


def _upright(image: "Image.Image") -> "Image.Image":
    """Applies the EXIF orientation: cameras store pixels in the sensor's order."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged metadata of an intact image: Pillow raises nearly any type
        return image


def _opaque(image: "Image.Image", mode: str) -> "Image.Image":
    """Blends transparent pixels onto white: their stored colour is arbitrary."""
    from PIL import Image

    if "A" not in image.getbands() and "transparency" not in image.info:
        return image
    layers = image.convert("LA" if mode == "L" else "RGBA")
    alpha = layers.getchannel("A")
    if alpha.getextrema()[0] == 255:
        return image
    white = Image.new(mode, image.size, "white")
    white.paste(layers.convert(mode), mask=alpha)
    return white


def resize(images: np.ndarray, size: int | None, nearest: bool = False) -> np.ndarray:
    """Resizes the central square of each image, uint8 [N, H, W, 1 or 3], to [N, size, size, C].

    The result is contiguous; None keeps H and W. `nearest` mixes no pixels, as masks require.
    """
    if size is None or images.shape[1:3] == (size, size):
        return np.ascontiguousarray(images)
    with needing("resizing images"):
        from PIL import Image

    resized = np.empty((len(images), size, size, images.shape[-1]), np.uint8)
    for source, target in zip(images, resized):
        if source.shape[-1] == 1:
            source = source[..., 0]  # Pillow's grey images have two axes
        image = Image.fromarray(source)
        target[...] = np.asarray(_central_square(image, size, nearest)).reshape(target.shape)
    return resized


def _central_square(image: "Image.Image", size: int, nearest: bool = False) -> "Image.Image":
    """Resizes the central square in one step: bilinear and anti-aliased, or `nearest`."""
    from PIL import Image

    how = Image.Resampling.NEAREST if nearest else Image.Resampling.BILINEAR
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((size, size), how, box=(left, top, left + side, top + side))
