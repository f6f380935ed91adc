"""Downloads, from a small server on loopback: never from the sets' homes."""

import dataclasses
import functools
import gzip
import hashlib
import re
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers import dataset_names, load_dataset
from fedjax_ht.lab.readers import download as module
from fedjax_ht.lab.readers.download import get, listing
from fedjax_ht.lab.readers.registry import SOURCES
from tests.lab.readers.download_server import PAIR, TEST, TRAIN, error_of, files, made
from tests.lab.readers.source_files import refused, tar
from tests.lab.readers.test_small_images import _write_cifar, _write_mnist

pytestmark = pytest.mark.usefixtures("no_network")
ROOT = Path(__file__).parents[3]


def test_a_download_lies_where_the_reader_looks(tmp_path, server, pair):
    lines = []
    paths = get("pair", tmp_path / "data", lines.append, pair)
    assert paths == PAIR.places("", tmp_path / "data")
    assert files(tmp_path / "data") == {"pair/train.bin": TRAIN, "pair/test.bin": TEST}
    assert len(lines) == 2 and f"{server.home}train.bin, 400,000 bytes" in lines[0]
    assert server.requests == ["train.bin", "test.bin"]
    assert get("pair", tmp_path / "data", lines.append, pair) == paths  # does nothing
    assert len(server.requests) == 2 and lines[2].startswith("pair already exists: ")


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_a_downloaded_set_is_read(tmp_path, server, name):
    """Archives are read as they are, and gzipped files too."""
    made_in, archives = tmp_path / "made", {}
    if name == "cifar10":
        folder, images, _ = _write_cifar(name, made_in)
        archive = made_in / "cifar-10-python.tar.gz"
        tar(folder, archive)
        archives[archive.name] = archive.read_bytes()
    else:
        images = _write_mnist(made_in)[0]
        for path in made_in.iterdir():
            archives[f"{path.name}.gz"] = gzip.compress(path.read_bytes())
    source = server.source(name, archives)
    get(name, tmp_path / "data", sources={name: source})
    np.testing.assert_array_equal(load_dataset(name, tmp_path / "data").inputs, images)


def test_a_cut_download_begins_anew(tmp_path, server, pair):
    server.cuts = [150_000]
    message = error_of(OSError, "pair", tmp_path, print, pair)
    assert "ended after 150,000 of 400,000 bytes of the publisher's file; try again" in message
    assert not files(tmp_path)
    get("pair", tmp_path, sources=pair)
    assert files(tmp_path / "pair") == {"train.bin": TRAIN, "test.bin": TEST}


def test_a_process_that_is_killed_leaves_only_the_part_which_is_replaced(tmp_path, server):
    source = server.source("pair", {"train.bin": TRAIN})
    server.cuts, server.held = [300_000], threading.Event()
    code = f"""
import dataclasses
from fedjax_ht.lab.readers.download import get
from fedjax_ht.lab.readers.source import File
from tests.lab.readers.download_server import PAIR
others = dict(home={source.home!r}, files={source.files!r})
get("pair", {str(tmp_path)!r}, sources={{"pair": dataclasses.replace(PAIR, **others)}})
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    part, end = tmp_path / "pair/train.bin.part", time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()
    process.wait()
    server.held.set()
    assert 0 < len(files(tmp_path).pop("pair/train.bin.part")) <= 300_000
    assert len(files(tmp_path)) == 1
    content = {"train.bin": TRAIN, "test.bin": TEST}
    pair = {"pair": server.source("pair", content)}
    get("pair", tmp_path, sources=pair)
    assert files(tmp_path / "pair") == {"train.bin": TRAIN, "test.bin": TEST}


def test_a_wrong_sum_or_length_is_one_line_and_no_file(tmp_path, server, pair):
    wrong = bytes([TRAIN[0] ^ 1]) + TRAIN[1:]
    server.content["train.bin"] = wrong
    message = error_of(ValueError, "pair", tmp_path, print, pair)
    assert hashlib.md5(wrong).hexdigest() in message and hashlib.md5(TRAIN).hexdigest() in message
    assert not files(tmp_path)
    server.content["train.bin"] = TRAIN * 3
    assert "longer than the 400,000 bytes" in error_of(ValueError, "pair", tmp_path, print, pair)
    assert not files(tmp_path)


def test_another_file_of_the_name_is_not_replaced(tmp_path, server, pair):
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair/train.bin").write_bytes(b"mine")
    message = error_of(ValueError, "pair", tmp_path, print, pair)
    assert hashlib.md5(b"mine").hexdigest() in message and hashlib.md5(TRAIN).hexdigest() in message
    assert files(tmp_path) == {"pair/train.bin": b"mine"} and not server.requests


def test_no_such_file_and_no_connection(tmp_path, server, pair):
    del server.content["test.bin"]
    assert "test.bin: the server answered 404" in error_of(OSError, "pair", tmp_path, print, pair)
    assert files(tmp_path) == {"pair/train.bin": TRAIN}  # stays
    pair = {"pair": dataclasses.replace(pair["pair"], home="http://127.0.0.1:9/")}
    message = error_of(OSError, "pair", tmp_path, print, pair)
    assert message.startswith("http://127.0.0.1:9/test.bin: no connection (")
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "reason"), [(b"no HTTP at all\r\n\r\n", "no HTTP at all"), (b"", "without response")]
)
def test_a_server_of_another_kind(tmp_path, server, answer, reason):
    """The server listens once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        home = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        sources = {"pair": made("pair", home, {"train.bin": bytes(10)})}
        message = error_of(OSError, "pair", tmp_path, print, sources)
        thread.join()
    assert message.startswith(f"{home}train.bin: ") and reason in message
    assert not files(tmp_path)


def test_names_without_an_address_say_so(tmp_path):
    assert "part of the package" in error_of(ValueError, "fashion_mnist_10k", tmp_path)
    assert "your own file" in error_of(ValueError, "npz:x.npz", tmp_path)


def test_every_name_is_listed(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    lines = {source.name: present for source, present in listing(tmp_path)}
    assert tuple(lines) == dataset_names()
    downloads = {name: source for name, source in SOURCES.items() if source.files}
    assert [name for name, present in lines.items() if present] == ["cifar10"]
    for source in downloads.values():
        assert re.fullmatch(r"https?://[a-z0-9.-]+/(\S+/)?", source.home)
        for file in source.files.values():
            assert len(file.md5) == 32 and file.size > 0


def test_tensorflow_datasets_fetches_its_own(tmp_path, monkeypatch):
    calls = []

    def builder(name, **options):
        calls.append((name, options))
        prepare = functools.partial(calls.append, "prepared")
        return types.SimpleNamespace(data_dir=tmp_path / name, download_and_prepare=prepare)

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.SimpleNamespace(builder=builder))
    lines = []
    assert get("tfds:emnist/letters", tmp_path, lines.append) == (tmp_path / "emnist/letters",)
    options = {"data_dir": str(tmp_path), "file_format": "array_record"}
    assert calls == [("emnist/letters", options), "prepared"]
    assert "tensorflow-datasets" in lines[0]
    broken = types.SimpleNamespace(builder=lambda *_, **__: 1 / 0)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", broken)
    message = error_of(ValueError, "tfds:emnist", tmp_path)
    assert "tensorflow-datasets says division by zero" in message
    assert "food101" in error_of(ValueError, "food101", tmp_path)  # a set of its own name here
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert "pip install 'fedjax_ht[tfds]'" in error_of(ImportError, "tfds:emnist", tmp_path)
    refused("data get tfds:NAME", "tfds:emnist", tmp_path, kind=FileNotFoundError)


# The command line


@pytest.fixture
def commanded(capsys, monkeypatch, pair):
    """Runs the command line in this process: (exit code, stdout, stderr)."""
    from fedjax_ht.lab import cli
    from fedjax_ht.lab.runs import data

    monkeypatch.setattr(module, "SOURCES", dict(SOURCES) | pair)

    def run(*arguments):
        code = 0
        try:
            arguments = cli.parse_flags(["data", *map(str, arguments)], takes_words=True)
            cli.orderly_main(data.main)(arguments)
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


def test_the_command_line(tmp_path, server, commanded):
    code, out, err = commanded("get", "pair", f"--data_dir={tmp_path}")
    assert code == 0 and err == ""
    assert out.splitlines()[-1].startswith("read it with --config.dataset.name=pair")
    code, out, _ = commanded("list", f"--data_dir={tmp_path}")
    assert code == 0 and len(out.splitlines()) == len(dataset_names()) + 1
    line = f"made; 1 MB from {server.home}; found: {tmp_path}/pair/train.bin"
    assert f"pair                {line}" in out


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
