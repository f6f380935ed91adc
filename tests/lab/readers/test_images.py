"""The names that `load_dataset` takes, the embedded set, and decoding of images."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedjax_ht.lab.readers import dataset_names, load_dataset, registry
from fedjax_ht.lab.readers.images import decode, resize
from fedjax_ht.lab.readers.source import SHIPPED
from tests.lab.readers.source_files import encoded, load_error, pixels, refused, write


def test_unknown_names_are_answered_with_the_known_ones():
    for name in ("cifar11", "npz:", "zip:x", ""):
        message = load_error(ValueError, name)
        assert all(known in message for known in dataset_names())


@pytest.mark.parametrize("size", [0, -1, 2.0, "32", True])
def test_image_size_is_checked(size):
    refused("image_size", "fashion_mnist_10k", None, size)


EMBEDDED = ("fashion_mnist_10k", "har_10persons", "har_30persons")
UNFETCHED = {
    "ag_news": "extract them from the authors' ag_news_csv.tar.gz",
    "ag_news_test": "extract them from the authors' ag_news_csv.tar.gz",
} | dict.fromkeys(("svhn", "flowers102", "food101"), "pip install 'fedjax_ht[tfds]'")
PLAIN = [name for name in dataset_names() if ":" not in name and name not in EMBEDDED]


@pytest.mark.parametrize("name", PLAIN)
def test_missing_files_and_folders(tmp_path, name):
    folder, source = tmp_path / "a folder", registry.SOURCES[name]
    folder.mkdir()
    message = load_error(FileNotFoundError, name, folder)
    way = UNFETCHED.get(name, "download it from the dataset's page (")
    assert name in message and str(folder) in message and way in message
    if source.files or source.builder:
        assert f"`fedjax-ht data get {name} --data_dir='{folder}'` downloads it" in message
        refused(f"get {name} --data_dir=data`", name)
    refused("data_dir", name)


def test_embedded_fashion_mnist():
    dataset = load_dataset("fashion_mnist_10k")
    assert dataset.inputs.shape == (10_000, 28, 28, 1) and dataset.num_classes == 10
    assert np.bincount(dataset.labels).tolist() == [1000] * 10
    assert dataset.class_names[dataset.labels[0]] == "Ankle boot"
    # of the pixels in the publisher's t10k file
    assert zlib.crc32(dataset.inputs.tobytes()) == 309494841
    assert zlib.crc32(dataset.labels.astype(np.uint8).tobytes()) == 606848831
    assert dataset.official == {} and dataset.preprocess == ([0.5], [0.5])
    assert load_dataset("fashion_mnist_10k", image_size=14).inputs.shape == (10_000, 14, 14, 1)
    assert (SHIPPED / "fashion_mnist_10k.npz").stat().st_size <= 4.6e6
    assert "Permission is hereby granted" in (SHIPPED / "LICENSE-fashion_mnist_10k.txt").read_text()


def test_resize_takes_the_central_square():
    image = pixels(1, 4, 8, 3)
    whole = np.asarray(Image.fromarray(image[0]).resize((4, 2), Image.Resampling.BILINEAR))
    expected = whole[:, 1:3].astype(int)  # the shorter side resized, then the longer one cropped
    np.testing.assert_allclose(resize(image, 2)[0], expected, atol=1)
    high = resize(image.transpose(0, 2, 1, 3), 2)[0]
    np.testing.assert_allclose(high.transpose(1, 0, 2), expected, atol=1)
    np.testing.assert_allclose(decode("wide", encoded(image[0]), 2), expected, atol=1)
    np.testing.assert_array_equal(resize(image, None), image)
    assert resize(image[..., :1], 3).shape == (1, 3, 3, 1)
    rows = np.zeros((1, 4, 4, 1), np.uint8)
    rows[:, ::2] = 200  # anti-aliased: no row is dropped
    assert abs(resize(rows, 1).item() - 100) <= 1


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)]
)
def test_image_modes(mode, channels):
    file = io.BytesIO()
    Image.fromarray(np.full((5, 4, 3), 255, np.uint8)).convert(mode).save(file, "PNG")
    for as_shown in (False, True):
        pixels = decode(mode, file.getvalue(), None, as_shown=as_shown)
        assert (pixels == np.full((5, 4, channels), 255)).all()


def png_16(kind: int, channels: int) -> bytes:
    """A PNG file of 4 x 4 pixels with 16 bits a channel; Pillow writes none of colours."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, kind, 0, 0, 0)),
        (b"IDAT", zlib.compress(4 * bytes(1 + 4 * 2 * channels))),
        (b"IEND", b""),
    ]
    chunks = (
        struct.pack(">I", len(x)) + name + x + struct.pack(">I", zlib.crc32(name + x))
        for name, x in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def tiff_16() -> bytes:
    """A TIFF file of 4 x 4 pixels in RGB with 16 bits a channel: one of 8 x 4 with 8, relabelled."""
    file = io.BytesIO()
    Image.new("RGB", (8, 4)).save(file, "TIFF")
    width = struct.Struct("<HHII")
    content = file.getvalue().replace(width.pack(256, 4, 1, 8), width.pack(256, 4, 1, 4))
    return content.replace(struct.pack("<HHH", 8, 8, 8), struct.pack("<HHH", 16, 16, 16))


@pytest.mark.parametrize(
    "content",
    [
        png_16(0, 1),
        png_16(2, 3),
        png_16(4, 2),
        png_16(6, 4),
        tiff_16(),
        b"P6 4 4 1023\n" + bytes(96),
        b"P3 4 4 65535\n" + b"0 " * 48,
        b"P5 4 4 65535\n" + bytes(32),
    ],
    ids=["grey", "colour", "LA", "RGBA", "TIFF", "10 bits", "plain PPM", "PGM"],
)
def test_more_than_8_bits_a_channel_are_refused(content):
    with pytest.raises(ValueError, match=r"x cannot be decoded \(more than 8 bits a channel; "):
        decode("x", content, None)


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
    ("number", "shape", "corner"), [(3, (16, 24), (-1, -1)), (6, (24, 16), (0, -1))]
)
def test_the_exif_orientation_is_applied(number, shape, corner):
    shown = decode("x", oriented(number), None, as_shown=True)
    assert shown.shape == (*shape, 1) and shown[corner].item() > 200
    assert decode("x", oriented(number), None).shape == (16, 24, 1)


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
    assert set(shown[3, 0].tolist()) == {255} and shown[0, 1].max() < 250


def test_all_endings_are_read(tmp_path, caplog):
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
        registry._load.cache_clear()
