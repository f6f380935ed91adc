"""The cache keeps decoded sets, and decodes again when their files change."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers.raw import ReadOptions
from tests.lab.readers.source_files import encoded, pixels, sets, write


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Loads without the in-process cache, and tells whether images were decoded; the user's cache
    is in `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    decoded = []
    module = sys.modules["fedjax_ht.lab.readers.image_folder"]
    original = module.decode_files
    monkeypatch.setattr(module, "decode_files", lambda *args: decoded.append(1) or original(*args))
    load = sys.modules["fedjax_ht.lab.readers.registry"]._load.__wrapped__

    def run(name, data_dir, image_size=None):
        decoded.clear()
        return load(name, data_dir, ReadOptions(image_size), ""), bool(decoded)

    return run


def _write_folder(root: Path) -> None:
    for i, name in enumerate(["train/a/1", "train/b/1", "test/b/1"]):
        write(root / f"{name}.png", encoded(np.full((4, 4), i, np.uint8)))


def test_decoded_images_are_kept(tmp_path, fresh):
    root = tmp_path / "set"
    _write_folder(root)
    first, decoded = fresh(f"folder:{root}", None)
    assert decoded
    images, rest = sorted((root / ".fedjax_ht_cache").iterdir())  # nothing temporary is left
    second, decoded = fresh(f"folder:{root}", None)
    assert not decoded and not (tmp_path / "user").exists()
    for field in ("inputs", "labels"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
    assert (second.name, second.class_names) == (first.name, first.class_names)
    assert sets(second) == {"train": [1, 2], "test": [0]}
    assert fresh(f"folder:{root}", None, 2)[1]  # each size has a file of its own
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
        third, decoded = fresh(f"folder:{root}", None)
        assert decoded and images.read_bytes() == content
        np.testing.assert_array_equal(third.inputs, first.inputs)
        assert not fresh(f"folder:{root}", None)[1]


@pytest.mark.parametrize("change", ["content", "time", "added", "removed"])
def test_changed_files_are_decoded_again(tmp_path, fresh, change):
    _write_folder(tmp_path)
    fresh(f"folder:{tmp_path}", None)
    path = tmp_path / "train/a/1.png"
    if change == "content":
        write(path, encoded(pixels(4, 4)))
    elif change == "time":
        os.utime(path, (1, 1))
    elif change == "added":
        write(tmp_path / "train/a/2.png", path.read_bytes())
    else:
        path.unlink()
    assert fresh(f"folder:{tmp_path}", None)[1]
    assert not fresh(f"folder:{tmp_path}", None)[1]


def test_the_users_cache_serves_a_folder_that_cannot_be_written(tmp_path, fresh):
    root = tmp_path / "set"
    _write_folder(root)
    write(root / ".fedjax_ht_cache", "a file where the folder would be")
    assert fresh(f"folder:{root}", None)[1]
    assert len(list((tmp_path / "user/fedjax_ht").iterdir())) == 2
    assert not fresh(f"folder:{root}", None)[1]


def test_nothing_writable_is_no_error(tmp_path, fresh):
    root = tmp_path / "set"
    _write_folder(root)
    for path in (root / ".fedjax_ht_cache", tmp_path / "user"):
        write(path, "a file where the folder would be")
    assert fresh(f"folder:{root}", None)[1]
    assert len(fresh(f"folder:{root}", None)[0].labels) == 3
