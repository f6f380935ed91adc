"""A small server on loopback for the tests of downloads, and sets whose home it is."""

import dataclasses
import hashlib
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers.download import get
from fedjax_ht.lab.readers.registry import SOURCES
from fedjax_ht.lab.readers.source import File, Source
from fedjax_ht.lab.safe.bounded import Origin

TRAIN, TEST = (np.random.default_rng(i).bytes(400_000 + i) for i in range(2))
"""Contents of the two files of the set `PAIR`."""

PAIR = Source(
    name="pair",
    about="made",
    read=lambda *files, options: None,
    origins=tuple(Origin(file, "make it", names=(file,)) for file in ("train.bin", "test.bin")),
)
"""A set of two files."""


class Server:
    """Serves files by name, and notes the requests.

    Attributes:
      content: file name -> body.
      requests: file names, one a request.
      cuts: bytes of a body after which the next connections end.
      held: connections stay open until it is set.
      home: address of the files.
    """

    def __init__(self):
        self.content, self.requests, self.cuts = {}, [], []
        self.held = threading.Event()
        self.held.set()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.home = f"http://127.0.0.1:{self.server.server_port}/"

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """Answers a request: 404, or the body."""
        name = handler.path.strip("/")
        self.requests.append(name)
        body = self.content.get(name)
        if body is None:
            handler.send_error(404)
            return
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: self.cuts.pop(0) if self.cuts else None])
        self.held.wait()

    def source(self, name: str, content: dict[str, bytes]) -> Source:
        """Serves files, and returns the declaration of the set `name` with these files."""
        self.content |= content
        return made(name, self.home, content)


def made(name: str, home: str, content: dict[str, bytes]) -> Source:
    """Returns the declaration of a set with other files, at another address."""
    return dataclasses.replace(
        SOURCES.get(name, PAIR),
        about="made",
        home=home,
        files={
            file: File(len(body), hashlib.md5(body).hexdigest()) for file, body in content.items()
        },
    )


def error_of(kind: type[Exception], *arguments) -> str:
    """The message of the error that `get(*arguments)` gives, which must be one line."""
    with pytest.raises(kind) as error:
        get(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def files(folder: Path) -> dict[str, bytes]:
    """Path below a folder -> content, of all files."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
