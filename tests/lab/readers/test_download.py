"""Downloads, from a small server on loopback: never from the sets' homes."""

import dataclasses
import gzip
import hashlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers import download as module
from fedjax_ht.lab.readers import find_dataset, load_dataset
from fedjax_ht.lab.readers.download import get
from fedjax_ht.lab.readers.registry import SOURCES
from tests.lab.readers.download_server import TEST, TRAIN, error_of, files, made
from tests.lab.readers.test_sources_raw import _tar, _write_cifar, _write_mnist

pytestmark = pytest.mark.usefixtures("no_network")
ROOT = Path(__file__).parents[3]


def test_a_download_lies_where_the_reader_looks(tmp_path, server, svhn):
    lines = []
    paths = get("svhn", tmp_path / "data", lines.append, svhn)
    assert paths == find_dataset("svhn", tmp_path / "data")
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
        _tar(folder, tmp_path / "made/cifar-10-python.tar.gz")
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
        find_dataset("svhn", tmp_path)
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
