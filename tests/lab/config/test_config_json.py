"""A run's config.json is checked, and imports code only where it is trusted."""

import dataclasses
import json
import re
import sys

import numpy as np
import pytest

from fedjax_ht.lab.config.base import base_config, typed_config
from fedjax_ht.lab.config.entries import Entry
from fedjax_ht.lab.config.typed import to_json
from fedjax_ht.lab.runs import evaluate, own_methods, report
from fedjax_ht.lab.runs.folder import VERSION, fingerprints
from fedjax_ht.lab.runs.identity import identity_of, run_folder
from fedjax_ht.lab.runs.plan import plan
from tests.lab.runs.folders import refused


def folder_with(tmp_path, **changes):
    """A folder whose config.json is that of a run but for some fields; None takes a field out."""
    entry = ENTRY | {"label": "local", "method": "local"}
    fields = to_json(base_config()) | {"entries": [entry], "run": {"version": VERSION}} | changes
    fields = {name: value for name, value in fields.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return tmp_path


ENTRY = {"label": "a", "method": "fedprto", "options": {}, "training": {}, "model": {}, "tuned": ""}
TRAINING, NAN = to_json(base_config().training), float("nan")
BROKEN = {
    "unknown method 'fedprto'; did you mean 'fedproto'? The methods": {"entries": [ENTRY]},
    "entries has a dict without label, options": {"entries": [{"method": "local"}]},
    "entries is 3; it must be a tuple, each a string, an Entry(...) or a dict, name": {
        "entries": 3
    },
    "was not written by a run (AttributeError: 'int' object has no attribute 'items'": {
        "entries": [ENTRY | {"method": "local", "options": 3}]
    },
    "was not written by a run (AttributeError: 'int'": {"run": 3},
    "was not written by a run (AttributeError": {"partition": 3},
    "was not written by a run (KeyError: 'version')": {"run": {}},
    "training.learning_rate is nan; it must be": {"training": TRAINING | {"learning_rate": NAN}},
    "training is 3; it must be a TrainingConfig(...)": {"training": 3},
    "fedtgp has no option 'wieght'; did you mean 'weight'?": {
        "entries": [ENTRY | {"method": "fedtgp", "options": {"wieght": 1}}]
    },
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_config_json_is_named(tmp_path, message):
    folder = folder_with(tmp_path, **BROKEN[message])
    with refused(re.escape(message)) as error:
        evaluate.load_run(folder)
    assert str(folder / "config.json") in str(error.value)


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
        with refused(r"names spy_of_a_run:make, .* with --trust \(trust=True") as error:
            call(folder)
        assert str(marker.parent) in str(error.value)
    assert not marker.exists()
    with pytest.raises(ValueError, match="'spy_of_a_run:make' returns"):
        evaluate.load_run(folder, trust=True)
    assert marker.exists()


def places_of(tree, place=()):
    """Yields the path of every value in nested mappings and lists."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*place, key)
        if isinstance(value, dict | list):
            yield from places_of(value, (*place, key))


def test_no_value_of_a_folder_is_imported_without_trust(tmp_path, marker, monkeypatch):
    """Whatever a config.json or identity.json names, and whichever list of fields forgets it."""
    data = np.zeros((400, 16, 16), np.uint8), np.arange(400) % 4
    np.savez(tmp_path / "d.npz", images=data[0], labels=data[1])
    config = base_config()
    config.dataset.name, config.partition.num_clients = f"npz:{tmp_path}/d.npz", 2
    config.model.group = "mlp2"  # its models are traced for every value of the config
    fields = to_json(config) | {
        "entries": [ENTRY | {"method": "local", "label": "local"}],
        "run": {"version": VERSION, "own_modules": {"a:b": "c"}, "objects": {}},
    }
    made = plan(config)
    fields["run"] |= fingerprints(made.dataset, made.partitions)
    contents: dict = {"config.json": fields, "local/identity.json": None}
    made = identity_of(Entry("local", "local", {}, {}, {}), typed_config(config), {})
    contents["local/identity.json"] = json.loads(json.dumps(dataclasses.asdict(made)))
    (tmp_path / "local").mkdir()

    def write(changed):
        for name, content in changed.items():
            (tmp_path / name).write_text(json.dumps(content))

    def reached(*_):  # all that may import code has come before
        raise FileNotFoundError("reached")

    monkeypatch.setattr(evaluate, "simulate", reached)
    write(contents)
    with pytest.raises(FileNotFoundError, match="reached"):
        evaluate.load_run(tmp_path)
    tried, whole = 0, own_methods.read_experiment(tmp_path, trust=False, experiment=None)
    for name, content in contents.items():
        if name != "config.json":  # the plan does not depend on it, and takes most of the time
            monkeypatch.setattr(evaluate, "read_experiment", lambda *_: whole)
        for path in places_of(content):
            changed = json.loads(json.dumps(content))
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            is_list = isinstance(inner[path[-1]], list)
            inner[path[-1]] = ["spy_of_a_run:make"] if is_list else "spy_of_a_run:make"
            write(contents | {name: changed})
            with pytest.raises((ValueError, OSError)):
                evaluate.load_run(tmp_path)
            assert not marker.exists() and "spy_of_a_run" not in sys.modules, (name, path)
            tried += 1
    assert tried > 150


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
    assert trusted.returncode == 2 and "no module spy_of_a_run" in trusted.stderr


def test_a_run_does_not_go_on_in_a_folder_with_a_broken_config_json(tmp_path):
    folder = folder_with(tmp_path, entries=[{"method": "local"}])
    with pytest.raises(ValueError, match=r"config\.json was not written by a run \(KeyError:"):
        run_folder(typed_config(base_config()), [], folder, {})
