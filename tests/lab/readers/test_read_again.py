"""A file that was written again is read again, and its doubts are said at every call."""

import os
import shutil

import numpy as np
import pytest

from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.safe.archive import stamp_of
from tests.lab.readers.source_files import encoded, write

TIMES = (1.6e9, 1.6e9)  # as tar, cp -p and rsync -t give a file


def save(path, value: float) -> None:
    np.savez(path, inputs=np.full((4, 2), value, np.float32), labels=[0, 1, 0, 1])
    os.utime(path, TIMES)


@pytest.mark.parametrize("how", ["in place", "renamed", "copied"])
def test_a_file_of_the_same_size_and_time_is_read_again(tmp_path, how):
    path = tmp_path / "own.npz"
    save(path, 1)
    assert load_dataset("npz:own.npz", tmp_path).inputs.max() == 1
    if how == "in place":
        save(path, 2)
    else:
        save(tmp_path / "new.npz", 2)
        move = shutil.copy2 if how == "copied" else os.replace
        move(tmp_path / "new.npz", path)
    assert path.stat().st_mtime == TIMES[0]
    assert load_dataset("npz:own.npz", tmp_path).inputs.max() == 2


def test_tables_and_texts_are_read_again(tmp_path):
    write(tmp_path / "t.csv", "a,label\n1,x\n2,y\n")
    write(tmp_path / "x.csv", "a,one\nb,two\n")
    names = "csv:t.csv:label", "text:x.csv"
    assert [load_dataset(name, tmp_path).num_classes for name in names] == [2, 2]
    write(tmp_path / "t.csv", "a,label\n7,x\n8,y\n9,z\n")
    write(tmp_path / "x.csv", "a,one\nb,two\nc,three\n")
    assert [load_dataset(name, tmp_path).num_classes for name in names] == [3, 3]


def test_images_whose_files_change_places_are_decoded_again(tmp_path):
    paths = [tmp_path / f"set/{label}/0.bmp" for label in ("ant", "bee")]
    for i, path in enumerate(paths):
        write(path, encoded(np.full((4, 4), 100 + i, np.uint8), "BMP"))
        os.utime(path, TIMES)
    name = f"folder:{tmp_path}/set"
    assert load_dataset(name).inputs[:, 0, 0, 0].tolist() == [100, 101]
    os.rename(paths[0], tmp_path / "aside")
    os.rename(paths[1], paths[0])
    os.rename(tmp_path / "aside", paths[1])
    assert load_dataset(name).inputs[:, 0, 0, 0].tolist() == [101, 100]


def test_sets_of_publishers_are_read_again(tmp_path):
    from tests.lab.readers.test_sources_raw import _write_mnist

    _write_mnist(tmp_path)
    first = load_dataset("mnist", tmp_path)
    assert load_dataset("mnist", tmp_path) is first
    (path,) = tmp_path.glob("t10k-images*")
    content = bytearray(path.read_bytes())
    content[-1] ^= 255
    path.write_bytes(content)
    again = load_dataset("mnist", tmp_path)
    assert again.inputs[-1, -1, -1, 0] == 255 - first.inputs[-1, -1, -1, 0]


def test_a_stamp_changes_with_any_file(tmp_path):
    write(tmp_path / "set/a/1", "one")
    stamps = {stamp_of([tmp_path / "set"])}
    assert stamp_of([tmp_path / "set"]) in stamps
    write(tmp_path / "set/a/2", "two")
    stamps.add(stamp_of([tmp_path / "set"]))
    (tmp_path / "set/a/2").rename(tmp_path / "set/a/3")
    stamps.add(stamp_of([tmp_path / "set"]))
    (tmp_path / "set/a/4").symlink_to("nowhere")
    stamps.add(stamp_of([tmp_path / "set"]))
    assert len(stamps) == 4
