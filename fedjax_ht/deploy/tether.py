"""Runs a program that ends when who started it has ended, however that was.

python -m fedjax_ht.deploy.tether PARENT PROGRAM ARGUMENT ...
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

LOOK_SECONDS, END_SECONDS = 0.5, 10.0


def hold(parent: int, words: Sequence[str]) -> int:
    """Runs `words` while process `parent` is this one's parent; the program's exit code."""
    program = subprocess.Popen(words)
    told: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: told.append(number))
    while program.poll() is None and os.getppid() == parent and not told:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(LOOK_SECONDS)
    end(program)
    return program.returncode


def end(program: subprocess.Popen) -> None:
    """Ends a program, by force where it does not."""
    program.terminate()
    try:
        program.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


if __name__ == "__main__":
    sys.exit(hold(int(sys.argv[1]), sys.argv[2:]))
