"""Files are whole or absent; history files hold every row once."""

import csv
import doctest
import io
import json
import os
from pathlib import Path

import pytest

from fedjax_ht.lab import files
from fedjax_ht.lab.checkpoints.writers import FILES, read_runs, write_runs
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.document import Table
from tests.faults import CALLS, CODES, injected, try_faults


def test_atomic_open_replaces_only_when_the_block_succeeds(tmp_path):
    path = tmp_path / "a" / "file.txt"
    with atomic_open(path) as file:
        file.write("old")
    with pytest.raises(RuntimeError), atomic_open(path) as file:
        file.write("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


HISTORY = [
    {"round": 0, "trial": 0, "accuracy": 0.25, "clients": [0.5, None]},
    {"round": 1, "trial": 0, "loss": 2.0, "accuracy": 0.25, "clients": [0.5, None]},
    {"round": 2, "trial": 0, "loss": 1.0, "accuracy": 0.5, "clients": [1.0, 0.5]},
]


def test_write_runs_rewrites_all_rows(tmp_path):
    """A second score of the clients has single numbers in the table."""
    history = [
        {"round": 0, "trial": 0, "accuracy": 0.25, "clients": [0.5, None]},
        {"round": 1, "trial": 0, "loss": 2.0, "not_finite": [3, 4]},
        {"round": 2, "trial": 0, "accuracy": 0.5, "clients": [1.0, None], "not_finite": []},
    ]
    history[2] |= {"trained_accuracy": 0.75, "trained_clients": [0.75, None]}
    history[2]["trained_class_accuracy"] = [0.75]
    for _ in range(2):
        write_runs([history], tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [r["round"] for r in rows] == ["0", "1", "2"]
    assert list(rows[1].values()) == ["1", "0", "", "2.0", "3 4", ""]
    columns = ["round", "trial", "accuracy", "loss", "not_finite", "trained_accuracy"]
    assert list(rows[1]) == columns
    clients = list(csv.reader((tmp_path / "clients.csv").open()))
    head = ["round", "trial", "client_0", "client_1"]
    assert clients == [head, ["0", "0", "0.5", ""], ["2", "0", "1.0", ""]]


def test_only_new_rows_are_appended_until_one_brings_a_new_column(tmp_path):
    history = [*HISTORY[:2], {"round": 2, "trial": 0, "loss": 1.5}, HISTORY[2] | {"round": 3}]
    names, whole = FILES, tmp_path / "whole"
    written, kept = 0, []
    for rows in range(1, 5):
        written = write_runs([history[:rows]], tmp_path / "piecewise", written)
        kept.append([(tmp_path / "piecewise" / name).stat().st_ino for name in names])
    write_runs([history], whole)
    expected = [(tmp_path / "piecewise" / n).read_bytes() for n in names]
    assert [(whole / n).read_bytes() for n in names] == expected
    assert kept[0] != kept[1] == kept[2] == kept[3]  # round 1 brings the loss


def test_rows_of_several_runs_stand_round_by_round(tmp_path):
    runs = [[{"round": n, "trial": t, "loss": n + t / 2} for n in (0, 1)] for t in (0, 1)]
    write_runs(runs, tmp_path)
    assert read_runs(tmp_path) == runs
    with (tmp_path / "metrics.csv").open() as file:
        rows = [(row["round"], row["trial"]) for row in csv.DictReader(file)]
    assert rows == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert read_runs(tmp_path / "absent") == []
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "tr')  # cut off
    assert read_runs(tmp_path) == runs


@pytest.mark.parametrize("name", ["=1+1", "+1-1", "-1+1", "@SUM(A1)", "\t=1+1", "\r=1", "\n=1"])
def test_a_formula_in_a_csv_is_text(tmp_path, name):
    """Names of metrics and entries may be others'; numbers stay numbers."""
    history = [{"round": 0, "trial": 0, name: -0.5, "note": name, "low": "-inf", "none": "-"}]
    for _ in range(2):  # the second time rows are appended
        write_runs([history], tmp_path, written=0)
    head, cells = csv.reader((tmp_path / "metrics.csv").open(newline=""))
    assert head == ["round", "trial", f"'{name}", "note", "low", "none"]
    assert cells == ["0", "0", "-0.5", f"'{name}", "-inf", "-"]
    table = Table(["entry", "best"], [[name, "-0.5"]])
    assert list(csv.reader(io.StringIO(table.csv(), newline="")))[1] == [f"'{name}", "-0.5"]


def test_the_example_of_a_csv_runs():
    assert doctest.testmod(files).failed == 0


def test_clients_have_a_line_for_each_class_of_their_test_samples(tmp_path):
    early = {"round": 0, "trial": 0, "clients": [0.5, None], "client_ids": [3, 70]}
    late = early | {"round": 1, "class_accuracy": [0.5, 1.0]}
    late["client_class_counts"] = [{"0": [2, 0], "1": [4, 3]}, {}]
    written = write_runs([[early]], tmp_path)  # of a version that counted nothing by class
    for rows in ([early, late], [early, late, late | {"round": 2}]):
        written = write_runs([rows], tmp_path, written)
    assert (tmp_path / "classes.csv").read_text().split() == [
        "round,trial,client,class,samples,correct",
        *("1,0,3,0,2,0", "1,0,3,1,4,3"),
        *("2,0,3,0,2,0", "2,0,3,1,4,3"),
    ]
    assert (tmp_path / "clients.csv").read_text().split()[0] == "round,trial,client_3,client_70"
    write_runs([[late | {"auc_undefined": 1, "auc": 0.75, "client_auc": [0.75, None]}]], tmp_path)
    first, second = csv.reader((tmp_path / "clients.csv").open())
    assert first[-2:] == ["client_3_auc", "client_70_auc"] and second[-2:] == ["0.75", ""]
    columns = list(csv.reader((tmp_path / "metrics.csv").open()))
    assert columns == [["round", "trial", "auc_undefined", "auc"], ["1", "0", "1", "0.75"]]
    write_runs([[late]], tmp_path)
    assert next(csv.reader((tmp_path / "metrics.csv").open())) == ["round", "trial"]


def test_a_name_that_is_not_utf_8_can_be_written(tmp_path):
    with atomic_open(tmp_path / "page.html") as file:
        file.write("k\udce4fer, käfer")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "k\\udce4fer, käfer"


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
