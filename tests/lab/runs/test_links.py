"""A run's folder may come from anybody: nothing is written, nor read, through links below it."""

import ast
import os
import shutil

import pytest

from fedjax_ht.lab.config.entries import recorded
from fedjax_ht.lab.files import plain_open
from fedjax_ht.lab.runs.evaluate import load_run
from fedjax_ht.lab.runs.folder import locked
from fedjax_ht.lab.runs.report import report_run
from fedjax_ht.lab.runs.train import train_and_evaluate
from tests.docs.test_architecture import LIBRARY
from tests.lab.runs.folders import STORED, refused
from tests.runs import config_of

COPY = "my only copy"


@pytest.fixture
def foreign(tmp_path):
    """Returns the folder of a run that somebody sent, and a file of the user's outside of it."""
    shutil.unpack_archive(STORED / "version_3.zip", tmp_path / "run")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "accuracy.png").write_text(COPY)
    return tmp_path / "run", tmp_path / "home" / "accuracy.png"


LINKS = {
    ".lock": "accuracy.png",
    "summary.md": "accuracy.png",
    "plots": "",
    "fedtgp/images": "",
    "fedtgp/metrics.jsonl": "accuracy.png",
    "fedtgp/checkpoints/2/seal.json": "accuracy.png",
    "fedtgp/features.npz": "accuracy.png",
    "fedtgp": "",
}


@pytest.mark.parametrize("link", LINKS)
def test_a_link_below_a_runs_folder_is_refused_and_its_target_stays(foreign, link):
    """Every command that opens the folder: the first line names the link and the remedy."""
    run, victim = foreign
    path = run / link
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(victim.parent / LINKS[link])
    config = config_of(STORED / "config.py")
    config.dataset.data_dir = str(STORED)
    calls = (report_run, load_run, lambda folder: train_and_evaluate(config, folder))
    for call in calls:
        with refused(r"is a symbolic link to .*; remove it, or") as error:
            call(run)
        assert str(path) in str(error.value)
    assert victim.read_text() == COPY and os.listdir(victim.parent) == [victim.name]


def test_a_pipe_is_not_waited_for(foreign):
    run, _ = foreign
    (run / "config.json").unlink()
    os.mkfifo(run / "config.json")
    for call in (report_run, load_run):
        with pytest.raises(ValueError, match=r"config\.json is neither a file nor a folder"):
            call(run)


def test_the_folder_itself_may_be_a_link(foreign, tmp_path):
    run, _ = foreign
    (tmp_path / "link").symlink_to(run)
    with locked(tmp_path / "link", print) as writable:
        assert writable and (run / ".lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_lock_with_another_name_is_held_and_not_written(foreign):
    """The other name may be a file of the user's, or a copy of the folder made of hard links."""
    run, victim = foreign
    os.link(victim, run / ".lock")
    with locked(run, print), pytest.raises(ValueError, match="is in use by"), locked(run, print):
        pass
    assert victim.read_text() == COPY


@pytest.mark.parametrize("mode", ["x", "a", "a+"])
def test_a_file_is_never_opened_for_writing_through_a_link(foreign, mode):
    run, victim = foreign
    (run / "link").symlink_to(victim)
    (run / "dangling").symlink_to(victim.parent / "new")
    os.mkfifo(run / "pipe")
    for name in ("link", "dangling", "pipe"):
        with pytest.raises((OSError, ValueError)):
            plain_open(run / name, mode).close()
    assert victim.read_text() == COPY and os.listdir(victim.parent) == [victim.name]


@pytest.mark.parametrize("label", ["", ".", "..", "\x1b[2J"])
def test_an_entry_has_a_folder_of_its_own(label):
    entry = {"method": "local", "options": {}, "training": {}, "model": {}, "tuned": ""}
    assert recorded(entry | {"label": "/"}).folder == "_"
    with pytest.raises(ValueError, match="cannot be a folder's name"):
        recorded(entry | {"label": label})


def opens_for_writing(node: ast.AST) -> bool:
    """Returns whether a call opens a file for writing by itself."""
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in ("write_text", "write_bytes", "mkstemp", "fdopen"):
        return True
    modes = [word.value for word in node.args if isinstance(word, ast.Constant)]
    modes += [word.value.value for word in node.keywords if word.arg == "mode"]
    return name == "open" and any(set(str(mode)) & set("wax+") for mode in modes)


def test_the_packages_that_write_in_a_runs_folder_open_no_file_themselves():
    """They use lab/files.py, which follows no link."""
    for package in ("simulation", "lab/checkpoints", "lab/report", "lab/runs"):
        paths = list((LIBRARY / package).rglob("*.py"))
        assert paths
        for path in paths:
            calls = filter(opens_for_writing, ast.walk(ast.parse(path.read_text())))
            assert not [f"{path}, line {call.lineno}" for call in calls]
