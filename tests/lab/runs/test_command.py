"""fedjax-ht: its commands, their help, what can be listed, and a run that is shown again."""

import os
import re
import shutil
import subprocess
import sys
from unittest import mock

import pytest

import fedjax_ht
from fedjax_ht.data.partition import PARTITIONS, PLANS
from fedjax_ht.lab.command import COMMANDS, _Printable
from fedjax_ht.lab.config.config_files import shipped
from fedjax_ht.lab.config.entries import only
from fedjax_ht.lab.generators import SHIPPED
from fedjax_ht.lab.readers import dataset_names
from fedjax_ht.lab.report.results import Aim
from fedjax_ht.lab.runs import list as listing
from fedjax_ht.lab.runs.report import report_run
from fedjax_ht.lab.runs.train import train_and_evaluate
from fedjax_ht.methods import METHODS
from fedjax_ht.models import GROUPS
from tests.forked import blank
from tests.lab.runs.folders import contents, edited
from tests.runs import ROOT, config_of, metrics


def test_help_version_and_unknown_names(run_script, run_module):
    done = run_script("--help")
    assert done.returncode == 0
    assert all(re.search(rf"^  {name} ", done.stdout, re.M) for name in COMMANDS)
    assert run_script().returncode == 2
    assert run_script("--version").stdout == f"{fedjax_ht.__version__}\n"
    done = run_script("comapre")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown command 'comapre'; did you mean 'compare'?")
    done = run_module("main", "--config=none")  # python -m experiments.main
    assert done.returncode == 2 and done.stderr.startswith("error: unknown config 'none'")


IMPORTS = """
import sys
from fedjax_ht.lab import command
sys.argv = ["fedjax-ht", "help"]
try: command.main()
except SystemExit: print("jax" in sys.modules)
import matplotlib
matplotlib.use("svg")
import fedjax_ht.lab.runs.run, fedjax_ht.lab.readers.download
print(matplotlib.get_backend(), "tensorflow_datasets" in sys.modules)
"""


def test_what_is_imported():
    """Help needs no jax, a run no tensorflow-datasets, and matplotlib's backend stays."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["False", "svg False"]


WITHOUT_A_READER = """
import os, runpy, sys
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
sys.argv = ["fedjax-ht", "list", "fields"]
runpy.run_module("fedjax_ht", run_name="__main__")
"""


def test_a_reader_that_has_seen_enough_is_no_error(forks):
    """As in `fedjax-ht list fields | head -1`."""
    done = forks[0].run("-c", WITHOUT_A_READER)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("opened", [os.pipe, os.openpty])
def test_text_without_a_reader_is_dropped(opened):
    """As in `fedjax-ht run 2>&1 | tee log` once tee has ended, or in a terminal that was closed."""
    reading, writing = opened()
    os.close(reading)
    with open(writing, "w", buffering=1) as stream:
        for line in ("first", "second"):
            print(line, file=_Printable(stream, str), flush=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_tells_of_its_flags(run_script, name):
    done = run_script(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"fedjax-ht {name}: {COMMANDS[name].about}")
    flags = set(re.findall(r"^  --(\w+): \S", done.stdout, re.M))
    required = {
        "run": {"config", "workdir"},
        "compare": {"config", "methods"},
        "sweep": {"entry"},
        "data": {"data_dir"},
    }
    assert required.get(name, set()) <= flags
    assert ("workdir" in flags) == (name not in ("data", "list"))


# What there is


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("methods", METHODS),
        ("groups", GROUPS),
        ("partitions", PLANS | PARTITIONS),
        ("datasets", dataset_names()),
        ("configs", shipped()),
        ("generators", SHIPPED),
    ],
)
def test_everything_is_listed_with_a_line(kind, names):
    listed = listing.KINDS[kind]()
    assert set(listed) == set(names)
    assert all(
        10 < len(entry.about) < 250 or (kind == "groups" and entry.about)
        for entry in listed.values()
    ), listed
    assert all(name in listing.listed([kind], 100) for name in names)


# A run that is shown again

FASTER = "local:training.learning_rate=0.05"  # by the program of "local"


@pytest.fixture(scope="module")
def run(tiny_config, tmp_path_factory):
    config, folder = only(config_of(tiny_config), [FASTER, "local"]), tmp_path_factory.mktemp("run")
    config.rounds = 1
    with mock.patch("fedjax_ht.lab.report.plots.rendered", blank):
        train_and_evaluate(config, folder, lambda *_: None, stage=lambda line: None)
    return folder


def test_a_run_is_shown_again(run, tmp_path, blank_pictures):
    copied = shutil.copytree(run, tmp_path / "run")
    before = contents(copied)
    for gone in ("report.html", "summary.md"):
        (copied / gone).unlink()
    shutil.rmtree(copied / "plots")
    text, written = report_run(copied)
    assert f"| {FASTER} |" in text and "| local |" in text and "Target" not in text
    assert copied / "report.html" in written and all(path.exists() for path in written)
    assert contents(copied) == before


def test_a_comparison_is_shown_again_with_its_target(tiny_config, tmp_path, blank_pictures):
    config = only(config_of(tiny_config), ["local", FASTER])
    config.rounds, config.trials, config.report.maps = 2, 2, "none"
    result = train_and_evaluate(config, tmp_path, stage=lambda line: None, aim=Aim(share=0.5))
    before = contents(tmp_path)
    text, _ = report_run(tmp_path)
    assert text == result.summary and "(0.5 of " in text and contents(tmp_path) == before
    assert "Target: " in (tmp_path / "report.html").read_text()
    config = only(config, [FASTER])  # another run in the same folder
    train_and_evaluate(config, tmp_path, stage=lambda line: None)
    text, _ = report_run(tmp_path)
    assert "| local |" not in text and "Target" not in text
    (tmp_path / "report.json").unlink()  # as in a folder of an earlier version
    assert "| local |" in report_run(tmp_path)[0]


def test_rows_of_a_run_that_was_killed_while_writing(run, tmp_path, blank_pictures):
    copied = shutil.copytree(run, tmp_path / "run")
    rows = metrics(copied, FASTER)
    file = copied / FASTER / "metrics.jsonl"
    file.write_text(file.read_text() + '{"round": 9, "tr')
    shutil.rmtree(copied / "local")
    table, _ = report_run(copied)
    assert "| local |" not in table and len(rows) == 2
    assert table.startswith("No comparison: local has no evaluation yet.\n")
    file.write_text('{"round"\n' + file.read_text())
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1 is not readable as JSON"):
        report_run(copied)
    (copied / "report.json").write_text('{"labels": ["fd"], "aim": null, "command": ""}')
    with pytest.raises(ValueError, match=r"report\.json names the entry 'fd', which the run"):
        report_run(copied)


def test_trials_are_shown_up_to_their_last_common_round(run, tmp_path, blank_pictures):
    """A run that is killed between two lines of its rows leaves such files."""
    copied = shutil.copytree(run, tmp_path / "run")
    with edited(copied / "config.json") as content:
        content["trials"] = 2
    for label in (FASTER, "local"):
        file = copied / label / "metrics.jsonl"
        text = file.read_text()
        file.write_text(text + text.splitlines()[0].replace('"trial": 0', '"trial": 1') + "\n")
    text, _ = report_run(copied)
    assert f"{FASTER} has 0 of 1 rounds" in text


def test_no_run_and_no_rows(run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run in .*: config\.json is missing"):
        report_run(tmp_path)
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    with pytest.raises(ValueError, match="has no evaluation yet"):
        report_run(tmp_path)
