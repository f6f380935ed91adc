"""The leaderboard: the page is what its command makes, ranks and costs are what they say, and a
run's folder gives rows that are read back."""

from pathlib import Path

import numpy as np
import pytest

from experiments.leaderboard import find_unfit, page, read_settings, read_unfit
from experiments.leaderboard_ranks import overall, ranks_of, standings
from experiments.leaderboard_rows import (
    COLUMNS,
    Evaluation,
    Trial,
    add_runs,
    read_trials,
    require_config,
    rows_of_entry,
)
from experiments.run_folders import read_folder
from fedjax_ht.configs.base import base_config, typed_config
from fedjax_ht.methods import METHODS
from tests.docs.links import assert_links_lead_to_headings
from tests.experiments.folders import write_run

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "experiments" / "results", ROOT / "docs" / "leaderboard.md"
EVALUATIONS = tuple(
    Evaluation(round=i, accuracy=0.3 * i, val_accuracy=0.3 * i, macro_f1=0.1, bytes=10 * i, flops=i)
    for i in range(3)
)


def trial(seed, correct, best=0.0):
    """A trial of clients with 100 test samples each."""
    return Trial(
        seed=seed,
        split=seed + 1,
        chosen=float(np.mean(correct)) / 100,
        best=best,
        macro_f1=0.5,
        evaluations=EVALUATIONS,
        correct=tuple(correct),
        samples=(100,) * len(correct),
    )


def test_the_page_is_what_the_command_makes_from_the_committed_files():
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, RESULTS) == text, (
        "run python -m experiments.leaderboard (--fit: a new method)"
    )


def test_links_of_the_page_lead_to_headings():
    assert_links_lead_to_headings(PAGE)


def test_every_method_stands_once_in_a_setting():
    unfit = read_unfit(RESULTS)
    for setting in read_settings(RESULTS):
        path = RESULTS / setting.csv
        rows = set(read_trials(path)) if path.exists() else set()
        reasons = set(unfit.get(setting.config, ()))
        assert rows | reasons <= set(METHODS) and not rows & reasons


@pytest.mark.slow
def test_the_committed_reasons_are_those_of_the_library():
    unfit = read_unfit(RESULTS)
    for setting in read_settings(RESULTS):
        if setting.config:
            rows = find_unfit(setting.config)
            assert {method: needs for _, method, needs in rows} == unfit[setting.config]


def test_equal_means_share_a_rank():
    means = np.array([[0.5, 0.7, 0.5], [0.1, 0.2, 0.3]])
    np.testing.assert_array_equal(ranks_of(means), [[2.5, 1, 2.5], [3, 2, 1]])


def test_a_method_that_is_ahead_everywhere_is_first_in_every_resample():
    trials = {
        "local": [trial(0, [50, 60]), trial(1, [55, 50])],
        "fd": [trial(0, [52, 58]), trial(1, [53, 52])],
        "fedapen": [trial(0, [90, 80]), trial(1, [70, 90])],
    }
    rows = standings(trials)
    assert next(iter(rows)) == "fedapen"
    first, local = rows["fedapen"], rows["local"]
    assert (first.rank, first.rank_low, first.rank_high) == (1, 1, 1)
    assert (local.rank, local.rank_low, local.rank_high) == (2.5, 2, 3)
    np.testing.assert_allclose(first.lead, (0.3 + 0.275) / 2)
    assert first.lead_low <= first.lead <= first.lead_high and first.ahead == 2
    assert local.lead == local.lead_low == local.lead_high == 0 and local.gains is None
    assert first.gains is not None
    assert first.gains.gaining == 1 and first.gains.losing == 0
    shares = overall({"a": rows, "b": {name: rows[name] for name in ("local", "fd")}})
    assert shares["fedapen"] == 1 and next(iter(shares)) == "fedapen"


def test_costs_are_those_until_local_training_is_reached_in_the_same_trial():
    trials = {
        "local": [trial(0, [25, 25]), trial(1, [70, 70])],
        "fd": [trial(0, [50, 50]), trial(1, [50, 50])],
    }
    cost = standings(trials)["fd"].cost
    assert cost == (10, 1, 1)  # 0.3 in round 1; 0.7 is not reached


def test_without_local_training_there_is_nothing_to_compare_to():
    with pytest.raises(ValueError, match="no trials of local"):
        standings({"fd": [trial(0, [1, 2])]})


@pytest.fixture
def folder(tmp_path):
    rows = []
    for number in range(2):
        for at, share in enumerate([0.1, 0.6, 0.5]):
            row = {"round": at, "trial": number, "accuracy": share, "val_accuracy": share}
            row |= {"uplink_payload_bytes": 5 * at, "flops": 2.0 * at, "macro_f1": 0.4}
            row |= {"clients": [share, share], "accuracy_samples": [10, 20]}
            rows.append(row)
    return read_folder(write_run(tmp_path / "run", {"fedssa:mu=0.75": rows}, trials=2, rounds=2))


def test_rows_of_a_run_are_read_back(folder, tmp_path):
    (label,) = folder.entries
    path = tmp_path / "rows.csv"
    add_runs(path, {"fedssa": rows_of_entry(folder, label)})
    add_runs(path, {"fedssa": rows_of_entry(folder, label)})  # in place of the first
    first, second = read_trials(path)["fedssa"]
    assert (first.seed, second.seed, first.chosen, first.settings) == (0, 1, 0.6, "mu=0.75")
    assert first.correct == (6, 12) and first.samples == (10, 20)
    assert first.evaluations[-1][:2] == (2, 0.5) and first.evaluations[-1].bytes == 15
    assert first.evaluations[-1].flops == 6


def test_rows_with_other_test_samples_are_refused(folder, tmp_path):
    (label,) = folder.entries
    path, rows = tmp_path / "rows.csv", rows_of_entry(folder, label)
    add_runs(path, {"fedssa": rows})
    samples = COLUMNS.index("samples")
    other = [["fd", *row[1:samples], row[samples] and "10 21", *row[samples + 1 :]] for row in rows]
    before = path.read_text()
    with pytest.raises(ValueError, match="other test samples"):
        add_runs(path, {"fd": other})
    assert path.read_text() == before


def test_a_run_of_another_config_is_refused(folder):
    config = base_config()
    config.update_from_flattened_dict({"trials": 2, "rounds": 2})
    require_config(folder, typed_config(config), "it")
    config.rounds = 3
    with pytest.raises(ValueError, match="no run of it: rounds is 2 there and 3 here"):
        require_config(folder, typed_config(config), "it")
