"""Paths lead to the current folder or to the data, and names may be of any encoding."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.readers import load_dataset, registry
from fedjax_ht.lab.runs.plan import plan
from tests.lab.readers.source_files import encoded, load_error, write

ROOT = Path(__file__).parents[3]


def save(path: Path, value: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, inputs=np.full((4, 2), value, np.float32), labels=[0, 1, 0, 1])


def test_a_path_is_one_of_the_current_folder_or_else_of_the_data(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "data/mine.npz", 1)
    below = load_dataset("npz:mine.npz", "data")
    assert below.inputs.max() == 1 and fl.describe(below).path == str(tmp_path / "data/mine.npz")
    save(tmp_path / "mine.npz", 2)
    here = load_dataset("npz:mine.npz", "data")
    assert here.inputs.max() == 2 and fl.describe(here).path == str(tmp_path / "mine.npz")
    assert caplog.messages == [
        f"npz:mine.npz: {tmp_path / 'mine.npz'} is read, of the current folder; "
        f"{tmp_path / 'data/mine.npz'} is there, too"
    ]
    caplog.clear()
    assert load_dataset("npz:mine.npz", tmp_path).inputs.max() == 2
    assert load_dataset("npz:data/mine.npz").inputs.max() == 1 and not caplog.messages


def test_a_dot_is_the_folder_of_the_data(tmp_path, monkeypatch):
    for label in ("ant", "bee"):
        write(tmp_path / f"data/{label}/0.png", encoded(np.full((4, 4), 99, np.uint8)))
    monkeypatch.chdir(tmp_path)
    assert load_dataset("folder:.", "data").class_names == ("ant", "bee")


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
    ],
)
def test_a_path_without_a_prefix_is_answered_with_it(tmp_path, monkeypatch, path, hint):
    for name in ("pictures/ant/0.png", "sites/a.csv", "made/train/0.npz", "saved/data.arrow"):
        write(tmp_path / name, b"")
    message = load_error(ValueError, path, tmp_path)
    assert message.startswith(f"unknown dataset {path!r}; {hint}")
    config = fl.base_config()
    config.dataset.name, config.dataset.data_dir = path, str(tmp_path)
    with pytest.raises(ValueError) as error:
        plan(config)
    assert str(error.value) == message


# Names

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
    done = subprocess.run(
        [sys.executable, "-c", code, "folder:tiere", "csv:wörter.csv:label"],
        cwd=tmp_path,
        env=os.environ | plain,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2 classes: ameise, k\\xe4fer, of 1 each",
        "2 classes by column 'label': ja, n\\xf6, of 1 each",
    ]
