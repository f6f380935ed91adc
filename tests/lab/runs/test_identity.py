"""An entry's folder carries its identity: a run goes on there only as what it is."""

import copy
import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from fedjax_ht.lab.config.base import base_config, typed_config
from fedjax_ht.lab.config.entries import entries_of, only
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import to_json
from fedjax_ht.lab.runs import train
from fedjax_ht.lab.runs.environment import environment
from fedjax_ht.lab.runs.evaluate import load_run
from fedjax_ht.lab.runs.folder import fixed, write_folder
from fedjax_ht.lab.runs.identity import (
    differences,
    identity_of,
    read_identity,
    run_folder,
    write_identity,
)
from fedjax_ht.lab.runs.train import train_and_evaluate
from tests.lab.runs.folders import contents, edited, refused
from tests.runs import metrics


def trained(config, folder, **fields):
    """Trains a config with other fields, without pictures; returns the folder."""
    config = copy.deepcopy(config)
    config.update(fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "write_results", lambda *args: [])
        train_and_evaluate(config, folder)
    return folder


def refusals(config, folder, match, **fields):
    """Checks that the run does not go on in the folder, and that nothing there changes."""
    before = contents(folder)
    with refused(match):
        trained(config, folder, **fields)
    assert contents(folder) == before


def test_a_folder_says_what_is_in_it(config, finished):
    identity = read_identity(finished / "local")
    noted = json.loads((finished / "config.json").read_text())["run"]
    assert identity.method == {"name": "local", "options": {}} and identity.training["epochs"] == 1
    assert identity.data["sha256"] == noted["data"] and identity.split["sha256"] == noted["split"]
    assert (identity.seed, identity.trials, identity.rounds) == (0, 1, 3)
    assert identity.versions == (environment(),) and "checkpoint.every" not in identity.options
    again = identity_of(entries_of(typed_config(config))[0], typed_config(config), noted)
    assert differences(identity, again) == []


def test_rounds_and_versions_grow_with_the_run(config, finished, tmp_path, monkeypatch):
    folder = shutil.copytree(finished, tmp_path / "run")
    first, later = environment(), environment() | {"jax": "99.0"}
    monkeypatch.setattr("fedjax_ht.lab.runs.play.environment", lambda: later)
    trained(config, folder)  # shows it again, and trains nothing
    assert read_identity(folder / "local").versions == (first,)
    trained(config, folder, rounds=4)
    identity = read_identity(folder / "local")
    assert (identity.rounds, identity.versions) == (4, (first, later))


def test_fewer_rounds_than_there_are_is_refused(config, finished):
    line = "local has 3 rounds in .*, but rounds is 1; a run cannot go back: set rounds to 3"
    refusals(config, finished, line, rounds=1)


@pytest.mark.parametrize(
    ("name", "value"), [("training.learning_rate", 0.3), ("trials", 2), ("seed", 4)]
)
def test_an_entry_of_another_run_is_refused(config, finished, tmp_path, name, value):
    folder = tmp_path / "run"
    shutil.copytree(finished / "local", folder / "local")
    line = (
        rf"holds a run of another local \((.*, )?{name} .* instead of .*\); move it away, or choose"
    )
    with refused(line):
        trained(config, folder, **{name: value})
    assert not (folder / "config.json").exists()


def test_an_entry_put_in_place_of_another_is_neither_gone_on_with_nor_evaluated(
    config, finished, tmp_path
):
    folder = shutil.copytree(finished, tmp_path / "run")
    with edited(folder / "local" / "identity.json") as content:
        content["split"] |= {"seed": 5, "sha256": "a" * 64}
    line = r"local holds a run of another local \(partition\.seed 5 instead of 1, partition\.sha256 .* in"
    refusals(config, folder, line, rounds=4)
    with pytest.raises(ValueError, match=line):
        load_run(folder)


def test_an_entry_of_an_equal_run_joins_wherever_its_data_lie(config, finished, tmp_path):
    moved = shutil.copy(config.dataset.name.removeprefix("npz:"), tmp_path / "moved.npz")
    shutil.copytree(finished / "local", tmp_path / "run" / "local")
    trained(config, tmp_path / "run", **{"dataset.name": f"npz:{moved}"})
    assert metrics(tmp_path / "run", "local") == metrics(finished, "local")
    assert load_run(tmp_path / "run").state.round == 3


def test_a_run_resumes_with_its_data_in_another_folder(config, finished, tmp_path):
    file = Path(config.dataset.name.removeprefix("npz:"))
    folder, moved = shutil.copytree(finished, tmp_path / "run"), shutil.copy(file, tmp_path)
    trained(config, folder, **{"dataset.name": f"npz:{moved}"})
    assert load_run(folder).state.round == 3
    renamed = shutil.copy(file, tmp_path / "other.npz")
    trained(config, folder, **{"dataset.name": f"npz:{renamed}"})
    with edited(folder / "config.json") as content:
        content["dataset"]["name"] = "csv:other.npz"  # another reader
    refusals(
        config, folder, r"another config \(dataset\.name 'csv' instead of 'npz'\); restore the"
    )


def test_every_field_that_affects_results_is_compared(config, tmp_path):
    """Those of the config, even if the entry has its own, and those of entries in both runs."""
    config = only(typed_config(config), ("fedtgp:training.learning_rate=0.5:tau=3",))
    entries, notes = entries_of(config), {"data": "a" * 64, "split": "b" * 64}
    write_folder(run_folder(config, entries, tmp_path, notes))
    stored = json.loads((tmp_path / "config.json").read_text())
    places = [(stored, name.split(".")) for name in fixed(to_json(config))]
    for part in ("options", "training"):
        places += [(stored["entries"][0][part], [name]) for name in stored["entries"][0][part]]
    assert len(places) > 90
    for section, (*path, name) in places:
        for each in path:
            section = section[each]
        value = section[name]
        is_number = isinstance(value, int | float)
        section[name] = value + 1 if is_number else "other"
        (tmp_path / "config.json").write_text(json.dumps(stored))
        with refused(str(tmp_path)):
            run_folder(config, entries, tmp_path, notes)
        with pytest.raises(ValueError):  # whichever entries are trained now
            run_folder(config, entries if path == [] else [], tmp_path, notes)
        section[name] = value
    (tmp_path / "config.json").write_text(json.dumps(stored))
    for note, section in (("data", "dataset"), ("split", "partition")):
        with refused(
            rf"another config \({section}\.sha256 {notes[note][:12]} instead of cccccccccccc\)"
        ):
            run_folder(config, [], tmp_path, notes | {note: "c" * 64})
    free = {"rounds": 99, "devices": 2, "client_store": "host", "dataset.data_dir": "elsewhere"}
    config.update(free)
    run_folder(config, entries, tmp_path, notes)


def test_other_data_under_the_same_name_are_others():
    config = Config()
    (entry,) = entries_of(config)
    first, second = (identity_of(entry, config, {"data": sha * 64}) for sha in "ab")
    assert differences(first, second) == [f"dataset.sha256 {'a' * 12} instead of {'b' * 12}"]


def test_results_of_which_nothing_tells_what_they_are_are_refused(config, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "local" / "identity.json").unlink()
    refusals(config, folder, r"identity\.json is missing, .*; move it away, or choose another --w")
    (folder / "config.json").unlink()
    refusals(config, folder, r"identity\.json is missing")
    shutil.rmtree(folder / "local")  # nothing is there: the run begins
    trained(config, folder)


def test_a_field_that_an_earlier_version_did_not_have_is_at_its_default(config, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    with edited(folder / "local" / "identity.json") as content:
        del content["training"]["schedule"], content["options"]["privacy.unit"]
        del content["split"]["options"]["min_samples"]
    (line,) = differences(read_identity(folder / "local"), read_identity(finished / "local"))
    assert line.startswith("partition.options.min_samples ") and line.endswith(" instead of 8")


@pytest.mark.parametrize("text", ["{}", "[]", '{"data": 3}', "nothing"])
def test_an_identity_that_no_run_wrote_is_named(finished, tmp_path, text):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "local" / "identity.json").write_text(text)
    with refused(r"local/identity\.json"):
        load_run(folder)


def test_an_identity_is_read_as_it_was_written(tmp_path):
    config = only(base_config(), ("fedktl:bandwidths=(1.0,2.0)",))
    (entry,) = entries_of(config)
    identity = identity_of(entry, config, {"data": "a" * 64, "split": "b" * 64})
    identity = dataclasses.replace(identity, rounds=7, versions=(environment(),))
    write_identity(identity, tmp_path)
    assert read_identity(tmp_path) == identity
