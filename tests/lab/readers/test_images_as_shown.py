"""Images of anyone's folder are read as a viewer shows them, and the changes are said."""

import io

import numpy as np
import pytest
from PIL import Image

import fedjax_ht as fl
from fedjax_ht.lab.readers import load_dataset, registry
from fedjax_ht.lab.readers.images import decode
from tests.lab.readers.source_files import encoded, write

ORIENTATION = 0x0112


def oriented(number: int) -> bytes:
    """A JPEG file of a dark image with a bright upper left corner."""
    pixels = np.zeros((16, 24), np.uint8)
    pixels[:8, :8] = 255
    image, exif = Image.fromarray(pixels), Image.Exif()
    exif[ORIENTATION] = number
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif, quality=95)
    return file.getvalue()


@pytest.mark.parametrize(
    ("number", "shape", "corner"),
    [
        (1, (16, 24), (0, 0)),
        (3, (16, 24), (-1, -1)),
        (6, (24, 16), (0, -1)),
        (8, (24, 16), (-1, 0)),
    ],
)
def test_the_exif_orientation_is_applied(number, shape, corner):
    shown = decode("x", oriented(number), None, as_shown=True)
    assert shown.pixels.shape == (*shape, 1) and shown.pixels[corner].item() > 200
    assert len(shown.changes) == (number != 1)
    stored = decode("x", oriented(number), None)
    assert stored.pixels.shape == (16, 24, 1) and stored.changes == ()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_blended_on_white(mode):
    red = np.zeros((4, 4, 4), np.uint8)
    red[..., 0], red[:2, :, 3], red[2:, :, 3] = 200, 255, 0  # the lower half is transparent
    image, options, file = Image.fromarray(red), {}, io.BytesIO()
    if mode == "P":
        image = Image.fromarray((red[..., 3] == 0).astype(np.uint8)).convert("P")
        image.putpalette([200, 0, 0, 0, 0, 0])
        options = {"transparency": 1}
    image.convert(mode).save(file, "PNG", **options)
    shown = decode("x", file.getvalue(), None, as_shown=True)
    assert shown.changes == ("with transparency blended on white",)
    assert set(shown.pixels[3, 0].tolist()) == {255} and shown.pixels[0, 1].max() < 250


def test_all_endings_are_read_and_changes_counted(tmp_path, caplog):
    write(tmp_path / "ant/0.jpg", oriented(6))
    write(tmp_path / "ant/1.JFIF", oriented(1))
    write(tmp_path / "ant/2.jpeg", oriented(8))
    frames = [Image.fromarray(np.full((24, 16), level, np.uint8)) for level in (9, 200)]
    frames[0].save(tmp_path / "ant/3.gif", save_all=True, append_images=frames[1:])
    clear = np.full((24, 16, 4), 9, np.uint8)
    write(tmp_path / "bee/0.png", encoded(clear))
    for ending in ("bmp", "webp", "pgm", "tif"):
        Image.fromarray(np.full((24, 16), 9, np.uint8)).save(tmp_path / f"bee/1.{ending}")
    for _ in range(2):  # the second from the cache on disk
        dataset = load_dataset(f"folder:{tmp_path}", image_size=16)
        assert len(dataset.labels) == 9 and not caplog.messages
        assert fl.describe(dataset).converted == (
            "2 images turned by their EXIF orientation",
            "1 image with transparency blended on white",
            "1 image of several frames, of which the first is taken",
        )
        registry._load.cache_clear()


def test_damaged_metadata_of_a_sound_image_is_no_error():
    content = oriented(6).replace(b"Exif\x00\x00MM", b"Exif\x00\x00XX")
    assert decode("x", content, None, as_shown=True).pixels.shape == (16, 24, 1)
