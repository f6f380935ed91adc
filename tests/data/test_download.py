"""Downloads, from a small server on loopback: never from the sets' homes."""

import gzip
import hashlib
import http.server
import io
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pooch
import pytest

from fedjax_ht.data.sources import dataset_names, find_dataset, load_dataset
from fedjax_ht.data.sources import download as module
from fedjax_ht.data.sources.addresses import SOURCES, File, Source
from fedjax_ht.data.sources.download import get, listing
from tests.data.source_files import load_error
from tests.data.test_sources_raw import _tar, _write_cifar, _write_mnist

ROOT = Path(__file__).parents[2]


class Server:
    """Serves `content` by file name and notes the requests; `cuts` says after how many bytes of a
    body the next connections end."""

    def __init__(self):
        self.content, self.asked, self.cuts, self.ranges = {}, [], [], True
        self.held = threading.Event()  # connections stay open until it is set
        self.held.set()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name, wanted = self.path.strip("/"), self.headers.get("Range")
                server.asked.append((name, wanted))
                body = server.content.get(name)
                if body is None:
                    self.send_error(404)
                    return
                start = (
                    int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and server.ranges else 0
                )
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                self.wfile.write(body[start:][: server.cuts.pop(0) if server.cuts else None])
                server.held.wait()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.home = f"http://127.0.0.1:{self.server.server_port}/"

    def source(self, **content: bytes) -> Source:
        """Serves files, and is their home."""
        content = {name.replace("__", "."): body for name, body in content.items()}
        self.content |= content
        return Source(
            "made",
            tuple(
                File(self.home + n, hashlib.md5(body).hexdigest(), len(body))
                for n, body in content.items()
            ),
        )


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.server.shutdown()
    thread.join()
    server.server.server_close()


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """A test that names another host fails."""
    ask = module.urllib.request.urlopen

    def on_loopback(request, **options):
        assert request.host.startswith("127.0.0.1:"), request.full_url
        return ask(request, **options)

    monkeypatch.setattr(module.urllib.request, "urlopen", on_loopback)


TRAIN, TEST = (np.random.default_rng(i).bytes(400_000 + i) for i in range(2))


@pytest.fixture
def svhn(server):
    return {"svhn": server.source(train_32x32__mat=TRAIN, test_32x32__mat=TEST)}


def error_of(kind, *arguments) -> str:
    with pytest.raises(kind) as error:
        get(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_download_lies_where_the_reader_looks(tmp_path, server, svhn):
    told = []
    there = get("svhn", tmp_path / "data", told.append, svhn)
    assert there == find_dataset("svhn", tmp_path / "data")
    assert files(tmp_path / "data") == {"svhn/train_32x32.mat": TRAIN, "svhn/test_32x32.mat": TEST}
    assert len(told) == 2 and f"{server.home}train_32x32.mat, 400,000 bytes" in told[0]
    assert server.asked == [("train_32x32.mat", None), ("test_32x32.mat", None)]
    assert get("svhn", tmp_path / "data", told.append, svhn) == there  # does nothing
    assert len(server.asked) == 2 and told[2].startswith("svhn is there: ")


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_what_was_downloaded_is_read(tmp_path, server, name):
    """Archives are read as they are, and gzipped files too."""
    if name == "cifar10":
        folder, images, _ = _write_cifar(name, "python", tmp_path / "made")
        _tar(folder, tmp_path / "made/cifar-10-python.tar.gz")
        archives = {
            "cifar-10-python.tar.gz": (tmp_path / "made/cifar-10-python.tar.gz").read_bytes()
        }
    else:
        images = _write_mnist(tmp_path / "made")[0]
        archives = {
            f"{p.name}.gz": gzip.compress(p.read_bytes()) for p in (tmp_path / "made").iterdir()
        }
    source = server.source(**archives)
    get(name, tmp_path / "data", sources={name: source})
    np.testing.assert_array_equal(load_dataset(name, tmp_path / "data").inputs, images)


def test_a_cut_download_goes_on_at_once(tmp_path, server, svhn):
    server.cuts = [150_000, 100_000]
    get("svhn", tmp_path, sources=svhn)
    assert server.asked[:3] == [
        ("train_32x32.mat", r) for r in (None, "bytes=150000-", "bytes=250000-")
    ]
    assert files(tmp_path / "svhn") == {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}


def test_a_cut_download_goes_on_by_the_same_command(tmp_path, server, svhn, monkeypatch):
    monkeypatch.setattr(module, "_TRIES", 1)
    server.cuts = [150_000]
    message = error_of(OSError, "svhn", tmp_path, print, svhn)
    assert (
        "ended after 150,000 of 400,000 bytes" in message and "the same command goes on" in message
    )
    assert files(tmp_path / "svhn") == {"train_32x32.mat.part": TRAIN[:150_000]}
    with pytest.raises(FileNotFoundError):
        find_dataset("svhn", tmp_path)
    get("svhn", tmp_path, sources=svhn)
    assert server.asked[1] == ("train_32x32.mat", "bytes=150000-")
    assert files(tmp_path / "svhn") == {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}


@pytest.mark.parametrize("left", [TRAIN[:150_000], TRAIN + b"more", TRAIN])
def test_a_server_that_sends_only_whole_files(tmp_path, server, svhn, left):
    """What a killed process has left may be as long as it likes."""
    server.ranges = False
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn/train_32x32.mat.part").write_bytes(left)
    get("svhn", tmp_path, sources=svhn)
    assert files(tmp_path / "svhn") == {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}


def test_a_part_that_is_longer_than_the_file(tmp_path, server, svhn):
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn/train_32x32.mat.part").write_bytes(TRAIN + b"more")
    get("svhn", tmp_path, sources=svhn)
    assert [wanted for _, wanted in server.asked] == ["bytes=400004-", None, None]
    assert files(tmp_path / "svhn") == {"train_32x32.mat": TRAIN, "test_32x32.mat": TEST}


def test_a_process_that_is_killed_leaves_only_the_part(tmp_path, server):
    source = server.source(train_32x32__mat=TRAIN)
    server.cuts, server.held = [300_000], threading.Event()
    code = f"""
from fedjax_ht.data.sources.addresses import File, Source
from fedjax_ht.data.sources.download import get
get("svhn", {str(tmp_path)!r}, sources={{"svhn": Source("made", ({source.files[0]!r},))}})
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
    part, end = tmp_path / "svhn/train_32x32.mat.part", time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()
    process.wait()
    server.held.set()
    assert (
        0 < len(files(tmp_path).pop("svhn/train_32x32.mat.part")) <= 300_000
        and len(files(tmp_path)) == 1
    )
    svhn = {"svhn": Source("made", (*source.files, *server.source(test_32x32__mat=TEST).files))}
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
    assert files(tmp_path) == {"svhn/train_32x32.mat": b"mine"} and not server.asked


def test_gzip_of_another_hand_is_the_same_file(tmp_path, server):
    content = gzip.compress(TRAIN, 1)
    names = [file.name for file in SOURCES["mnist"].files]
    source = server.source(**dict.fromkeys(names, content))
    own = tuple(file._replace(content_md5=hashlib.md5(TRAIN).hexdigest()) for file in source.files)
    (tmp_path / "mnist").mkdir()
    for name in names:
        (tmp_path / "mnist" / name).write_bytes(gzip.compress(TRAIN, 9))
    get("mnist", tmp_path, sources={"mnist": Source("made", own)})
    assert not server.asked
    (tmp_path / "mnist" / names[2]).write_bytes(content[:-1])
    assert names[2] in error_of(
        ValueError, "mnist", tmp_path, print, {"mnist": Source("made", own)}
    )


def test_no_such_file_and_no_connection(tmp_path, server, svhn):
    del server.content["test_32x32.mat"]
    assert "test_32x32.mat: the server answers 404" in error_of(
        OSError, "svhn", tmp_path, print, svhn
    )
    assert files(tmp_path) == {"svhn/train_32x32.mat": TRAIN}  # stays
    nowhere = File("http://127.0.0.1:9/test_32x32.mat", svhn["svhn"].files[1].md5, 1)
    svhn = {"svhn": Source("made", (svhn["svhn"].files[0], nowhere))}
    message = error_of(OSError, "svhn", tmp_path, print, svhn)
    assert (
        message.startswith("http://127.0.0.1:9/test_32x32.mat: no connection (")
        and len(server.asked) == 2
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"no HTTP at all\r\n\r\n", "no HTTP at all"),
        (b"", "without response"),
        (b"HTTP/1.1 206 OK\r\nContent-Range: bytes 7-9/10\r\n\r\nabc", "another part"),
    ],
)
def test_a_server_of_another_kind(tmp_path, server, answer, words):
    """Which listens once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/train_32x32.mat"
        message = error_of(
            OSError, "svhn", tmp_path, print, {"svhn": Source("made", (File(url, "0" * 32, 10),))}
        )
        thread.join()
    assert message.startswith(f"{url}: ") and words in message and not files(tmp_path)


def test_a_set_elsewhere_in_the_folder_is_there(tmp_path, server, svhn):
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / name).write_bytes(b"a part of the set")
    assert get("svhn", tmp_path, sources=svhn)[0].parent == tmp_path and not server.asked


def test_names_without_an_address_say_so(tmp_path):
    assert "part of the package" in error_of(ValueError, "fashion_mnist_10k", tmp_path)
    assert "a file of your own" in error_of(ValueError, "npz:x.npz", tmp_path)
    assert "generate_*.py" in error_of(ValueError, "client_folders:MNIST", tmp_path)
    assert "there are mnist" in error_of(ValueError, "imagenet", tmp_path)


def test_every_name_is_listed(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    lines = {listed.name: listed for listed in listing(tmp_path)}
    assert tuple(lines) == dataset_names()
    assert set(SOURCES) == {name for name, listed in lines.items() if listed.size}
    assert [name for name, listed in lines.items() if listed.there] == ["cifar10"]
    for source in SOURCES.values():
        for file in source.files:
            assert (
                re.fullmatch(r"https?://[a-z0-9.-]+/\S+", file.url)
                and len(file.md5) == 32
                and file.size > 0
            )


@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_set_names_the_command(tmp_path, name):
    folder = tmp_path / "a folder"
    folder.mkdir()
    command = f"`fedjax-ht data get {name} --data_dir='{folder}'` downloads it"
    assert command in load_error(FileNotFoundError, name, folder)
    assert f"get {name} --data_dir=data`" in load_error(ValueError, name)


def test_tensorflow_datasets_fetches_its_own(tmp_path, monkeypatch):
    asked = []

    def builder(name, **options):
        asked.append((name, options))
        return types.SimpleNamespace(
            data_dir=tmp_path / name, download_and_prepare=lambda: asked.append("prepared")
        )

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.SimpleNamespace(builder=builder))
    told = []
    assert get("tfds:emnist/letters", tmp_path, told.append) == (tmp_path / "emnist/letters",)
    assert asked == [
        ("emnist/letters", {"data_dir": str(tmp_path), "file_format": "array_record"}),
        "prepared",
    ]
    assert "tensorflow-datasets" in told[0]
    broken = types.SimpleNamespace(builder=lambda *_, **__: 1 / 0)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", broken)
    assert "tensorflow-datasets says division by zero" in error_of(
        ValueError, "tfds:emnist", tmp_path
    )
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert "pip install 'fedjax_ht[tfds]'" in error_of(ImportError, "tfds:emnist", tmp_path)
    assert "get tfds:emnist --data_dir=" in load_error(FileNotFoundError, "tfds:emnist", tmp_path)


def test_what_is_not_needed_is_not_imported():
    """Neither by the library nor by a run; tensorflow-datasets not even where a set is downloaded
    from its home."""
    code = "import sys, fedjax_ht, fedjax_ht.runner.main; print({'pooch', 'tensorflow_datasets'} & set(sys.modules))"
    also = "import fedjax_ht.runner.data; print({'tensorflow', 'tensorflow_datasets'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{also}"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "set()\nset()\n", done.stdout + done.stderr


# The command line


@pytest.fixture
def commanded(capsys, monkeypatch, svhn):
    """Runs the command line in this process: (exit code, stdout, stderr)."""
    from fedjax_ht.runner import cli, data

    monkeypatch.setattr(module, "SOURCES", svhn)

    def run(*arguments):
        code = 0
        try:
            data.main(cli.parse_words(["data", *map(str, arguments)]))
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


def test_the_command_line(tmp_path, server, commanded):
    code, out, err = commanded("get", "svhn", f"--data_dir={tmp_path}")
    assert (
        code == 0
        and err == ""
        and out.splitlines()[-1].startswith("read it by --config.dataset.name=svhn")
    )
    code, out, _ = commanded("list", f"--data_dir={tmp_path}")
    assert code == 0 and len(out.splitlines()) == len(dataset_names())
    assert (
        f"svhn                made; 1 MB from {server.home}; is there: {tmp_path}/svhn/train_32x32.mat"
        in out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give `get NAME` or `list`"),
        (("get",), "give `get NAME` or `list`"),
        (("get", "imagenet"), "unknown dataset 'imagenet'"),
        (("list", "--nothing=1"), "unknown flag 'nothing'"),
    ],
)
def test_mistakes_are_one_line(commanded, arguments, message):
    code, out, err = commanded(*arguments)
    assert (
        (code, out) == (2, "")
        and err.startswith("error: ")
        and err.count("\n") == 1
        and message in err
    )


def test_a_wrong_sum_ends_with_2(tmp_path, server, commanded):
    server.content["train_32x32.mat"] = TRAIN[::-1]
    code, _, err = commanded("get", "svhn", f"--data_dir={tmp_path}")
    sums = [hashlib.md5(content).hexdigest() for content in (TRAIN, TRAIN[::-1])]
    assert (
        code == 2
        and err.count("\n") == 1
        and all(digest in err for digest in sums)
        and not files(tmp_path)
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path, commanded):
    tmp_path.chmod(0o500)
    code, _, err = commanded("get", "svhn", f"--data_dir={tmp_path}")
    assert code == 2 and err.count("\n") == 1


def test_pooch_is_quiet(tmp_path, svhn):
    logger, lines = pooch.get_logger(), []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.setLevel("INFO")
    logger.addHandler(handler)
    get("svhn", tmp_path, lambda line: None, svhn)
    logger.removeHandler(handler)
    assert not lines


def test_progress_is_shown_on_a_terminal(tmp_path, svhn, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    get("svhn", tmp_path, lambda line: None, svhn)
    assert "train_32x32.mat: 100%" in terminal.getvalue() and "400k/400k" in terminal.getvalue()
