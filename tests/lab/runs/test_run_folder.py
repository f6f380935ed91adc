"""A run's folder: one process, one config, one data set, one course."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest

from fedjax_ht.core.keys import random_generator
from fedjax_ht.data.targets import regression_dataset
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.readers import registry
from fedjax_ht.lab.runs.evaluate import client_state, load_run
from fedjax_ht.lab.runs.folder import VERSION, fingerprints, locked, read_folder
from fedjax_ht.lab.runs.identity import read_identity, run_folder, write_identity
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.lab.runs.train import Unwritable, train_and_evaluate
from tests.lab.runs.folders import STORED, contents, edited, refused
from tests.runs import ROOT, config_of, metrics


@pytest.fixture
def copied(finished, tmp_path, no_results):
    """A copy of the finished run; pictures are not drawn again."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_second_process_is_told_who_holds_the_folder(tmp_path):
    with locked(tmp_path / "run", print) as writable:
        assert writable
        holder = rf"in use by process {os.getpid()} on .+ since 20..-"
        with refused(holder), locked(tmp_path / "run", print):
            pass


def test_a_file_is_no_folder_of_a_run(tmp_path):
    (tmp_path / "file").write_text("mine")
    with refused(r"file is not a folder; choose another"), locked(tmp_path / "file", print):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_a_lock_of_a_dead_process_does_not_block(tmp_path):
    holding = (
        "from fedjax_ht.lab.runs.folder import locked; import pathlib, time\n"
        "with locked(pathlib.Path(r'{}'), print): print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", holding.format(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    holder = f"in use by process {process.pid} "
    with pytest.raises(ValueError, match=holder), locked(tmp_path, print):
        pass
    process.kill()
    process.communicate(timeout=60)
    with locked(tmp_path, print):
        pass


def test_a_run_on_other_data_is_refused_in_a_line(config, copied):
    experiment = plan(config)
    prints = fingerprints(experiment.dataset, experiment.partitions)
    swapped = experiment.partitions[0][::-1]
    assert fingerprints(experiment.dataset, [swapped])["data"] == prints["data"]
    notes = fingerprints(experiment.dataset, [swapped])
    with refused(
        r"another config \(partition\.sha256 \w{12} instead of \w{12}\); restore the original"
    ):
        run_folder(typed_config(config), [], copied, notes)
    file = Path(config.dataset.name.removeprefix("npz:"))
    whole, before = file.read_bytes(), contents(copied)
    with np.load(file) as arrays:
        images, labels = arrays["images"].copy(), arrays["labels"]
    images[0, 0, 0] ^= 1
    try:
        np.savez(file, images=images, labels=labels)
        registry._load.cache_clear()
        for call in (lambda: train_and_evaluate(config, copied), lambda: load_run(copied)):
            with refused(r"another config \(dataset\.sha256 \w{12} instead of \w{12}\)"):
                call()
    finally:
        file.write_bytes(whole)
        registry._load.cache_clear()
    assert contents(copied) == before


def test_targets_are_part_of_the_data():
    """Their quantiles, which are the labels, are equal."""
    sets = [regression_dataset("toy", np.eye(6), by * np.arange(6)) for by in (1, 1000)]
    np.testing.assert_array_equal(sets[0].labels, sets[1].labels)
    assert fingerprints(sets[0], [])["data"] != fingerprints(sets[1], [])["data"]


def test_a_run_of_another_random_generator_is_refused_in_a_line(config, copied):
    """config.json says it before anything is compiled, a checkpoint to any of its readers."""
    noted = read_folder(copied).notes["random"]
    assert noted == random_generator() and len(noted) >= 2
    before, standing = contents(copied), jax.config.jax_threefry_partitionable
    message = rf"threefry_partitionable {standing}, but .* has {not standing}: .*; set JAX_T"
    with jax.threefry_partitionable(not standing):
        for call in (lambda: train_and_evaluate(config, copied), lambda: load_run(copied)):
            with refused(message) as error:
                call()
            assert str(copied) in str(error.value)
    assert contents(copied) == before
    with edited(copied / "config.json") as content:
        del content["run"]["random"]  # of before it was noted
    assert train_and_evaluate(config, copied).histories["local"][0][-1]["round"] == 3


def test_a_config_with_fewer_fields_is_of_an_earlier_version_and_goes_on(config, copied):
    with edited(copied / "config.json") as content:
        assert content["run"]["version"] == VERSION
        del content["precision"], content["training"]["schedule"]
        del content["partition"]["options"]["min_samples"]
        content["partition"]["options"]["alpha"] = 2.0
    with pytest.raises(ValueError, match=r"another config \(partition.options.alpha 2.0"):
        train_and_evaluate(config, copied)  # min_samples is not at its default, alpha is another
    with edited(copied / "config.json") as content:
        content["partition"]["options"] |= {"alpha": 1.0, "min_samples": 8}
    assert load_run(copied).state.round == 3
    assert train_and_evaluate(config, copied).histories["local"][0][-1]["round"] == 3
    assert json.loads((copied / "config.json").read_text())["training"]["schedule"] == "constant"


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_run_of_another_version_is_refused(config, copied, version):
    with edited(copied / "config.json") as content:
        content["run"]["version"] = version
    for call in (lambda: train_and_evaluate(config, copied), lambda: load_run(copied)):
        with pytest.raises(ValueError, match=f"version {version}, but this .* reads {VERSION}"):
            call()


@pytest.mark.parametrize("nest", ['{"a": %s}', '{"a": [%s]}', "%s"])
@pytest.mark.parametrize("depth", [100, 900, 5_000, 100_000])
def test_a_config_of_many_levels_is_refused(tmp_path, nest, depth):
    (tmp_path / "config.json").write_text(nest % ('{"b":[' * depth + "]}" * depth))
    message = r"config\.json (is not readable as JSON|has values nested more than 32 levels)"
    with pytest.raises(ValueError, match=message):
        read_folder(tmp_path)


def test_a_stored_run_resumes_and_is_evaluated(tmp_path, no_results):
    """The archive is a run of two rounds, made when its version was new."""
    shutil.unpack_archive(STORED / f"version_{VERSION}.zip", tmp_path)
    _, fields, noted = read_folder(tmp_path)
    config = config_of(STORED / "config.py")
    config.dataset.data_dir = fields["dataset"]["data_dir"] = str(STORED)
    (tmp_path / "config.json").write_text(json.dumps(fields | {"run": noted}))
    warnings, stored = [], metrics(tmp_path, "fedtgp")
    run = load_run(tmp_path)
    assert run.state.round == 2 and client_state(run, 1)
    result = train_and_evaluate(config, tmp_path, warn=warnings.append)
    assert not warnings and metrics(tmp_path, "fedtgp")[:3] == stored
    (fresh,) = train_and_evaluate(config, tmp_path / "fresh").histories["fedtgp"]
    for name in ("loss", "accuracy"):  # of another machine, perhaps
        assert result.histories["fedtgp"][0][-1][name] == pytest.approx(fresh[-1][name], rel=1e-3)


@pytest.mark.parametrize("what", ["damaged", "deleted"])
def test_a_run_starts_again_only_with_a_word_and_what_was_there_stays(config, copied, what):
    folder, warnings = copied / "local", []
    for step in list((folder / "checkpoints").iterdir()):
        shutil.rmtree(step) if what == "deleted" else (step / "history.json").write_text("{")
    before = contents(folder)
    (history,) = train_and_evaluate(config, copied, warn=warnings.append).histories["local"]
    assert len(warnings) == (1 if what == "deleted" else 3)
    assert f"restarts at round 0, and its old files are now in {folder}" in warnings[-1]
    assert contents(folder / "set_aside_1") == before
    rows = [json.loads(line) for line in before[Path("metrics.jsonl")].splitlines()]
    assert [row["clients"] for row in history] == [row["clients"] for row in rows]


def test_a_finished_run_is_shown_from_a_read_only_folder(config, copied, monkeypatch):
    before, expected = contents(copied), metrics(copied, "local")
    writable = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != copied and writable(path, mode))
    result = train_and_evaluate(config, copied)
    assert [row["clients"] for row in result.histories["local"][0]] == [
        row["clients"] for row in expected
    ]
    assert contents(copied) == before and result.files == []
    more = dataclasses.replace(config, rounds=4)
    with pytest.raises(ValueError, match="local cannot be written to, but local is not finished"):
        train_and_evaluate(more, copied)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get)
def test_a_file_that_cannot_be_written_ends_a_run_in_a_line_and_it_goes_on(
    config, copied, finished, code
):
    shutil.rmtree(copied / "local")
    savez, calls = np.savez, []

    def failing(file, **arrays):
        calls.append(1)
        if len(calls) == 4:  # two a round
            raise OSError(code, os.strerror(code))
        return savez(file, **arrays)

    warnings = []
    # No program depends on how files are written; after `monkeypatch` all would be made again.
    with mock.patch.object(np, "savez", failing):
        with refused(f"cannot be written: .*{os.strerror(code)}; earlier saves", Unwritable):
            train_and_evaluate(config, copied)
        train_and_evaluate(config, copied, warn=warnings.append)
    assert not warnings
    assert metrics(copied, "local") == metrics(finished, "local")
    assert max(map(int, os.listdir(copied / "local/checkpoints"))) == 3


def test_an_identity_that_a_fault_left_behind_is_brought_up_to_date(config, copied):
    identity = read_identity(copied / "local")
    write_identity(dataclasses.replace(identity, rounds=2), copied / "local")
    train_and_evaluate(config, copied)
    assert read_identity(copied / "local") == identity


def test_a_signal_takes_effect_before_the_first_round_compiles(config, tmp_path):
    def stop(line):
        if "compiling" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    rows = []
    with pytest.raises(Interrupted):
        train_and_evaluate(config, tmp_path / "run", lambda name, row: rows.append(row), stage=stop)
    assert [row["round"] for row in rows] == [0]
