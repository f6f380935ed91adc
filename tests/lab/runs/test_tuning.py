"""Scores of a run's clients by epochs of their own training."""

import copy
import json
from unittest import mock

import pytest

from fedjax_ht.lab.runs import train
from tests.lab.runs.folders import refused
from tests.runs import metrics


@pytest.fixture(scope="module")
def folder(config, tmp_path_factory):
    folder, config = tmp_path_factory.mktemp("tuned") / "run", copy.deepcopy(config)
    config.update({"new_share": 0.25, "scoring.adapt_epochs": 2, "report.maps": "none"})
    config.partition.options.val_share = 0.2
    with mock.patch.object(train, "write_results", lambda *args: []):
        train.train_and_evaluate(config, folder)
    return folder


def test_a_run_has_columns_of_new_clients(folder):
    for row in metrics(folder, "local"):
        assert sum(x is not None for x in row["new_clients"]) == 1
        assert sum(x is not None for x in row["clients"]) == 3
    assert json.loads((folder / "config.json").read_text())["new_share"] == 0.25


def test_curve(folder, evaluated, capsys):
    """The number of epochs of the run itself has its last row's scores."""
    evaluated(WORKDIR=folder, METHOD="local", ADAPT=["0", "2"])
    title, head, _, none, two, *chosen = capsys.readouterr().out.splitlines()
    assert title == "local after 3 rounds"
    names = ("accuracy", "val_accuracy", "new_accuracy", "new_val_accuracy")
    assert head == f"| epochs | {' | '.join(f'{name} %' for name in names)} |"
    last = metrics(folder, "local")[-1]
    assert two == f"| 2 | {' | '.join(f'{100 * last[name]:.2f}' for name in names)} |"
    assert none.startswith("| 0 | ") and none[4:] != two[4:]
    assert len(chosen) == 2 and "have the best val_accuracy: accuracy" in chosen[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"ADAPT": ["1", "two"]}, "adapt_epochs is '1,two'; it must be numbers"),
        ({"ADAPT": ["-1"]}, "adapt_epochs is '-1'"),
        ({"ADAPT": ["0"], "EXPORT": "client.npz"}, "--export is given without --client"),
        ({}, "give --workdir, and --client or --adapt_epochs"),
    ],
)
def test_wrong_flags(flags, message, evaluated):
    with refused(message):
        evaluated(**flags)
