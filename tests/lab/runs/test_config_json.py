"""A run's config.json is checked, and imports code only where it is trusted."""

import json
import sys

import pytest

from fedjax_ht.lab.config.base import base_config, typed_config
from fedjax_ht.lab.config.typed import to_json
from fedjax_ht.lab.runs import evaluate, report
from fedjax_ht.lab.runs.folder import VERSION, run_folder


def folder_with(tmp_path, **changes):
    """A folder whose config.json is that of a run but for some fields; None takes a field out."""
    entry = {
        "label": "local",
        "method": "local",
        "options": {},
        "training": {},
        "model": {},
        "tuned": "",
    }
    run = {"version": VERSION}
    fields = to_json(base_config()) | {"entries": [entry], "run": run} | changes
    (tmp_path / "config.json").write_text(
        json.dumps({k: v for k, v in fields.items() if v is not None})
    )
    return tmp_path


ENTRY = {"label": "a", "method": "fedprto", "options": {}, "training": {}, "model": {}, "tuned": ""}
BROKEN = {
    "unknown method 'fedprto'; did you mean 'fedproto'? The methods": {"entries": [ENTRY]},
    "is not what a run writes (KeyError: 'label')": {"entries": [{"method": "local"}]},
    "entries is 3; it must be a tuple, each text, an Entry(...) or a dict, name": {"entries": 3},
    "is not what a run writes (TypeError": {"entries": [ENTRY | {"method": "local", "options": 3}]},
    "is not what a run writes (AttributeError: 'int'": {"run": 3},
    "is not what a run writes (AttributeError": {"partition": 3},
    "is not what a run writes (KeyError: 'version')": {"run": {}},
    "rounds is 'many'; it must be an integer of at least 1": {"rounds": "many"},
    "training.learning_rate is nan; it must be a number above 0": {
        "training": to_json(base_config().training) | {"learning_rate": float("nan")}
    },
    "training is 3; it must be a TrainingConfig(...)": {"training": 3},
    "fedtgp has no option 'wieght'; did you mean 'weight'? It has": {
        "entries": [ENTRY | {"method": "fedtgp", "options": {"wieght": 1}}]
    },
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_config_json_is_named(tmp_path, message):
    folder = folder_with(tmp_path, **BROKEN[message])
    with pytest.raises(ValueError) as error:
        evaluate.load_run(folder)
    assert message in str(error.value) and str(folder / "config.json") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_json_that_is_cut_off_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"rounds": 1')
    with pytest.raises(ValueError, match=r"config\.json is not readable as JSON"):
        evaluate.load_run(tmp_path)


SPY = "open('marker', 'w').close()\n\n\ndef make(*task):\n    return {}\n"
SPY_MODEL = {"group": "spy_of_a_run:make"}
FEDKTL = ENTRY | {"method": "fedktl", "options": {"generator": "spy_of_a_run:make"}}
NAMING_CODE = {
    "model": {"model": to_json(base_config().model) | SPY_MODEL},
    "model of an entry": {"entries": [ENTRY | {"method": "local", "model": SPY_MODEL}]},
    "option": {"entries": [FEDKTL]},
    "entry as it is written": {"entries": ["fedktl:generator=spy_of_a_run:make"]},
}


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """Returns the file that a module in the current folder writes when it is imported."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "spy_of_a_run.py").write_text(SPY)
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "here" / "marker"
    sys.modules.pop("spy_of_a_run", None)


@pytest.mark.parametrize("place", NAMING_CODE)
def test_code_that_a_config_json_names_is_imported_if_it_is_trusted(tmp_path, marker, place):
    folder = folder_with(tmp_path, **NAMING_CODE[place])
    for call in (evaluate.load_run, report.report_run):
        with pytest.raises(ValueError, match=r"names spy_of_a_run:make, .* by --trust,") as error:
            call(folder)
        assert "\n" not in str(error.value) and str(marker.parent) in str(error.value)
    assert not marker.exists()
    with pytest.raises(ValueError, match="'spy_of_a_run:make' returns"):
        evaluate.load_run(folder, trust=True)
    assert marker.exists()


def test_a_file_of_a_config_json_is_no_module(tmp_path, marker):
    options = {"generator": "./spy_of_a_run:make"}
    with pytest.raises(FileNotFoundError, match="no generator at spy_of_a_run:make"):
        evaluate.load_run(folder_with(tmp_path, entries=[FEDKTL | {"options": options}]))
    assert not marker.exists()


def test_the_commands_ask_for_trust(tmp_path, run_script):
    """`report` stands for `evaluate`, too, which reads the folder by the same function."""
    arguments = "report", f"--workdir={folder_with(tmp_path, **NAMING_CODE['model'])}"
    done = run_script(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "the config names spy_of_a_run:make, which would be imported from " in done.stderr
    trusted = run_script(*arguments, "--trust")
    assert trusted.returncode == 2 and "there is no module spy_of_a_run" in trusted.stderr


def test_a_run_does_not_go_on_in_a_folder_with_a_broken_config_json(tmp_path):
    folder = folder_with(tmp_path, entries=[{"method": "local"}])
    with pytest.raises(ValueError, match=r"config\.json is not what a run writes \(KeyError:"):
        run_folder(typed_config(base_config()), [], folder, {})
