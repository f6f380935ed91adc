"""Damaged archives, images that another program would open, and other files are refused."""

import re
import tarfile
import zipfile

import numpy as np
import pytest

from fedjax_ht.lab.readers.images import decode
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.lab.safe.bounded import opened_zip, read_whole, tar_members
from fedjax_ht.lab.safe.torch_files import load_state_dict
from tests.lab.readers.attacks import npy_header
from tests.lab.readers.source_files import encoded, pixels
from tests.lab.safe.test_torch_files import refused, state_dict, tensor
from tests.lab.safe.test_torch_files import write as write_weights

ANY = re.compile("")


def _tar(path, count: int = 3) -> bytearray:
    with tarfile.open(path, "w") as archive:
        for i in range(count):
            archive.addfile(tarfile.TarInfo(f"file{i}"))
    return bytearray(path.read_bytes())


def _names(path) -> list[str]:
    return [match.string for match, _ in tar_members(path, ANY)]


def test_a_damaged_header_is_not_the_end_of_a_tar(tmp_path):
    path = tmp_path / "x.tar"
    content = _tar(path)
    assert _names(path) == ["file0", "file1", "file2"]
    for damaged in (content[:1030] + b"?" + content[1031:], content[:1024], content[:1100]):
        path.write_bytes(damaged)
        with pytest.raises(tarfile.ReadError):
            _names(path)


def _zip(path) -> bytearray:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("fileA", "fileB", "fileC"):
            archive.writestr(name, name)
    return bytearray(path.read_bytes())


@pytest.mark.parametrize("letter", b"C?")  # of another file; of none
def test_no_file_of_a_zip_is_lost_to_a_wrong_name(tmp_path, letter):
    path = tmp_path / "x.zip"
    content = _zip(path)
    with opened_zip(path) as archive:
        assert list(archive.entries) == ["fileA", "fileB", "fileC"]
    content[content.rindex(b"fileB") + 4] = letter
    path.write_bytes(content)
    with pytest.raises(zipfile.BadZipFile, match="differ"), opened_zip(path):
        pass


def test_no_file_of_a_zip_is_lost_to_its_neighbour(tmp_path):
    """One wrong bit in the length of a comment can make it swallow the entry behind it."""
    path = tmp_path / "x.zip"
    content = _zip(path)
    first = content.index(b"PK\x01\x02")
    content[first + 32] = 46 + len("fileB")  # the length of the comment
    path.write_bytes(content)
    with pytest.raises(zipfile.BadZipFile, match="lists fewer or more files"), opened_zip(path):
        pass


def test_other_compressions_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("images.npy", npy_header("(1,)") + b"\0")
    with pytest.raises(ValueError, match="stored and deflated"), opened_npz(tmp_path / "x.npz"):
        pass


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_all_plain_kinds(tmp_path, save):
    arrays = {
        "text": np.array(["a", "bcd"]),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "scalar": np.array(7),
        "empty": np.zeros((0, 3), np.int8),
        "big": np.arange(3, dtype=">i4"),
        "bool": np.array([True, False]),
        "metadata": np.array("{}"),
    }
    save(tmp_path / "x.npz", **arrays)
    with opened_npz(tmp_path / "x.npz") as read:
        assert list(read) == list(arrays) and "none" not in read
        for name, array in arrays.items():
            np.testing.assert_array_equal(read[name], array, strict=True)


def test_files_above_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "FILE_BYTES", 10)
    (tmp_path / "x").write_bytes(bytes(10))
    assert read_whole(tmp_path / "x") == bytes(10)
    (tmp_path / "x").write_bytes(bytes(11))
    with pytest.raises(ValueError, match="11 bytes, more than the allowed 10"):
        read_whole(tmp_path / "x")


def test_no_other_program_opens_an_image():
    """Pillow gives PostScript to Ghostscript."""
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(ValueError, match="no known image format"):
        decode("a.png", content, None)


def test_images_above_the_limit(monkeypatch):
    monkeypatch.setattr(limits, "PIXELS", 12)
    assert decode("a", encoded(pixels(3, 4)), None).shape == (3, 4, 1)
    with pytest.raises(ValueError, match=r"image a cannot be decoded \(it has 15 pixels, more"):
        decode("a", encoded(pixels(3, 5)), None)


def test_many_views_of_one_storage(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "FILE_BYTES", 5000)
    monkeypatch.setattr(limits, "GROWTH", 1)
    storage = {"0": np.zeros(100, np.float32)}
    # 400 bytes each
    views = {f"x{i}": tensor(shape=(10, 10), strides=(1, 10)) for i in range(30)}
    path = write_weights(tmp_path / "x.pth", state_dict(**dict(list(views.items())[:10])), storage)
    assert len(load_state_dict(path)) == 10
    refused("the state dict has", write_weights(tmp_path / "y.pth", state_dict(**views), storage))
