"""What a server learns of a run: the command, its files and its refusals."""

import csv

import pytest

from experiments.attack import NOT_NEEDED, OTHER, OWN, Row, add, markdown, read

ROWS = [
    Row(1, "fedavg", "dlg", 0, 1, 0.0, 0.0, NOT_NEEDED, 50, 30.0, 0.9),
    Row(1, "fedavg", "dlg", 1, 1, 0.0, 0.0, NOT_NEEDED, 50, 20.0, 0.7),
    Row(1, "fedavg", "geiping", 0, 1, 0.3, 0.05, NOT_NEEDED, 50, 6.0, 0.02),
    Row(1, "fedproto", "dlg", 0, 1, 0.0, 0.0, OWN, 5, 11.0, 0.125),
    Row(1, "fedproto", "dlg", 0, 1, 0.0, 0.0, OTHER, 5, 5.0, 0.0),
    Row(20, "local", "membership", 0, auc=0.75),
    Row(20, "local", "membership", 1, auc=0.5),
]


def test_a_file_holds_what_was_added(tmp_path):
    add(ROWS[:3], tmp_path / "a.csv")
    add(ROWS[3:], tmp_path / "a.csv")
    assert read(tmp_path / "a.csv") == ROWS


def test_the_table_has_means_over_clients():
    assert markdown(ROWS).splitlines() == [
        "| round | method | images | numbers sent | the client's model | noise | dlg | geiping, tv 0.3 |",
        "|---|---|---|---|---|---|---|---|",
        "| 1 | fedavg | 1 | 50 | is sent | 0 | 25.0 / 0.80 |  |",
        "| 1 | fedavg | 1 | 50 | is sent | 0.05 |  | 6.0 / 0.02 |",
        "| 1 | fedproto | 1 | 5 | is known | 0 | 11.0 / 0.12 |  |",
        "| 1 | fedproto | 1 | 5 | is guessed | 0 | 5.0 / 0.00 |  |",
        "",
        "| round | method | AUC, mean over clients | least | most |",
        "|---|---|---|---|---|",
        "| 20 | local | 0.625 | 0.500 | 0.750 |",
    ]


def test_another_file_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match=r"a.csv has the columns \['x', 'y'\]; expected round, method"):
        read(tmp_path / "a.csv")


def refused(run_module, *arguments):
    done = run_module("attack", *arguments)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


def test_bad_input_is_one_line(run_module, tmp_path):
    run = f"--workdir={tmp_path / 'none'}"
    assert "give --workdir and --attack, or --csv alone" in refused(run_module, run)
    assert "'dgl'" in refused(run_module, run, "--attack=dgl") and "dlg" in refused(run_module, run, "--attack=dgl")
    assert "--batch is 0; it must be from 1 to 16" in refused(run_module, run, "--attack=dlg", "--batch=0")
    assert "--noise is 'much'; it must be numbers of at least 0" in refused(
        run_module, run, "--attack=dlg", "--noise=much"
    )
    assert "--tv is '0.1,-1'; it must be numbers of at least 0" in refused(
        run_module, run, "--attack=dlg", "--tv=0.1,-1"
    )
    assert "no run in" in refused(run_module, run, "--attack=dlg")


@pytest.mark.slow
def test_a_run_is_attacked(run_module, tiny_config, tmp_path):
    run = f"--workdir={tmp_path / 'run'}"
    done = run_module("main", f"--config={tiny_config}:runlocal", run)
    assert done.returncode == 0, done.stderr
    done = run_module("attack", run, "--attack=membership", f"--csv={tmp_path / 'a.csv'}")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "a.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert {(row["method"], row["round"]) for row in found} == {("fedtgp", "1"), ("local", "1")}
    assert all(0 <= float(row["auc"]) <= 1 for row in found)
    assert "images are 6x6; SSIM needs at least 11x11" in refused(run_module, run, "--attack=dlg", "--method=fedtgp")
    assert "no method 'fedavg'" in refused(run_module, run, "--attack=dlg", "--method=fedavg")
