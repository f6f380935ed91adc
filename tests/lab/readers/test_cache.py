"""The cache of decoded sets has them whole or not at all, and never in memory as a whole."""

import errno
import os
import signal
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers import image_folder
from fedjax_ht.lab.readers import images as pile_module
from fedjax_ht.lab.readers.images import Pile, decode_all
from fedjax_ht.lab.readers.registry import _load
from fedjax_ht.lab.readers.source import ReadOptions
from tests.lab.readers.source_files import encoded, pixels, sets, write


def load(name, image_size=None):
    """Reads a set without the latest sets in memory."""
    return _load.__wrapped__(name, None, ReadOptions(image_size), "")


def test_a_set_is_never_in_memory_as_a_whole(tmp_path):
    image, count = pixels(64, 64, 3), 3_000  # 37 MB
    content = encoded(image)
    tracemalloc.start()
    decoded = decode_all(((i, content) for i in range(count)), None)
    pile = Pile(decoded, tmp_path / "images.npy")
    images = pile.stack(range(count))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert images.shape == (count, 64, 64, 3) and not images.flags.writeable
    np.testing.assert_array_equal(images[[0, -1]], [image, image])
    assert peak < images.nbytes / 4, peak
    assert [path.name for path in tmp_path.iterdir()] == ["images.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "images.npy"), images)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_pile_puts_images_in_order(tmp_path, on_disk):
    grey, first, colour = pixels(2, 2, 1), pixels(2, 2, 3), pixels(2, 2, 3)

    def made(*images):
        return Pile(images, tmp_path / "x.npy" if on_disk else None)

    pile = made(("a", grey), ("b", first), ("c", pixels(9, 9, 1)), ("b", colour))
    np.testing.assert_array_equal(pile.stack(["b", "a"]), [colour, np.repeat(grey, 3, -1)])
    assert made(("a", grey)).stack(["a"]).shape == (1, 2, 2, 1)
    with pytest.raises(ValueError, match="2 sizes"):
        made(("a", grey), ("b", pixels(2, 3, 1))).stack(["a", "b"])
    with pytest.raises(ValueError, match="no images"):
        made().stack([])
    with pytest.raises(ValueError, match="1 of 1 images are missing, such as b"):
        made(("a", grey)).stack(["b"])


def write_set(folder):
    """Writes images that have the value 0 and are of class b, 1 of a, and 2 of b."""
    for i, name in enumerate(["test/b/1", "train/a/1", "train/b/1"]):
        write(folder / f"{name}.png", encoded(np.full((4, 4), i, np.uint8)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a set of three images; the user's cache is in `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    write_set(tmp_path / "set")
    return tmp_path / "set"


@pytest.fixture
def fresh(folder, monkeypatch):
    """Loads the set without the latest ones in memory; returns whether images were decoded, too."""
    decoded, original = [], image_folder.decode_files

    def decode(*arguments):
        decoded.append(1)
        return original(*arguments)

    monkeypatch.setattr(image_folder, "decode_files", decode)

    def run(image_size=None):
        decoded.clear()
        return load(f"folder:{folder}", image_size), bool(decoded)

    return run


def assert_whole(folder: Path) -> None:
    dataset = load(f"folder:{folder}")
    assert dataset.inputs[:, 0, 0, 0].tolist() == [0, 1, 2] and dataset.labels.tolist() == [1, 0, 1]


def kept(folder: Path) -> list[str]:
    return sorted(path.suffix for path in (folder / ".fedjax_ht_cache").iterdir())


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("images.mapped", [".tmp"]),  # the images are written
        ("registry.np.savez", [".tmp", ".tmp"]),
        ("registry._sweep", [".npy", ".npz"]),
        ("registry.Path.replace", [".npy", ".tmp"]),  # the second one
    ],
)
def test_a_process_that_is_killed_leaves_nothing_wrong(forks, folder, where, left):
    module, _, attribute = where.partition(".")
    code = f"""
import os, signal
from fedjax_ht.lab.readers import registry, images, load_dataset
replace = registry.Path.replace
def kill(*arguments, **options):
    if {"replace" in where} and str(arguments[1]).endswith(".npy"):
        return replace(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
{module}.{attribute} = kill
load_dataset("folder:{folder}")
"""
    done = forks[0].run("-c", code)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert kept(folder) == left
    assert_whole(folder)
    assert [suffix for suffix in kept(folder) if suffix != ".tmp"] == [".npy", ".npz"]
    for path in (folder / ".fedjax_ht_cache").glob("*.tmp"):  # of a killed process, a day later
        os.utime(path, (time.time() - 100_000,) * 2)
    write(folder / "train/b/1.png", encoded(np.full((4, 4), 2, np.uint8)) + b" ")
    assert_whole(folder)
    assert kept(folder) == [".npy", ".npz"]  # neither those nor the images of before


def test_a_young_temporary_file_may_be_in_use(folder):
    write(folder / ".fedjax_ht_cache/other.tmp", b"")
    assert_whole(folder)
    assert kept(folder) == [".npy", ".npz", ".tmp"]


def test_a_full_disk_keeps_nothing(folder, monkeypatch, tmp_path):
    class Full:
        def write(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pile_module.tempfile, "TemporaryFile", lambda **_: Full())
    assert_whole(folder)
    assert kept(folder) == [] and not list((tmp_path / "user/fedjax_ht").iterdir())


def test_decoded_images_are_kept(folder, fresh, tmp_path):
    first, decoded = fresh()
    assert decoded
    images, rest = sorted((folder / ".fedjax_ht_cache").iterdir())  # nothing temporary is left
    second, decoded = fresh()
    assert not decoded and not (tmp_path / "user").exists()
    for field in ("inputs", "labels"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
    assert (second.name, second.class_names) == (first.name, first.class_names)
    assert sets(second) == {"train": [1, 2], "test": [0]}
    assert fresh(2)[1]  # each size has a file of its own
    content = images.read_bytes()
    damaged = bytes([*content[:-1], content[-1] ^ 1])
    for file, wrong in (
        (rest, rest.read_bytes()[:-30]),
        (images, content[:-1]),
        (images, damaged),
        (images, None),
    ):
        file.unlink()  # the sets above still map it
        if wrong is not None:
            file.write_bytes(wrong)
        third, decoded = fresh()
        assert decoded and images.read_bytes() == content
        np.testing.assert_array_equal(third.inputs, first.inputs)
        assert not fresh()[1]


@pytest.mark.parametrize("change", ["content", "time", "added", "removed"])
def test_changed_files_are_decoded_again(folder, fresh, change):
    fresh()
    path = folder / "train/a/1.png"
    if change == "content":
        write(path, encoded(pixels(4, 4)))
    elif change == "time":
        os.utime(path, (1, 1))
    elif change == "added":
        write(folder / "train/a/2.png", path.read_bytes())
    else:
        path.unlink()
    assert fresh()[1]
    assert not fresh()[1]


def test_the_users_cache_serves_a_folder_that_cannot_be_written(folder, fresh, tmp_path):
    write(folder / ".fedjax_ht_cache", "a file where the folder would be")
    assert fresh()[1]
    assert len(list((tmp_path / "user/fedjax_ht").iterdir())) == 2
    assert not fresh()[1]


def test_nothing_writable_is_no_error(folder, fresh, tmp_path):
    for path in (folder / ".fedjax_ht_cache", tmp_path / "user"):
        write(path, "a file where the folder would be")
    for _ in range(2):
        dataset, decoded = fresh()
        assert decoded and len(dataset.labels) == 3
