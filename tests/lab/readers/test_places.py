"""Paths lead to the current folder or to the data, and a file that was written again is read again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.readers import load_dataset, registry
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.safe.bounded import stamp_of
from tests.lab.readers.source_files import encoded, load_error, write
from tests.lab.readers.test_small_images import _write_mnist

ROOT = Path(__file__).parents[3]


TIMES = (1.6e9, 1.6e9)  # as tar, cp -p and rsync -t give a file


def save(path: Path, value: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, inputs=np.full((4, 2), value, np.float32), labels=[0, 1, 0, 1])
    os.utime(path, TIMES)


def test_a_path_is_one_of_the_current_folder_or_else_of_the_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "data/mine.npz", 1)
    below = load_dataset("npz:mine.npz", "data")
    assert below.inputs.max() == 1 and fl.describe(below).path == str(tmp_path / "data/mine.npz")
    save(tmp_path / "mine.npz", 2)
    here = load_dataset("npz:mine.npz", "data")
    assert here.inputs.max() == 2 and fl.describe(here).path == str(tmp_path / "mine.npz")
    assert load_dataset("npz:mine.npz", tmp_path).inputs.max() == 2
    assert load_dataset("npz:data/mine.npz").inputs.max() == 1


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("digits.npz", "did you mean 'npz:digits.npz'?"),
        ("table.csv.gz", "did you mean 'csv:table.csv.gz'?"),
        ("pictures/ant/0.png", "there are fashion_mnist_10k, "),
        ("pictures", "did you mean 'folder:pictures'?"),
        ("sites", "did you mean 'csv:sites'?"),
        ("made", "did you mean 'client_folders:made'?"),
        ("rows.parquet", "did you mean 'parquet:rows.parquet'?"),
        ("saved", "did you mean 'hf:saved'?"),
        ("users", "did you mean 'leaf:users'?"),
    ],
)
def test_a_path_without_a_prefix_is_answered_with_it(tmp_path, monkeypatch, path, hint):
    names = ("pictures/ant/0.png", "sites/a.csv", "made/train/0.npz", "users/train/a.json")
    for name in (*names, "saved/dataset_info.json"):
        write(tmp_path / name, b"")
    message = load_error(ValueError, path, tmp_path)
    assert message.startswith(f"unknown dataset {path!r}; {hint}")
    config = fl.base_config()
    config.dataset.name, config.dataset.data_dir = path, str(tmp_path)
    with pytest.raises(ValueError) as error:
        plan(config)
    assert str(error.value) == message


LATIN = os.fsdecode("käfer".encode("latin-1"))


def test_names_that_are_not_utf_8_can_be_read_and_printed(tmp_path):
    try:
        (tmp_path / LATIN).mkdir()
    except OSError:
        pytest.skip("a file system of UTF-8 names alone")
    for folder in (LATIN, "käfer"):
        write(tmp_path / folder / "0.png", encoded(np.full((4, 4), 99, np.uint8)))
    write(tmp_path / LATIN / LATIN, b"no image")
    for _ in range(2):  # the second from the cache on disk
        dataset = load_dataset(f"folder:{tmp_path}")
        assert dataset.class_names == ("k\\xe4fer", "käfer")
        "\n".join(fl.describe(dataset).lines).encode()
        registry._load.cache_clear()


def test_a_c_locale(tmp_path):
    for label in ("ameise", "käfer"):
        write(tmp_path / f"tiere/{label}/größe.png", encoded(np.full((4, 4), 99, np.uint8)))
    write(tmp_path / "wörter.csv", "Größe,label\n1,ja\n2,nö\n")
    code = (
        "import sys, fedjax_ht as fl; from fedjax_ht.lab.command import print_any_text\n"
        "print_any_text()\n"
        "for name in sys.argv[1:]: print(fl.describe(fl.load_dataset(name)).lines[1])\n"
    )
    # neither coerced to UTF-8 nor in Python's UTF-8 mode
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, "folder:tiere", "csv:wörter.csv:label"]
    environment, piped = os.environ | plain, {"capture_output": True, "text": True}
    done = subprocess.run(command, cwd=tmp_path, env=environment, **piped)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2 classes: ameise, k\\xe4fer, of 1 each",
        "2 classes by column 'label': ja, n\\xf6, of 1 each",
    ]


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
    _write_mnist(tmp_path)
    first = load_dataset("mnist", tmp_path)
    assert load_dataset("mnist", tmp_path) is first
    (path,) = tmp_path.glob("t10k-images*")
    content = bytearray(path.read_bytes())
    content[-1] ^= 255
    path.write_bytes(content)
    again = load_dataset("mnist", tmp_path)
    assert again.inputs[-1, -1, -1, 0] == 255 - first.inputs[-1, -1, -1, 0]


def test_a_link_to_nowhere_is_in_a_stamp(tmp_path):
    before = stamp_of([tmp_path])
    (tmp_path / "link").symlink_to("nowhere")
    assert before != stamp_of([tmp_path]) == stamp_of([tmp_path])
