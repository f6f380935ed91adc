"""Errors that end a run before its last round. Each is one line."""

import signal


class Interrupted(Exception):
    """The run was told to stop, and has saved. `signal` is the number of the signal."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class CoordinatorTimeout(OSError):
    """Not all processes reached the coordinator in time; threads that still wait for it die with
    this process."""


class GaveUp(Exception):
    """No upload arrived any more in an entry, which has saved and written its results."""


class Unwritable(OSError):
    """A file could not be written after the run had begun."""
