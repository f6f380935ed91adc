"""A call of the system that fails while files are written leaves those of before or the new ones,
and the same call again writes what it would have written."""

import os
from pathlib import Path

import pytest

from fedjax_ht.lab.checkpoints.writers import write_runs
from fedjax_ht.lab.files import atomic_open
from tests.faults import CALLS, CODES, injected, try_faults

HISTORY = [
    {"round": 0, "trial": 0, "accuracy": 0.25, "clients": [0.5, None]},
    {"round": 1, "trial": 0, "loss": 2.0, "accuracy": 0.25, "clients": [0.5, None]},
    {"round": 2, "trial": 0, "loss": 1.0, "accuracy": 0.5, "clients": [1.0, 0.5]},
]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_fault_in_a_file_that_is_replaced(tmp_path):
    def prepare(folder):
        (folder / "below").mkdir()
        (folder / "below/file.txt").write_text("old")

    def write(folder):
        with atomic_open(folder / "below/file.txt") as file:
            file.write("new")

    def check(folder, is_through):
        texts = contents(folder / "below")
        assert texts in ([{"file.txt": b"new"}] if is_through else [{"file.txt": b"old"}])

    with injected(tmp_path) as counts:
        write(tmp_path)
    assert set(counts) == set(CALLS)
    tried = try_faults(tmp_path, prepare, write, check, all_codes=True)
    assert tried.faults > 5 * len(CODES), tried


def test_what_is_replaced_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order, fsync, replace = [], os.fsync, os.replace

    def noted_fsync(handle):
        order.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def noted_replace(source, target):
        order.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    with atomic_open(tmp_path / "file.txt") as file:
        file.write("new")
    assert order[0].startswith(".file.txt.") and order[1:] == ["replace", tmp_path.name]


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_fault_while_rows_are_written(tmp_path, rows, goes_on):
    """Round 1 brings a column, and round 2 is appended."""
    write_runs([HISTORY[:rows]], tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    written = rows - 1 if goes_on else 0

    def prepare(folder):
        if rows > 1:
            write_runs([HISTORY[: rows - 1]], folder)

    def write(folder):
        assert write_runs([HISTORY[:rows]], folder, written) == rows

    def check(folder, is_through):
        if is_through:
            assert contents(folder) == whole
        for content in contents(folder).values():
            assert content.endswith(b"\n")

    assert try_faults(tmp_path, prepare, write, check, all_codes=True).faults > 5 * len(CODES)
