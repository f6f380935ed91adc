"""Searches: their points, who goes on, and that what shares a program, or goes on later, is what it would be alone."""

import json
import math

import numpy as np
import pytest

from fedjax_ht.methods import METHODS
from fedjax_ht.runner.build import build
from fedjax_ht.runner.entries import entries_of
from fedjax_ht.runner.fair import fairly_tuned, space_of
from fedjax_ht.runner.families import families
from fedjax_ht.runner.points import regrouped, searched
from fedjax_ht.runner.search import better_half, draw, grid, parse_space, points_of, rounds_trained, rungs
from fedjax_ht.runner.train import Interrupted
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_trials
from fedjax_ht.simulation.trials import of_trial
from tests.federations import TRAINING, federation_data, federation_for, identical


def test_a_grid_is_every_combination():
    space = parse_space(["method.options.weight=0.1,1", "training.learning_rate=0.01,0.1"])
    assert list(map(tuple, (point.values() for point in grid(space)))) == [
        ("0.1", "0.01"),
        ("0.1", "0.1"),
        ("1", "0.01"),
        ("1", "0.1"),
    ]
    assert points_of("fedtgp", ["weight=1,2"], None) == ["fedtgp:weight=1", "fedtgp:weight=2"]


def test_draws_are_spread_over_a_range_and_always_the_same():
    space = parse_space(["weight=log:0.01:100", "mu=uniform:0:1", "decay=cosine,linear"])
    points = draw(space, 8)
    assert points == draw(space, 8)
    # One in each eighth.
    exponents = sorted((math.log10(float(p["weight"])) + 2) / 4 * 8 for p in points)
    assert np.allclose(exponents, np.arange(8) + 0.5, atol=0.6)
    assert sorted(float(p["mu"]) for p in points)[0] < 0.13 and sum(p["decay"] == "cosine" for p in points) == 4
    assert points_of("fedssa", ["mu=uniform:0:1"], 3)[0] == "fedssa"


@pytest.mark.parametrize(
    "over, word",
    [
        (["weight"], "KEY=VALUE"),
        (["weight=log:0:1"], "a range is"),
        (["weight=log:2:1"], "a range is"),
        (["weight=normal:0:1"], "a range is"),
        (["weight=uniform:0:inf"], "a range is"),
        (["weight=1", "method.options.weight=2"], "twice"),
        (["weight=log:1:2"], "--draws"),
    ],
)
def test_a_wrong_space_is_one_line(over, word):
    with pytest.raises(ValueError, match=word):
        grid(parse_space(over))


def test_the_worse_half_ends():
    assert rungs(40, 2) == [10, 20, 40] and rungs(40, 0) == [40]
    assert better_half({"a": 0.1, "b": math.nan, "c": 0.3, "d": 0.1, "e": 0.2}) == ["a", "c", "e"]
    assert rounds_trained(9, [10, 20, 40]) == 9 * 10 + 5 * 10 + 3 * 20
    with pytest.raises(ValueError, match="--halvings is 3; with 4 rounds it must be from 0 to 2"):
        rungs(4, 3)


@pytest.fixture
def config(tiny_config):
    """Of the runner's tests, with validation sets."""
    names = {}
    exec(tiny_config.read_text(), names)
    config = names["get_config"]()
    config.partition.options.train_share, config.partition.options.val_share = 0.5, 0.25
    config.rounds = 4
    config.precision, config.devices = "float32", 1
    return config


POINTS = [f"fedtgp:server_epochs=2:weight={w}:training.learning_rate={r}" for w in (0.1, 1.0) for r in (0.01, 0.1)]


def test_what_differs_in_numbers_alone_shares_a_program(config):
    config.entries = (*POINTS, "fedtgp:server_epochs=3", "fedtgp:variant=released")
    found = [family.labels for family in families(build(config), config)]
    assert found == [POINTS, ["fedtgp:server_epochs=3"], ["fedtgp:variant=released"]]
    assert len(families(build(config), config, trace=False)) == 6


def run(config, folder, halvings=1, together=1, labels=POINTS):
    return searched(config, labels, halvings, together, folder, lambda line: None)


@pytest.mark.slow
def test_points_together_or_apart_and_stopped_are_the_same(config, tmp_path, monkeypatch):
    apart = run(config, tmp_path / "apart")
    assert {r: len(scores) for r, scores in apart.scores.items()} == {2: 4, 4: 2}
    together = run(config, tmp_path / "together", together=3)
    assert together == apart

    # Stopped by a signal in the middle, the search goes on to the same end.
    from fedjax_ht.runner import points

    class stopped:
        def __enter__(self):
            return [2]

        def __exit__(self, *error):
            pass

    with monkeypatch.context() as patched:
        patched.setattr(points, "catch_signals", stopped)
        with pytest.raises(Interrupted):
            run(config, tmp_path / "stopped")
    assert run(config, tmp_path / "stopped") == apart
    # Going on from the half of the rounds changes nothing; and what is done is not done again.
    whole = run(config, tmp_path / "whole", halvings=0, labels=[apart.best])
    assert whole.scores[4][apart.best] == apart.scores[4][apart.best]
    monkeypatch.setattr(points, "_train", None)
    assert run(config, tmp_path / "apart") == apart


def test_without_validation_sets_nothing_is_chosen(config, tmp_path):
    config.partition.options.val_share = 0.0
    with pytest.raises(ValueError, match="no validation sets"):
        run(config, tmp_path)


def test_a_fair_comparison_tunes_every_method_alike(config, tmp_path):
    config.rounds = 4
    told = []
    tuned = fairly_tuned(config, ["local", "fedtgp:server_epochs=2"], 2, tmp_path, told.append)
    local, fedtgp = entries_of(tuned)
    assert [local.label, fedtgp.label] == ["local@tuned", "fedtgp@tuned"]
    assert local.tuned == fedtgp.tuned == "2 settings, 5 rounds of training, by validation on 1 split of seed 1, seed 0"
    assert fedtgp.options["server_epochs"] == 2
    for name in ("local", "fedtgp"):
        assert len(json.loads((tmp_path / "search" / name / "search.json").read_text())["1"]) == 2
    with pytest.raises(ValueError, match="each method once"):
        fairly_tuned(config, ["fedtgp", "fedtgp:weight=1"], 2, tmp_path, told.append)


def test_spaces_name_options_that_there_are(config):
    from fedjax_ht.runner.fair import SPACES

    for method in SPACES:
        config.entries = tuple(points_of(method, space_of(method, config), 2))
        assert len(entries_of(config)) == 3


def test_points_in_other_company_keep_what_is_theirs():
    federation = federation_for("fedtgp")
    data, method = [federation_data(federation)] * 2, METHODS["fedtgp"](TRAINING)
    there = make_trials(
        method, federation, data, SimulationOptions(participation=0.6, lanes=1, devices=1), seeds=[3, 4]
    )
    before, _ = there.run_round(there.init())
    rows = [{"round": 1, "trial": trial, "of": label} for trial, label in enumerate("ab")]
    sources = {label: (there, (before, rows), ["a", "b"]) for label in "ab"}
    state, history = regrouped(there.of_trials([4, 3]), ["b", "a"], 1, sources)
    assert [(row["trial"], row["of"]) for row in history] == [(0, "b"), (1, "a")]
    for new, old in ((0, 1), (1, 0)):
        assert identical(of_trial(state.servers, new), of_trial(before.servers, old))
        assert np.array_equal(state.last_round[new], before.last_round[old])
        for bucket in federation.buckets:
            size = len(federation.members(bucket))
            mine, theirs = (np.arange(t * size, (t + 1) * size) for t in (new, old))
            assert np.array_equal(state.changed[bucket.name][mine], before.changed[bucket.name][theirs])
            read = there.read_clients
            assert identical(read(state, bucket.name, mine), read(before, bucket.name, theirs))
