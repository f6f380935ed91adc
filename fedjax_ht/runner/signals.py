"""SIGINT and SIGTERM: a line instead of a traceback, from a program's first moment on. Nothing slow
is imported."""

import os
import signal
import socket
import threading
import time
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)
# seconds; `timeout` sends its signal twice, to the process and to its group, and means it once
SAME = 0.3


class catch_signals:
    """Within the block SIGINT and SIGTERM are noted in the list; a second one of the same kind acts
    as usual."""

    def __enter__(self) -> list[int]:
        self.caught: list[int] = []
        self.previous: dict[int, Any] = {}

        def note(number, frame):
            self.caught.append(number)
            previous = self.previous[number]
            if hasattr(previous, "take"):
                previous.take(note)
            else:
                signal.signal(number, previous)

        try:
            for number in NUMBERS:
                self.previous[number] = signal.signal(number, note)
        except ValueError:  # not the main thread (a notebook's worker): signals stay as they are
            self.previous.clear()
        return self.caught

    def __exit__(self, *error) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)


def end_on_signals() -> None:
    """From now on SIGINT and SIGTERM end the program with one line, at once, whatever it is doing.
    Of a block of `catch_signals` that holds for the second one; the first is left to it."""
    ending = threading.Lock()
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def end(number, frame):
        # the main thread and the one below may come here together
        if ending.acquire(blocking=False):
            say(f"stopped by {signal.Signals(number).name}")
            os._exit(128 + number)

    def say(line):
        os.write(2, f"{line}\n".encode())  # the main thread may hold the lock of sys.stderr

    def watch():
        """Python's handlers run between two bytecodes of the main thread only, and so not while it
        compiles."""
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
                    "second one ends at once"
                )
            elif time.monotonic() - since > SAME:
                end(number, None)

    # Blocks whose first signal the thread has counted; blocks that had it before the thread was
    # told.
    counted, owed = set(), set()
    end.take = lambda block: None if block in counted else owed.add(block)
    for number in NUMBERS:
        signal.signal(number, end)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    end.kept = sender  # or its descriptor would be closed
    threading.Thread(target=watch, name="signals", daemon=True).start()
