"""Ranks over comparisons: entries that were not trained alike are not ranked."""

import dataclasses

import pytest

from experiments.ranks import require_equal_rows
from fedjax_ht.configs.base import typed_config
from fedjax_ht.experiment.entries import entries_of, folder_of
from fedjax_ht.experiment.identity import identities_of, write_identity
from fedjax_ht.experiment.run_folder import read_config
from tests.experiments.folders import history, write_run

LABELS = ("local", "fedssa")


def comparison(path, rounds: int = 1, **fields):
    """A comparison's folder whose entries have `rounds` of one round."""
    histories = {label: history(*[0.1, 0.5][: rounds + 1]) for label in LABELS}
    return write_run(path, histories, rounds=1, **fields) / "trials.csv"


def test_equal_rows_are_ranked(tmp_path):
    assert require_equal_rows(comparison(tmp_path / "a"), LABELS) == ""


def test_an_unfinished_entry_is_not_ranked(tmp_path):
    path = comparison(tmp_path / "a", rounds=0)
    with pytest.raises(ValueError, match=r"local has 0 of 1 rounds, fedssa has 0 of 1 rounds; run"):
        require_equal_rows(path, LABELS)


def test_an_entry_of_another_run_is_not_ranked(tmp_path):
    path = comparison(tmp_path / "a")
    fields, noted = read_config(path.parent)
    fields.pop("entries")
    config = typed_config(fields | {"entries": LABELS})
    identity = identities_of(entries_of(config), config, noted)["fedssa"]
    training = {**identity.training, "learning_rate": 0.3}
    folder = path.parent / folder_of("fedssa")
    write_identity(dataclasses.replace(identity, training=training, rounds=1), folder)
    line = r"fedssa is of another run \(training.learning_rate 0.3 instead of 0.01\)"
    with pytest.raises(ValueError, match=line):
        require_equal_rows(path, LABELS)
    assert require_equal_rows(path, ("local",)) == ""


def test_a_file_outside_of_its_folder_is_said(tmp_path):
    line = require_equal_rows(tmp_path / "moved.csv", LABELS)
    assert line.endswith(
        "moved.csv lies outside of its run's folder: nothing tells that its rows are equal"
    )
