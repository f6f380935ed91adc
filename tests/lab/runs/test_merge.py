"""Runs of single entries become one run, or are refused in one line."""

import errno
import json
import shutil

import pytest

from experiments.run_folders import trial_scores
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.entries import entries_of
from fedjax_ht.lab.configs import quickstart_fedtgp
from fedjax_ht.lab.report.compared import Page, read_page, write_page
from fedjax_ht.lab.report.results import Aim
from fedjax_ht.lab.runs.compare import comparison, share_of
from fedjax_ht.lab.runs.folder import read_folder
from fedjax_ht.lab.runs.merge import merge
from tests.experiments.folders import history, write_run
from tests.lab.runs.folders import edited, refused
from tests.runs import config_of


def part(path, *entries, version=3, data="a", notes=None, rounds=1, **fields):
    """A run's folder, with checkpoints, noted lanes and a page."""
    write_run(path, {entry: history(0.1, 0.2) for entry in entries}, rounds=rounds, **fields)
    with edited(path / "config.json") as content:
        content["run"] = {"version": version, "data": data, "split": "b", **(notes or {})}
    for entry in entries:
        (path / entry.replace("/", "_") / "checkpoints").mkdir()
    (path / "lanes.json").write_text(json.dumps({"cnn1": 2, path.name: 3}))
    write_page(Page(entries, Aim("accuracy", 0.5, None), f"command of {path.name}"), path)
    return path


def test_entries_of_several_folders_are_one_run(tmp_path):
    parts = [part(tmp_path / "a", "local", "fedtgp"), part(tmp_path / "b", "fedproto")]
    for path, name in zip(parts, ("local", "fedproto")):
        (path / "search" / name).mkdir(parents=True)
        (path / "search" / name / "search.json").write_text("{}")
    whole = tmp_path / "whole"
    assert merge(parts, whole) == ["local", "fedtgp", "fedproto"]
    folder = read_folder(whole)
    assert list(folder.entries) == ["local", "fedtgp", "fedproto"]
    assert [score.score for score in trial_scores(folder, "fedproto", "accuracy", "last")] == [0.2]
    assert (whole / "fedproto" / "checkpoints").is_dir()
    for name in ("local", "fedproto"):
        assert (whole / "search" / name / "search.json").exists()
    assert json.loads((whole / "lanes.json").read_text()) == {"cnn1": 2, "a": 3, "b": 3}
    page = read_page(whole)
    assert page.labels == ("local", "fedtgp", "fedproto") and page.aim.target == 0.5
    assert page.command == "command of a\ncommand of b"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "whole"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "not parts of one run: seed is 0 there and 1 here"),
        ({"rounds": 2}, "rounds is 1 there and 2 here"),
        ({"partition__seed": 7}, "partition.seed is 1 there and 7 here"),
        ({"data": "c"}, "the run's data is 'a' there and 'c' here"),
        ({"version": 2}, "has version 2, but this program reads 3"),
    ],
)
def test_unlike_runs_are_refused(tmp_path, other, message):
    first, second = part(tmp_path / "a", "local"), part(tmp_path / "b", "fedtgp", **other)
    with pytest.raises(ValueError, match=message):
        merge([first, second], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_what_changes_no_number_may_differ_and_equal_data_may_lie_elsewhere(tmp_path):
    first = part(tmp_path / "a", "local", dataset__name="npz:/here/my.npz", devices=2)
    elsewhere = {"dataset__name": "npz:/there/mine.npz", "dataset__data_dir": "/elsewhere"}
    second = part(tmp_path / "b", "fedtgp", **elsewhere)
    assert merge([first, second], tmp_path / "whole") == ["local", "fedtgp"]
    third = part(tmp_path / "c", "fedproto", dataset__name="csv:/there/mine.npz")
    with pytest.raises(ValueError, match=r"dataset\.name is 'npz' there and 'csv' here"):
        merge([first, third], tmp_path / "other")


def test_own_files_of_a_part_are_those_of_its_entries(tmp_path):
    """A part without an own method or weights knows none; two that have one must have the same."""
    noted = {"own_methods": {"mine": "sum of mine.py"}}
    first = part(tmp_path / "a", "local")
    second = part(tmp_path / "b", "fedtgp", notes=noted)
    third = part(tmp_path / "c", "fedproto", notes={"weights": {"cnn1": "1"}} | noted)
    merge([first, second, third], tmp_path / "whole")
    whole = json.loads((tmp_path / "whole" / "config.json").read_text())["run"]
    assert whole["own_methods"] == noted["own_methods"] and whole["weights"] == {"cnn1": "1"}
    changed = {"own_methods": {"mine": "another sum"}}
    other = part(tmp_path / "d", "fd", notes=changed)
    with pytest.raises(ValueError, match=r"d is not part of .* its mine \(own_methods\) was"):
        merge([first, second, other], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_one_folder_an_entry_twice_and_a_folder_that_is_there_are_refused(tmp_path):
    first, second = part(tmp_path / "a", "local"), part(tmp_path / "b", "fedtgp", "local")
    with pytest.raises(ValueError, match="two or more folders"):
        merge([first], tmp_path / "c")
    with pytest.raises(ValueError, match=r"local is in .*a and in .*b; remove one"):
        merge([first, second], tmp_path / "c")
    with pytest.raises(ValueError, match="a already exists; choose another --workdir"):
        merge([second, first], first)
    with pytest.raises(FileNotFoundError, match=r"no run in .*d: config.json is missing"):
        merge([first, tmp_path / "d"], tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    parts = [part(tmp_path / "a", "local"), part(tmp_path / "b", "fedtgp")]

    def full(source, target, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    message = r"a/local cannot be copied: \[Errno 28\] No space left on device$"
    with refused(message, OSError):
        merge(parts, tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_share_of_the_entries(tiny_config):
    config = comparison(
        typed_config(config_of(tiny_config)), ["local", "fedtgp", "fedproto", "fedssa", "fd"], None
    )
    shares = [share_of(config, f"{number}/3").entries for number in (1, 2, 3)]
    assert shares == [("local", "fedssa"), ("fedtgp", "fd"), ("fedproto",)]
    assert share_of(config, None) is config
    for text in ("0/3", "4/3", "1", "a/b", "1/0", "²/3"):
        with pytest.raises(ValueError, match=f"--entries is '{text}'; it must be a share"):
            share_of(config, text)
    with pytest.raises(ValueError, match="there are only 5 entries"):
        share_of(config, "6/6")


def test_a_share_has_the_settings_of_the_configs_method():
    config = quickstart_fedtgp.get_config()
    (entry,) = entries_of(share_of(config, "1/2"))
    assert entry == entries_of(config)[0] and entry.options["tau"] == 3.0
