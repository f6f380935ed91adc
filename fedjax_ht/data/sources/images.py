"""Decodes and resizes images."""

import io
import itertools
import re
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedjax_ht.core.extras import needing
from fedjax_ht.data.files import limits
from fedjax_ht.data.files.archive import members
from fedjax_ht.data.sources.pile import Pile, common_shape

# sets of arrays are read without Pillow: functions import it that decode or resize
if TYPE_CHECKING:
    from PIL import Image

# none that Pillow gives to another program
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "TIFF", "GIF")
_GREY_MODES = ("1", "L", "LA")
_COLOUR_MODES = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")


def decode_members(
    source: Path, pattern: re.Pattern, size: int | None, target: Path | None
) -> tuple[Pile, dict[str, str]]:
    """Decodes the images and reads the text files of a folder or archive, in one pass.

    Args:
      source: folder or archive.
      pattern: of the names; its groups `image` and `text`, of which the latter need not exist,
        match the keys.
      size: height and width; None for the native ones.
      target: file in which the pile will be stacked; see `Pile`.

    Returns:
      The images, and text key -> content.
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


def decode_all(
    encoded: Iterable[tuple[Hashable, bytes]], size: int | None
) -> Iterator[tuple[Hashable, np.ndarray]]:
    """Yields (key, image) of (key, file content) pairs, decoded in threads; see `decode`."""

    def decoded(item: tuple[Hashable, bytes]) -> np.ndarray:
        return decode(*item, size)

    encoded = iter(encoded)
    with ThreadPoolExecutor() as pool:
        # bounds how many images are in memory
        while batch := list(itertools.islice(encoded, 256)):
            yield from zip((key for key, _ in batch), pool.map(decoded, batch))


def decode(name: Hashable, content: bytes, size: int | None) -> np.ndarray:
    """One image file as uint8 [H, W, 1 or 3]; with a size, its central square.

    Transparency is dropped. `name` is for the error only.

    Raises:
      ValueError: not an image, a damaged one, one with more than 8 bits a channel, or of more than
        `limits.PIXELS`.
    """
    with needing("decoding images"):
        from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            limits.keep("it", image.width * image.height, limits.PIXELS, "pixels")
            if image.mode not in _GREY_MODES + _COLOUR_MODES:
                raise ValueError(f"mode {image.mode}, not 8-bit grey or colour")
            image.load()
            mode = "L" if image.mode in _GREY_MODES else "RGB"
            if image.mode != mode:
                image = image.convert(mode)
    except Exception as error:  # Pillow raises nearly anything on a damaged file
        reason = (
            "no known image format" if isinstance(error, Image.UnidentifiedImageError) else error
        )
        raise ValueError(f"image {name} cannot be decoded ({reason})") from error
    if size is not None:
        image = _central_square(image, size)
    pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def stack(images: list[np.ndarray]) -> np.ndarray:
    """Stacks images, uint8 [H, W, 1 or 3] each, to [N, H, W, C]; C is 3 if any has 3 channels.

    Empties the list as it copies.

    Raises:
      ValueError: there are none, or the sizes differ.
    """
    stacked = np.empty((len(images), *common_shape([image.shape for image in images])), np.uint8)
    for i in reversed(range(len(images))):
        stacked[i] = images.pop()
    return stacked


def resize(images: np.ndarray, size: int | None) -> np.ndarray:
    """Resizes the central square of each image, uint8 [N, H, W, 1 or 3], to [N, size, size, C].

    The result is contiguous; None keeps H and W.
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
        target[...] = np.asarray(_central_square(image, size)).reshape(target.shape)
    return resized


def _central_square(image: "Image.Image", size: int) -> "Image.Image":
    """Resizes the shorter side (bilinear, anti-aliased) and crops the longer one, in one step."""
    from PIL import Image

    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize(
        (size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
    )
