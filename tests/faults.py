"""Faults of the operating system at the n-th call, below one folder.

Files are opened by Python's own implementation of `open`, whose every call of the system is a
function of `os` that can fail. What a library in C opens or writes by itself is not seen.
"""

import _pyio
import builtins
import contextlib
import errno
import io
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

CALLS = ("open", "write", "fsync", "rename", "mkdir")
CODES = (errno.EMFILE, errno.ENOSPC, errno.EIO, errno.EINTR)

some_or_all = pytest.mark.parametrize(
    "which",
    [
        pytest.param({"every": 3}, id="some"),
        pytest.param({"all_codes": True}, id="all", marks=pytest.mark.slow),
    ],
)
"""A test of every third call; behind the marker, of every call with each error."""


class Fault(NamedTuple):
    """One call that fails.

    Attributes:
      call: one of `CALLS`.
      number: of the calls of this kind below the folder, from 1.
      code: errno of the error. Of a write half the bytes are written before.
    """

    call: str
    number: int
    code: int


class Tried(NamedTuple):
    """Results of an action under its faults.

    Attributes:
      faults: that happened.
      ended: how many of them the action ended with, by an error of one line.
    """

    faults: int
    ended: int


@contextlib.contextmanager
def injected(folder: Path, fault: Fault | None = None) -> Iterator[Counter]:
    """Counts the calls of each kind below `folder` within the block, and lets `fault` happen."""
    system = _System(os.path.abspath(folder), fault)
    with contextlib.ExitStack() as stack:
        for name in ("open", "close", "write", "fsync", "mkdir", "listdir", "scandir"):
            stack.enter_context(mock.patch.object(os, name, getattr(system, name)))
        for name in ("rename", "replace"):
            moved = system.moving(getattr(os, name))
            stack.enter_context(mock.patch.object(os, name, moved))
        for module in (builtins, io):
            stack.enter_context(mock.patch.object(module, "open", system.open_file))
        yield system.counts


class _System:
    """Functions of `os` that count their calls below a folder, and fail at one of them."""

    def __init__(self, folder: str, fault: Fault | None):
        self.folder, self.fault, self.counts = folder, fault, Counter()
        self.handles: set[int] = set()  # open files and folders below the folder
        self.cut: int | None = None  # an open file whose next write fails
        self.original = {name: getattr(os, name) for name in dir(os)}
        self.original_open = io.open

    def is_below(self, path: Any) -> bool:
        if isinstance(path, int):
            return path in self.handles
        path = os.path.abspath(os.fsdecode(path))
        return path == self.folder or path.startswith(f"{self.folder}{os.sep}")

    def fails(self, call: str) -> OSError | None:
        self.counts[call] += 1
        if self.fault is None or self.fault[:2] != (call, self.counts[call]):
            return None
        return OSError(self.fault.code, os.strerror(self.fault.code))

    def call(self, call: str, path: Any) -> None:
        error = self.fails(call)
        if error is not None:
            if not isinstance(path, int):  # the system names a path that it was called with
                error.filename = os.fspath(path)
            raise error

    def open(self, path, flags, mode=0o777, *, dir_fd=None):
        below = dir_fd in self.handles if dir_fd is not None else self.is_below(path)
        if below:
            self.call("open", path)
        handle = self.original["open"](path, flags, mode, dir_fd=dir_fd)
        if below:
            self.handles.add(handle)
        return handle

    def close(self, handle):
        self.handles.discard(handle)
        self.original["close"](handle)

    def write(self, handle, content):
        if handle not in self.handles:
            return self.original["write"](handle, content)
        if handle == self.cut:
            self.cut = None
            raise OSError(self.fault.code, os.strerror(self.fault.code))
        error = self.fails("write")
        if error is None:
            return self.original["write"](handle, content)
        if len(content) < 2:
            raise error
        self.cut = handle  # half is written, and then nothing
        return self.original["write"](handle, memoryview(content)[: len(content) // 2])

    def fsync(self, handle):
        if handle not in self.handles:
            self.original["fsync"](handle)
        else:
            self.call("fsync", handle)  # it is not waited for: no power fails here

    def mkdir(self, path, mode=0o777, *, dir_fd=None):
        if self.is_below(path):
            self.call("mkdir", path)
        self.original["mkdir"](path, mode, dir_fd=dir_fd)

    def listdir(self, path="."):
        self._list(path)
        return self.original["listdir"](path)

    def scandir(self, path="."):
        self._list(path)
        return self.original["scandir"](path)

    def _list(self, path):
        if not isinstance(path, int) and self.is_below(path):  # a folder is opened to be read
            self.call("open", path)

    def moving(self, move):
        def moved(source, target, **options):
            if self.is_below(source) or self.is_below(target):
                self.call("rename", source)
            move(source, target, **options)

        return moved

    def open_file(self, file, *arguments, **options):
        opener = _pyio.open if self.is_below(file) else self.original_open
        return opener(file, *arguments, **options)


def faults_of(
    counts: Counter, codes: Sequence[int] = CODES, every: int = 1, all_codes: bool = False
) -> Iterator[Fault]:
    """Lists a fault for every call, or every so many, of each kind that was counted.

    Args:
      counts: kind -> calls, as `injected` gives them.
      codes: of the errors, in turn.
      every: of the calls of a kind to let fail.
      all_codes: True lists each call with each code.
    """
    turn = itertools.cycle(codes)
    for call in CALLS:
        for number in range(1, counts[call] + 1, every):
            chosen = codes if all_codes else [next(turn)]
            for code in chosen:
                yield Fault(call, number, code)


def try_faults(
    tmp_path: Path,
    prepare: Callable[[Path], None],
    act: Callable[[Path], Any],
    check: Callable[[Path, bool], None],
    **which,
) -> Tried:
    """Lets each call of an action fail, one at a time, and repeats what ended with an error.

    An error must be an OSError or a ValueError of one line that names a path.

    Args:
      tmp_path: where the folders are made.
      prepare: makes what is in the folder before the action.
      act: the action.
      check: asserts that nothing is lost; True when the action is through, False after its error.
      **which: see `faults_of`.
    """
    folder = tmp_path / "folder"  # the same one, since paths may be written into files

    def begin():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        prepare(folder)

    begin()
    with injected(folder) as counts:
        act(folder)
    check(folder, True)
    num_faults = num_ended = 0
    for fault in faults_of(counts, **which):
        begin()
        ended = None
        with injected(folder, fault) as seen:
            try:
                act(folder)
            except (OSError, ValueError) as error:
                ended = error
        assert seen[fault.call] >= fault.number, f"{fault} did not happen"
        try:
            if ended is not None:
                assert "\n" not in str(ended) and str(folder) in str(ended), str(ended)
            check(folder, ended is None)
            if ended is not None:
                with injected(folder):
                    act(folder)
                check(folder, True)
        except Exception as error:
            error.add_note(f"{fault} ({errno.errorcode[fault.code]}), then {ended!r}")
            raise
        num_faults += 1
        num_ended += ended is not None
    print(tried := Tried(num_faults, num_ended))  # pytest -s shows the counts
    return tried
