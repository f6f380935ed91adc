"""Envelopes over a local socket: from Flower's short-lived client app to the process that has the data and the models.

Flower starts a process for every message. This library's would import JAX and compile anew each time; the one that
listens here has both behind it. The socket is a file that its owner alone can open.
"""

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fedjax_ht.deploy.envelope import Envelope, from_bytes, to_bytes

LONGEST = 1 << 34  # bytes of a part


def ask(path: Path, message: Envelope) -> Envelope:
    """What the process behind a socket answers.

    Raises:
      OSError, ValueError: nobody listens there, or it ends in between. One line.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError as error:
            raise OSError(f"no client listens at {path}: {error.strerror}") from None
        with connection.makefile("rwb") as file:
            write(file, message)
            return read(file)


def listen(path: Path, reply: Callable[[Envelope], Envelope], stop: Callable[[], bool]) -> None:
    """Answers at a socket, one message after another, until `stop`, which is asked once a second.

    Raises:
      OSError: the socket cannot be made: its folder is missing, or another process listens there.
    """
    with socket.socket(socket.AF_UNIX) as server:
        unheard = path.with_name(f"{path.name}~")  # whoever finds `path` is answered
        unheard.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            server.bind(str(unheard))
        finally:
            os.umask(before)
        server.listen()
        unheard.rename(path)
        server.settimeout(1.0)
        while not stop():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            with connection, connection.makefile("rwb") as file:
                try:
                    write(file, reply(read(file)))
                except (OSError, ValueError):  # who asked is gone, or sent no message
                    continue
        path.unlink(missing_ok=True)


def write(file: BinaryIO, message: Envelope) -> None:
    """An envelope: its head and its arrays' names as JSON, then the arrays, each part behind its length."""
    names = [[name, str(array.dtype)] for name, array in message.arrays.items()]
    parts = [json.dumps([message.head, names]).encode(), *map(to_bytes, message.arrays.values())]
    for part in parts:
        file.write(struct.pack("<Q", len(part)))
        file.write(part)
    file.flush()


def read(file: BinaryIO) -> Envelope:
    """The envelope that `write` wrote.

    Raises:
      ValueError: it is none, or it is cut off.
    """
    try:
        head, names = json.loads(_part(file))
        arrays = {name: from_bytes(_part(file), dtype) for name, dtype in names}
    except TypeError as error:
        raise ValueError(f"no message: {error}") from None
    if not isinstance(head, dict):
        raise ValueError(f"no message: its head is {type(head).__name__}")
    return Envelope(head, arrays)


def _part(file: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", _exactly(file, 8))
    if length > LONGEST:
        raise ValueError(f"a part of {length} bytes")
    return _exactly(file, length)


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise ValueError("a message that is cut off")
    return data
