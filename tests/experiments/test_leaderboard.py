"""The leaderboard: its page is made by its command, ranks and costs hold, rows are read."""

from pathlib import Path

import numpy as np
import pytest

from experiments.leaderboard import (
    find_unfit,
    names_of_rows,
    page,
    read_settings,
    read_unfit,
    scores_text,
)
from experiments.leaderboard_rows import (
    COLUMNS,
    Evaluation,
    Score,
    Trial,
    add_runs,
    overall,
    ranks_of,
    read_trials,
    require_config,
    rows_of_entry,
    standings,
)
from fedjax_ht.lab.config.base import base_config, typed_config
from fedjax_ht.lab.config.entries import preset
from fedjax_ht.lab.runs.folder import read_folder
from tests.experiments.folders import write_run

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "experiments" / "results", ROOT / "docs" / "leaderboard.md"
EVALUATIONS = tuple(Evaluation(accuracy=0.3 * i, bytes=10 * i, flops=i) for i in range(3))


def score(correct):
    return Score(float(np.mean(correct)) / 100, tuple(correct))


def trial(seed, correct, trained=None):
    """A trial of clients with 100 test samples each."""
    fields = {"seed": seed, "split": seed + 1, "macro_f1": 0.5, "evaluations": EVALUATIONS}
    scores = {"score": score(correct), "trained": trained and score(trained)}
    return Trial(**fields, **scores, samples=(100,) * len(correct))


def test_the_page_is_what_the_command_makes_from_the_committed_files():
    text = PAGE.read_text(encoding="utf-8")
    message = "run python -m experiments.leaderboard (--fit: a new method)"
    assert page(text, RESULTS) == text, message


def test_every_method_stands_once_in_a_setting():
    unfit = read_unfit(RESULTS)
    settings, marks = read_settings(RESULTS)
    for setting in settings:
        path = RESULTS / setting.csv
        rows = set(read_trials(path)) if path.exists() else set()
        reasons = set(unfit[setting.config])
        assert rows | reasons | set(marks) <= set(names_of_rows()) and not rows & reasons


@pytest.mark.slow
def test_the_committed_reasons_are_those_of_the_library():
    unfit = read_unfit(RESULTS)
    for setting in read_settings(RESULTS)[0]:
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
    first, local = rows["fedapen"].first, rows["local"].first
    assert (first.rank, first.low, first.high) == (1, 1, 1)
    assert (local.rank, local.low, local.high) == (2.5, 2, 3)
    np.testing.assert_allclose(first.lead.mean, (0.3 + 0.275) / 2)
    assert first.lead.low <= first.lead.mean <= first.lead.high and first.ahead == 2
    assert local.lead == local.student == (0, 0, 0) and rows["local"].gains is None
    # of two trials: 12.706 standard errors of 0.0125
    np.testing.assert_allclose(first.student.high - first.student.mean, 0.158828, rtol=1e-5)
    gains = rows["fedapen"].gains
    assert gains is not None and gains.gaining == 1 and gains.losing == 0
    ranks = {name: row.first for name, row in rows.items()}
    shares = overall({"a": ranks, "b": {name: ranks[name] for name in ("local", "fd")}})
    assert shares["fedapen"] == 1 and next(iter(shares)) == "fedapen"
    assert rows["fedapen"].trained is None


def test_the_second_score_has_ranks_among_those_that_have_it():
    trials = {
        "local": [trial(0, [50, 60], [50, 60]), trial(1, [55, 50], [55, 50])],
        "fd": [trial(0, [70, 80]), trial(1, [70, 80])],
        "fedprox": [trial(0, [40, 40], [60, 60]), trial(1, [40, 40], [60, 60])],
    }
    rows = standings(trials)
    assert [rows[name].first.rank for name in ("fd", "local", "fedprox")] == [1, 2, 3]
    trained = rows["fedprox"].trained
    assert trained is not None and rows["fd"].trained is None
    assert (trained.rank, trained.chosen, trained.ahead) == (1, 0.6, 2)
    np.testing.assert_allclose(trained.lead.mean, (0.05 + 0.075) / 2)
    (setting, *_), _ = read_settings(RESULTS)
    assert scores_text(setting, rows).startswith("Only local, fedprox have the second score")


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
            row |= {"trained_accuracy": share + 0.1, "trained_val_accuracy": 0.1 * at}
            row |= {"trained_clients": [share + 0.1] * 2}
            rows.append(row)
    return read_folder(write_run(tmp_path / "run", {"fedssa:mu=0.75": rows}, trials=2, rounds=2))


def test_rows_of_a_run_are_read_back(folder, tmp_path):
    (label,) = folder.entries
    path = tmp_path / "rows.csv"
    add_runs(path, {"fedssa": rows_of_entry(folder, label, "fedssa")})
    add_runs(path, {"fedssa": rows_of_entry(folder, label, "fedssa")})  # in place of the first
    first, second = read_trials(path)["fedssa"]
    assert (first.seed, second.seed, first.settings) == (0, 1, "mu=0.75")
    assert first.score == (0.6, (6, 12)) and first.samples == (10, 20)
    assert first.trained == (0.6, (6, 12))  # of round 2, which its own validation chooses
    assert first.evaluations[-1] == (0.5, 15, 6)


def test_rows_with_other_test_samples_are_refused(folder, tmp_path):
    (label,) = folder.entries
    path, rows = tmp_path / "rows.csv", rows_of_entry(folder, label, "fedssa")
    add_runs(path, {"fedssa": rows})
    samples = COLUMNS.index("samples")
    other = [["fd", *row[1:samples], row[samples] and "10 21", *row[samples + 1 :]] for row in rows]
    before = path.read_text()
    with pytest.raises(ValueError, match="other test samples"):
        add_runs(path, {"fd": other})
    assert path.read_text() == before


def test_a_run_of_another_config_is_refused(folder):
    config = base_config()
    config.update({"trials": 2, "rounds": 2})
    require_config(folder, typed_config(config), "it")
    config.rounds = 3
    with pytest.raises(ValueError, match="no run of it: rounds is 2 there and 3 here"):
        require_config(folder, typed_config(config), "it")
    config.rounds, config.entries = 2, (preset("fedssa:clock=round"),)
    with pytest.raises(ValueError, match="no run of it: clock is 'client' there and 'round'"):
        require_config(folder, typed_config(config), "it")
