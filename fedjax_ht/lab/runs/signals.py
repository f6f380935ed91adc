"""Handles SIGINT and SIGTERM with one line instead of a traceback, from a program's start.

It imports nothing slow.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)
SAME = 0.3
"""Seconds within which two signals count as one: `timeout` signals the process and then its
group."""


class Interrupted(Exception):
    """A signal stopped the run, which has saved. `signal` is the signal's number. One line."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Collects the numbers of SIGINT and SIGTERM in a list within the block.

    A second signal of the same kind has its usual effect.
    """
    caught: list[int] = []
    previous: dict[int, Any] = {}

    def note(number, frame):
        caught.append(number)
        handler = previous[number]
        if hasattr(handler, "take"):
            handler.take(note)
        else:
            signal.signal(number, handler)

    try:
        for number in NUMBERS:
            previous[number] = signal.signal(number, note)
    except ValueError:  # not the main thread (a notebook's worker): signals keep their handlers
        previous.clear()
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end_on_signals() -> None:
    """Makes SIGINT and SIGTERM end the program at once, with one line.

    In a block of `catch_signals` only the second signal does, since the first is left to the block.
    """
    ending = threading.Lock()
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def end(number, frame):
        # the main thread and the watching one may arrive here together
        if ending.acquire(blocking=False):
            say(f"stopped by {signal.Signals(number).name}")
            os._exit(128 + number)

    def say(line):
        # the main thread may hold the lock of sys.stderr; `run 2>&1 | tee log` loses its reader to
        # the same Ctrl-C
        with contextlib.suppress(OSError):
            os.write(2, f"{line}\n".encode())

    def watch():
        """Answers signals while the main thread compiles.

        Python runs handlers only between two bytecodes of that thread.
        """
        since = 0.0
        while True:
            number = receiver.recv(1)[0]
            handler = signal.getsignal(number)
            first = bool(owed) if handler is end else handler not in counted
            counted.update(owed, [handler])
            owed.clear()
            if first:
                since = time.monotonic()
                say(
                    f"{signal.Signals(number).name}: the round in progress is still saved; a "
                    "second one stops immediately"
                )
            elif time.monotonic() - since > SAME:
                end(number, None)

    counted = set()  # blocks whose first signal the thread has counted
    owed = set()  # blocks that got their first signal before the thread saw it

    def take(block):
        if block not in counted:
            owed.add(block)

    handler: Any = end  # functions declare no attributes
    handler.take = take
    handler.kept = sender  # otherwise its descriptor would be closed
    for number in NUMBERS:
        signal.signal(number, end)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=watch, name="signals", daemon=True).start()
