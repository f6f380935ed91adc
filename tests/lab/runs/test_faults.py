"""A call of the system that fails in a run's folder loses nothing: the same run goes on."""

import copy
import json
import shutil

import pytest

from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.report.compared import Page, write_page
from fedjax_ht.lab.runs.folder import VERSION, locked, read_folder
from fedjax_ht.lab.runs.identity import begin, read_identity
from fedjax_ht.lab.runs.own_methods import noted
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.train import train_and_evaluate
from tests.faults import some_or_all, try_faults
from tests.lab.runs.folders import STORED
from tests.runs import config_of, metrics


@some_or_all
def test_a_fault_while_a_new_entry_is_noted(tmp_path, which):
    config = config_of(STORED / "config.py")
    config.dataset.data_dir, config.entries = str(STORED), ("local",)
    config = typed_config(config)
    experiment = plan(config, begun=True)

    def note(folder):
        with locked(folder, print):
            begin(experiment, folder, noted(experiment), writes=True)
            write_page(Page(tuple(experiment.runs), None, "run"), folder)

    def check(folder, is_through):
        fields = read_folder(folder).fields
        labels = [entry["label"] for entry in fields["entries"]]
        assert labels in (
            [["fedtgp", "local"]] if is_through else [["fedtgp"], ["fedtgp", "local"]]
        )
        assert read_identity(folder / "fedtgp").rounds == 2
        assert labels == ["fedtgp"] or read_identity(folder / "local").rounds == 0

    def prepare(folder):
        shutil.unpack_archive(STORED / f"version_{VERSION}.zip", folder)

    tried = try_faults(tmp_path, prepare, note, check, **which)
    assert tried.faults > 10, tried


@pytest.mark.slow
def test_a_fault_anywhere_in_a_run(tmp_path, config, no_results):
    config = copy.deepcopy(config)
    config.rounds, config.report.maps = 2, "none"
    train_and_evaluate(config, tmp_path / "whole")
    whole = metrics(tmp_path / "whole", "local")

    def run(folder):
        train_and_evaluate(config, folder / "run")

    def check(folder, is_through):
        if is_through:
            assert metrics(folder / "run", "local") == whole
            assert read_identity(folder / "run/local").rounds == 2
            assert json.loads((folder / "run/config.json").read_text())["rounds"] == 2

    tried = try_faults(tmp_path, lambda folder: None, run, check, every=12)
    assert tried.faults > 10, tried
