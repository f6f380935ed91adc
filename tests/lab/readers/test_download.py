"""Downloads, from a small server on loopback: never from the sets' homes."""

import dataclasses
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
from tests.lab.readers.download_server import TEST, TRAIN, error_of, files, made
from tests.lab.readers.source_files import refused, tar
from tests.lab.readers.test_small_images import _write_cifar, _write_mnist

pytestmark = pytest.mark.usefixtures("no_network")
ROOT = Path(__file__).parents[3]


def test_a_download_lies_where_the_reader_looks(tmp_path, server, svhn):
    lines = []
    paths = get("svhn", tmp_path / "data", lines.append, svhn)
    assert paths == SOURCES["svhn"].places("", tmp_path / "data")
    assert files(tmp_path / "data") == {"svhn/train_32x32.mat": TRAIN, "svhn/test_32x32.mat": TEST}
    assert len(lines) == 2 and f"{server.home}train_32x32.mat, 400,000 bytes" in lines[0]
    assert server.requests == [("train_32x32.mat", None), ("test_32x32.mat", None)]
    assert get("svhn", tmp_path / "data", lines.append, svhn) == paths  # does nothing
    assert len(server.requests) == 2 and lines[2].startswith("svhn is there: ")


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_a_downloaded_set_is_read(tmp_path, server, name):
    """Archives are read as they are, and gzipped files too."""
    if name == "cifar10":
        folder, images, _ = _write_cifar(name, "python", tmp_path / "made")
        tar(folder, tmp_path / "made/cifar-10-python.tar.gz")
        archives = {
            "cifar-10-python.tar.gz": (tmp_path / "made/cifar-10-python.tar.gz").read_bytes()
        }
    else:
        images = _write_mnist(tmp_path / "made")[0]
        archives = {}
        for path in (tmp_path / "made").iterdir():
            archives[f"{path.name}.gz"] = gzip.compress(path.read_bytes())
    source = server.source(name, archives)
    get(name, tmp_path / "data", sources={name: source})
    np.testing.assert_array_equal(load_dataset(name, tmp_path / "data").inputs, images)


def test_a_cut_download_goes_on_at_once(tmp_path, server, svhn):
    server.cuts = [150_000, 100_000]
    get("svhn", tmp_path, sources=svhn)
    assert server.requests[:3] == [
        ("train_32x32.mat", r) for r in (None, "bytes=150000-", "bytes=250000-")
    ]
    assert files(tmp_path / "svhn") == {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}


def test_a_cut_download_goes_on_by_the_same_command(tmp_path, server, svhn, monkeypatch):
    monkeypatch.setattr(module, "_TRIES", 1)
    server.cuts = [150_000]
    message = error_of(OSError, "svhn", tmp_path, print, svhn)
    assert "ended after 150,000 of 400,000 bytes" in message
    assert "the same command goes on" in message
    assert files(tmp_path / "svhn") == {"train_32x32.mat.part": TRAIN[:150_000]}
    with pytest.raises(FileNotFoundError):
        SOURCES["svhn"].places("", tmp_path)
    get("svhn", tmp_path, sources=svhn)
    assert server.requests[1] == ("train_32x32.mat", "bytes=150000-")
    assert files(tmp_path / "svhn") == {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}


@pytest.mark.parametrize("left", [TRAIN[:150_000], TRAIN + b"more", TRAIN])
def test_a_server_that_sends_only_whole_files(tmp_path, server, svhn, left):
    """A killed process may have left a part of any length."""
    server.ranges = False
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn/train_32x32.mat.part").write_bytes(left)
    get("svhn", tmp_path, sources=svhn)
    assert files(tmp_path / "svhn") == {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}


def test_a_part_that_is_longer_than_the_file(tmp_path, server, svhn):
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn/train_32x32.mat.part").write_bytes(TRAIN + b"more")
    get("svhn", tmp_path, sources=svhn)
    assert [span for _, span in server.requests] == ["bytes=400004-", None, None]
    assert files(tmp_path / "svhn") == {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}


def test_a_process_that_is_killed_leaves_only_the_part(tmp_path, server):
    source = server.source("svhn", {"train_32x32.mat": TRAIN})
    server.cuts, server.held = [300_000], threading.Event()
    code = f"""
import dataclasses
from fedjax_ht.lab.readers.download import get
from fedjax_ht.lab.readers.registry import SOURCES
others = dict(home={source.home!r}, files={source.files!r}, md5={source.md5!r})
get("svhn", {str(tmp_path)!r}, sources={{"svhn": dataclasses.replace(SOURCES["svhn"], **others)}})
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    part, end = tmp_path / "svhn/train_32x32.mat.part", time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()
    process.wait()
    server.held.set()
    assert 0 < len(files(tmp_path).pop("svhn/train_32x32.mat.part")) <= 300_000
    assert len(files(tmp_path)) == 1
    content = {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}
    svhn = {"svhn": server.source("svhn", content)}
    get("svhn", tmp_path, sources=svhn)
    assert files(tmp_path / "svhn") == {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}


def test_a_wrong_sum_is_one_line_and_no_file(tmp_path, server, svhn):
    wrong = bytes([TRAIN[0] ^ 1]) + TRAIN[1:]
    server.content["train_32x32.mat"] = wrong
    message = error_of(ValueError, "svhn", tmp_path, print, svhn)
    assert hashlib.md5(wrong).hexdigest() in message and hashlib.md5(TRAIN).hexdigest() in message
    assert not files(tmp_path)
    server.content["train_32x32.mat"] = TRAIN
    get("svhn", tmp_path, sources=svhn)


def test_a_file_that_does_not_end(tmp_path, server, svhn):
    server.content["train_32x32.mat"] = TRAIN * 3
    assert "longer than the 400,000 bytes" in error_of(ValueError, "svhn", tmp_path, print, svhn)
    assert not files(tmp_path)


def test_another_file_of_the_name_is_not_replaced(tmp_path, server, svhn):
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn/train_32x32.mat").write_bytes(b"mine")
    message = error_of(ValueError, "svhn", tmp_path, print, svhn)
    assert hashlib.md5(b"mine").hexdigest() in message and hashlib.md5(TRAIN).hexdigest() in message
    assert files(tmp_path) == {"svhn/train_32x32.mat": b"mine"} and not server.requests


def test_gzip_of_another_hand_is_the_same_file(tmp_path, server):
    content = gzip.compress(TRAIN, 1)
    names = list(SOURCES["mnist"].files)
    source = server.source("mnist", dict.fromkeys(names, content))
    contents = dict.fromkeys([name.removesuffix(".gz") for name in names], TRAIN)
    sums = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    sources = {"mnist": dataclasses.replace(source, md5={**source.md5, **sums})}
    (tmp_path / "mnist").mkdir()
    for name in names:
        (tmp_path / "mnist" / name).write_bytes(gzip.compress(TRAIN, 9))
    get("mnist", tmp_path, sources=sources)
    assert not server.requests
    (tmp_path / "mnist" / names[2]).write_bytes(content[:-1])
    assert names[2] in error_of(ValueError, "mnist", tmp_path, print, sources)


def test_no_such_file_and_no_connection(tmp_path, server, svhn):
    del server.content["test_32x32.mat"]
    assert "test_32x32.mat: the server answers 404" in error_of(
        OSError, "svhn", tmp_path, print, svhn
    )
    assert files(tmp_path) == {"svhn/train_32x32.mat": TRAIN}  # stays
    svhn = {"svhn": dataclasses.replace(svhn["svhn"], home="http://127.0.0.1:9/")}
    message = error_of(OSError, "svhn", tmp_path, print, svhn)
    assert message.startswith("http://127.0.0.1:9/test_32x32.mat: no connection (")
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"no HTTP at all\r\n\r\n", "no HTTP at all"),
        (b"", "without response"),
        (b"HTTP/1.1 206 OK\r\nContent-Range: bytes 7-9/10\r\n\r\nabc", "another part"),
    ],
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
        sources = {"svhn": made("svhn", home, {"train_32x32.mat": bytes(10)})}
        message = error_of(OSError, "svhn", tmp_path, print, sources)
        thread.join()
    assert message.startswith(f"{home}train_32x32.mat: ") and reason in message
    assert not files(tmp_path)


def test_names_without_an_address_say_so(tmp_path):
    assert "part of the package" in error_of(ValueError, "fashion_mnist_10k", tmp_path)
    assert "a file of your own" in error_of(ValueError, "npz:x.npz", tmp_path)


def test_every_name_is_listed(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    lines = {source.name: present for source, present in listing(tmp_path)}
    assert tuple(lines) == dataset_names()
    downloads = {name: source for name, source in SOURCES.items() if source.files}
    assert [name for name, present in lines.items() if present] == ["cifar10"]
    for source in downloads.values():
        assert re.fullmatch(r"https?://[a-z0-9.-]+/(\S+/)?", source.home)
        for file, size in source.files.items():
            assert len(source.md5[file]) == 32 and size > 0


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
    refused("data get tfds:NAME", "tfds:emnist", tmp_path, kind=FileNotFoundError)


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
            arguments = cli.parse_flags(["data", *map(str, arguments)], takes_words=True)
            cli.orderly_main(data.main)(arguments)
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
