"""A run's folder is data from anybody: what is wrong in it is one line with the file's name."""

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.check.names import printable
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.lab.report.compared import read_page
from fedjax_ht.lab.report.maps import load_map
from fedjax_ht.lab.runs.devices import read_rows
from fedjax_ht.lab.runs.folder import read_json, read_run
from fedjax_ht.lab.runs.merge import merge
from fedjax_ht.lab.runs.own_methods import read_experiment
from fedjax_ht.lab.runs.report import report_run
from tests.lab.runs.folders import STORED, edited, refused


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of a few rounds, in the current folder with its data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.npz").write_bytes((STORED / "data.npz").read_bytes())
    zipfile.ZipFile(STORED / "version_3.zip").extractall("run")
    return Path("run")


ROWS = {
    "a list": "[1]",
    "no object": "null",
    "no trial": "{}",
    "trial": {"trial": "x"},
    "round": {"round": -1},
    "rounds": {"round": 10**18},
    "participants": {"participants": 1.5},
    "text": {"accuracy": "<b>"},
    "huge": {"loss": 10**400},
    "list": {"accuracy": [1]},
    "mapping": {"clients": {"a": 1}},
    "ids": {"client_ids": ["\x1b[2J"]},
    "other clients": {"client_ids": [0], "clients": [0.5, 0.5]},
    "outliers": {"far_off": [[0, 1, 2]]},
    "score": {"score": ["rmse"], "better": "lower"},
    "score alone": {"score": "rmse"},
    "end": {"score": "rmse", "better": "up"},
    "another task": {"score": "rmse", "better": "lower", "rmse": 1.5},
    "classes": {"client_class_counts": [{"x": [1, 2]}]},
    "trained": {"trained_clients": ["x"]},
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
def test_a_row_of_other_types_is_named_with_its_line(run, change):
    path = run / "fedtgp" / "metrics.jsonl"
    first, *others = path.read_text().splitlines()
    line = change if isinstance(change, str) else json.dumps(json.loads(first) | change)
    path.write_text("\n".join([first, line, *others]))
    with refused(r"metrics\.jsonl, line 2 is ") as error:
        read_runs(run / "fedtgp")
    assert "\x1b" not in str(error.value)


def test_rows_that_runs_write_are_read(run):
    path = run / "fedtgp" / "metrics.jsonl"
    (rows,) = read_runs(run / "fedtgp")
    odd = rows[-1] | {"loss": float("nan"), "far_off": [[1, 40.5]], "clients": [None, 0.5, 1]}
    with path.open("a") as file:
        file.write(json.dumps(odd | {"trained_clients": [0.5, None, 1], "mine": 3}) + '\n{"trial')
    (read,) = read_runs(run / "fedtgp")
    assert read[:-1] == rows and read[-1]["mine"] == 3


PAGE = {"labels": ["fedtgp"], "aim": None, "command": ""}
PAGES = [
    {},
    PAGE | {"command": 5},
    PAGE | {"labels": 5},
    PAGE | {"labels": ["fedtgp", "fedtgp"]},
    PAGE | {"labels": [["fedtgp"]]},
    PAGE | {"aim": {"score": 1, "target": None, "share": None}},
    PAGE | {"aim": {"score": "accuracy", "target": 1e300, "share": None}},
]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_other_types_is_refused(run, page):
    (run / "report.json").write_text(json.dumps(page))
    with pytest.raises(ValueError, match=r"run/report\.json"):
        read_page(run)


def test_files_that_never_end_or_are_too_long_are_refused(run):
    os.mkfifo(run / "pipe")
    with (run / "config.json").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="bytes, more than"):
        read_json(run / "config.json")
    for path in (run / "pipe", "/dev/zero"):
        with pytest.raises(ValueError, match="is not a regular file"):
            read_json(Path(path))
        with pytest.raises(ValueError, match=r"devices\.csv: .* is not a regular file"):
            read_rows("devices.csv", str(path), ("client",))


def test_arrays_of_other_forms_are_no_map(run):
    path = run / "fedtgp" / "features.npz"
    stored = dict(np.load(path))
    assert load_map(path.parent) is not None
    changes = {
        "labels": stored["labels"] + 1000,
        "clients": np.zeros(10**6, np.int32),
        "features_0": stored["features_0"].astype("U"),
        "trains_on": stored["trains_on"][:1],
        "prototypes": np.zeros((0, 0)),
        "round": np.zeros(2),
    }
    for name, value in changes.items():
        np.savez(path, **stored | {name: value})
        assert load_map(path.parent) is None, name
    np.savez_compressed(path, **stored | {"labels": np.zeros(1 << 27, np.int32)})
    assert load_map(path.parent) is None


def test_a_seal_names_files_of_its_own_folder(tmp_path):
    (tmp_path / "private").write_text("x")
    folder = tmp_path / "3"
    sealed.temporary(folder).mkdir()
    sealed.place(folder)
    for name in ("../private", str(tmp_path / "private")):
        files = {name: sealed.sha256_of(tmp_path / "private")}
        seal = {"sha256": sealed._sha256_of(files), "files": files}
        (folder / "seal.json").write_text(json.dumps(seal))
        with pytest.raises(ValueError, match=r"seal\.json has changed"):
            sealed.check(folder)


CONFIGS = {
    "entries has 5,000 entries": lambda c: c.update(entries=c["entries"] * 5000),
    "trials has 1,000,000 trials": lambda c: c.update(trials=10**6),
    "num_clients has 2,000,000 clients": lambda c: c["partition"].update(num_clients=2 * 10**6),
    "no checksum for npz:data.npz; .* --trust": lambda c: c["run"].pop("data"),
    "no checksum for csv:mine.csv; .* --trust": lambda c: (
        c["run"].pop("data"),
        c["dataset"].update(name="fashion_mnist_10k", public="csv:mine.csv"),
    ),
    "no checksum for resnet4:x.npz; .* --trust": lambda c: (
        c["run"].pop("data"),
        c["dataset"].update(name="fashion_mnist_10k", backbone="resnet4:x.npz"),
    ),
    "no checksum for data.npz; .*": lambda c: c["model"].update(weights="data.npz"),
    "no checksum for data.npz": lambda c: c["devices_profile"].update(csv="data.npz"),
    r"run\.weights is \[\]": lambda c: c["run"].update(weights=[]),
}


@pytest.mark.parametrize("line", CONFIGS)
def test_a_config_json_that_asks_for_too_much_is_refused(run, line):
    assert read_run(run).config.trials
    with edited(run / "config.json") as content:
        CONFIGS[line](content)
    with pytest.raises(ValueError, match=line):
        read_run(run)


def test_weights_are_those_of_the_run(run, monkeypatch):
    """A sum that somebody wrote stands for no other file."""
    planned = read_run(run)
    planned.config.model.weights = "data.npz"
    monkeypatch.setattr("fedjax_ht.lab.runs.folder.plan", lambda *_, **__: planned)
    with edited(run / "config.json") as content:
        content["model"]["weights"] = "data.npz"
        content["run"]["weights"] = {"data.npz": "0" * 64}
    with pytest.raises(ValueError, match=r"files\.data\.npz 000000000000 instead of \w{12}"):
        read_experiment(run, trust=False, experiment=None)


@pytest.mark.parametrize("entry", ["evil:f", 5, {}, {"label": ".."}, {"label": "\x1b[2J"}])
def test_entries_of_folders_to_merge_are_checked(run, entry):
    with edited(run / "config.json") as content:
        content["entries"] = [entry]
    with pytest.raises(ValueError, match=r"run/config\.json"):
        merge([run, run], Path("merged"))
    assert not Path("merged").exists()


def test_the_summary_does_not_steer_the_terminal(run, blank_pictures):
    with edited(run / "config.json") as content:
        content["entries"][0]["tuned"] = "9 settings\x1b[2J"
    report_run(run)
    summary = (run / "summary.md").read_text()
    assert r"9 settings\x1b[2J" in summary and "\x1b" not in summary


def test_what_is_printed_does_not_steer_the_terminal():
    text = "a\x1b]0;x\x07\x9b2J\u202eb\n\tc\r\x1b[Ad é 中"
    assert printable(text) == r"a\x1b]0;x\x07\x9b2J\u202eb" + "\n\tc\r\x1b[Ad é 中"
