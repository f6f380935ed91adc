"""The names that can be downloaded, their list, and the command line."""

import hashlib
import io
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from fedjax_ht.lab.readers import dataset_names
from fedjax_ht.lab.readers import download as module
from fedjax_ht.lab.readers.download import get, listing
from fedjax_ht.lab.readers.registry import SOURCES
from tests.lab.readers.download_server import TRAIN, error_of, files
from tests.lab.readers.source_files import refused

pytestmark = pytest.mark.usefixtures("no_network")
ROOT = Path(__file__).parents[3]


def test_a_set_elsewhere_in_the_folder_is_there(tmp_path, server, svhn):
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / name).write_bytes(b"a part of the set")
    assert get("svhn", tmp_path, sources=svhn)[0].parent == tmp_path and not server.requests


def test_names_without_an_address_say_so(tmp_path):
    assert "part of the package" in error_of(ValueError, "fashion_mnist_10k", tmp_path)
    assert "a file of your own" in error_of(ValueError, "npz:x.npz", tmp_path)
    assert "generate_*.py" in error_of(ValueError, "client_folders:MNIST", tmp_path)
    assert "there are fashion_mnist" in error_of(ValueError, "imagenet", tmp_path)


def test_every_name_is_listed(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    lines = {listed.name: listed for listed in listing(tmp_path)}
    assert tuple(lines) == dataset_names()
    downloads = {name: source for name, source in SOURCES.items() if source.files}
    assert set(downloads) == {name for name, listed in lines.items() if listed.size}
    assert [name for name, listed in lines.items() if listed.present] == ["cifar10"]
    for source in downloads.values():
        for file in source.downloads:
            assert re.fullmatch(r"https?://[a-z0-9.-]+/\S+", file.url) and len(file.md5) == 32
            assert file.size > 0


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.files])
def test_a_missing_set_names_the_command(tmp_path, name):
    folder = tmp_path / "a folder"
    folder.mkdir()
    command = f"`fedjax-ht data get {name} --data_dir='{folder}'` downloads it"
    refused(command, name, folder, kind=FileNotFoundError)
    refused(f"get {name} --data_dir=data`", name)


def test_tensorflow_datasets_fetches_its_own(tmp_path, monkeypatch):
    calls = []

    def builder(name, **options):
        calls.append((name, options))
        return types.SimpleNamespace(
            data_dir=tmp_path / name, download_and_prepare=lambda: calls.append("prepared")
        )

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.SimpleNamespace(builder=builder))
    lines = []
    assert get("tfds:emnist/letters", tmp_path, lines.append) == (tmp_path / "emnist/letters",)
    assert calls == [
        ("emnist/letters", {"data_dir": str(tmp_path), "file_format": "array_record"}),
        "prepared",
    ]
    assert "tensorflow-datasets" in lines[0]
    broken = types.SimpleNamespace(builder=lambda *_, **__: 1 / 0)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", broken)
    assert "tensorflow-datasets says division by zero" in error_of(
        ValueError, "tfds:emnist", tmp_path
    )
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert "pip install 'fedjax_ht[tfds]'" in error_of(ImportError, "tfds:emnist", tmp_path)
    refused("get tfds:emnist --data_dir=", "tfds:emnist", tmp_path, kind=FileNotFoundError)


def test_unneeded_packages_are_not_imported():
    """Neither by the library nor by a run, nor where a set is downloaded from its home."""
    code = "import sys, fedjax_ht, fedjax_ht.lab.runs.run; print({'tensorflow_datasets'} & set(sys.modules))"
    also = "import fedjax_ht.lab.runs.data; print({'tensorflow', 'tensorflow_datasets'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{also}"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "set()\nset()\n", done.stdout + done.stderr


# The command line


@pytest.fixture
def commanded(capsys, monkeypatch, svhn):
    """Runs the command line in this process: (exit code, stdout, stderr)."""
    from fedjax_ht.lab import cli
    from fedjax_ht.lab.runs import data

    monkeypatch.setattr(module, "SOURCES", dict(SOURCES) | svhn)

    def run(*arguments):
        code = 0
        try:
            data.main(cli.parse_flags(["data", *map(str, arguments)], takes_words=True))
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


def test_the_command_line(tmp_path, server, commanded):
    code, out, err = commanded("get", "svhn", f"--data_dir={tmp_path}")
    assert code == 0 and err == ""
    assert out.splitlines()[-1].startswith("read it by --config.dataset.name=svhn")
    code, out, _ = commanded("list", f"--data_dir={tmp_path}")
    assert code == 0 and len(out.splitlines()) == len(dataset_names())
    assert (
        f"svhn                made; 1 MB from {server.home}; is there: {tmp_path}/svhn/train_32x32.mat"
        in out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give `get NAME`, `list` or `show NAME`"),
        (("get",), "give `get NAME`, `list` or `show NAME`"),
        (("get", "imagenet"), "unknown dataset 'imagenet'"),
        (("list", "--nothing=1"), "unknown flag 'nothing'"),
    ],
)
def test_mistakes_are_one_line(commanded, arguments, message):
    code, out, err = commanded(*arguments)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert message in err


def test_a_wrong_sum_ends_with_2(tmp_path, server, commanded):
    server.content["train_32x32.mat"] = TRAIN[::-1]
    code, _, err = commanded("get", "svhn", f"--data_dir={tmp_path}")
    sums = [hashlib.md5(content).hexdigest() for content in (TRAIN, TRAIN[::-1])]
    assert code == 2 and err.count("\n") == 1 and all(digest in err for digest in sums)
    assert not files(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path, commanded):
    tmp_path.chmod(0o500)
    code, _, err = commanded("get", "svhn", f"--data_dir={tmp_path}")
    assert code == 2 and err.count("\n") == 1


def test_progress_is_shown_on_a_terminal(tmp_path, svhn, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    get("svhn", tmp_path, lambda line: None, svhn)
    assert "train_32x32.mat: 100%" in terminal.getvalue() and "400k/400k" in terminal.getvalue()
