"""Searches: their points, who goes on, and that points which share a program train as alone."""

import errno
import json
import math
import os
import re
from typing import Annotated
from unittest import mock

import numpy as np
import pytest

from fedjax_ht.check.options import Count, SearchRange
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.entries import described, entries_of, only, parse_entry, presets_of
from fedjax_ht.lab.configs import few_samples
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.runs import search
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.search import (
    SearchResult,
    budget,
    fairly_tuned,
    families,
    rounds_planned,
    rounds_trained,
    rungs,
    searched,
    standing,
    table,
)
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.lab.runs.spaces import (
    RATE,
    described_space,
    draw,
    grid,
    parse_space,
    points_of,
    space_of,
)
from fedjax_ht.lab.runs.tasks import Tasks
from fedjax_ht.lab.runs.train import Unwritable
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.registry import FACTORIES
from tests.lab.runs.folders import refused
from tests.runs import config_of


def test_a_grid_is_every_combination():
    space = parse_space(["method.options.weight=0.1,1", "training.learning_rate=0.01,0.1"])
    points = [" ".join(point.values()) for point in grid(space)]
    assert points == ["0.1 0.01", "0.1 0.1", "1 0.01", "1 0.1"]
    labels = points_of("fedtgp", parse_space(["weight=1,2"]), None)
    assert labels == ["fedtgp:weight=1", "fedtgp:weight=2"]


def test_draws_are_spread_over_a_range_and_always_the_same():
    space = parse_space(["weight=log:0.01:100", "mu=uniform:0:1", "decay=cosine,linear"])
    points = draw(space, 8)
    assert points == draw(space, 8)
    # One in each eighth.
    exponents = sorted((math.log10(float(p["weight"])) + 2) / 4 * 8 for p in points)
    assert np.allclose(exponents, np.arange(8) + 0.5, atol=0.6)
    assert sorted(float(p["mu"]) for p in points)[0] < 0.13
    assert sum(p["decay"] == "cosine" for p in points) == 4
    assert points_of("fedssa", parse_space(["mu=uniform:0:1"]), 3)[0] == "fedssa"
    assert len({p["m"] for p in draw(parse_space(["m=log:0.1:0.4"]), 90)}) == 90
    # two digits of 0.998 would be 1, and of 0.0152 below the range
    for low, high, kind in ((0.9, 0.999, "uniform"), (0.0151, 0.0154, "log")):
        values = [float(p["m"]) for p in draw(parse_space([f"m={kind}:{low}:{high}"]), 10)]
        assert all(low <= value <= high for value in values)


def test_points_that_are_not_finite_come_last():
    result = SearchResult("c", {4: {"b": 0.5, "d": math.nan, "c": 0.9}})
    labels = [line.split(" | ")[0].strip("| ") for line in table(result).splitlines()[2:]]
    assert labels == ["c", "b", "d"]


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
    first = {"a": 0.1, "b": math.nan, "c": 0.3, "d": 0.1, "e": 0.2}
    assert standing("abcde", [1, 2], {}) == (1, list("abcde"))
    assert standing("abcde", [1, 2], {1: first}) == (2, ["a", "c", "e"])
    nans = dict.fromkeys("abd", math.nan)
    assert standing("abcd", [1, 2], {1: nans | {"c": 0.3}}) == (2, ["c"])
    assert rounds_planned(9, [10, 20, 40]) == 9 * 10 + 5 * 10 + 3 * 20
    with pytest.raises(ValueError, match="--halvings is 3; with 4 rounds it must be from 0 to 2"):
        rungs(4, 3)


@pytest.fixture
def config(tiny_config):
    """Returns the config of the runner's tests, with validation sets."""
    config = config_of(tiny_config)
    config.partition.options.train_share, config.partition.options.val_share = 0.5, 0.25
    config.rounds = 4
    config.precision, config.devices = "float32", 1
    return config


POINTS = [
    f"fedtgp:server_epochs=2:weight={w}:training.learning_rate={r}"
    for w in (0.1, 1.0)
    for r in (0.01, 0.1)
]


def test_points_that_differ_in_numbers_share_a_program(config):
    entries = (*POINTS, "fedtgp:server_epochs=3", "fedtgp:variant=released")
    experiment = plan(only(config, entries))
    groups = [[run.label for run in family] for family in families(experiment)]
    assert groups == [POINTS, ["fedtgp:server_epochs=3"], ["fedtgp:variant=released"]]


def test_a_point_whose_setting_decides_a_branch_compiles_its_own_program(config, tmp_path):
    def branching(training: LocalTraining, weight: float = 1.0) -> Method:
        base = METHODS["local"](training)

        def client_update(*arguments):
            assert weight >= 0.0  # with a traced number it cannot be decided
            return base.client_update(*arguments)

        return base._replace(name="branching", client_update=client_update)

    labels, lines = ["branching:weight=0.1", "branching:weight=1.0"], []
    config.rounds = 1
    with mock.patch.dict(FACTORIES, branching=branching):
        result = run(config, tmp_path, 0, labels, tell=lines.append)
    assert list(result.scores[1]) == labels and len(set(result.scores[1].values())) == 1
    for label in labels:
        assert f"{label} compiles its own program: a setting cannot vary within one" in lines


def test_points_of_other_batches_or_epochs_have_programs_of_their_own(config):
    recipes = parse_space(["training.batch_size=5,10", "training.epochs=1,2"])
    # without momentum optax keeps no trace
    for other, sizes in (("momentum=0,0.5", [1] * 8), ("learning_rate=0.01,0.1", [2] * 4)):
        space = recipes | parse_space([f"training.{other}"])
        experiment = plan(only(config, points_of("local", space, None)))
        assert [len(family) for family in families(experiment)] == sizes


def run(config, folder, halvings=1, labels=POINTS, tell=lambda line: None, **more):
    return searched(typed_config(config), labels, halvings, workdir=folder, tell=tell, **more)


@pytest.mark.slow
def test_points_whole_halved_and_stopped_are_the_same(config, tmp_path, monkeypatch):
    apart = run(config, tmp_path / "apart")
    assert {r: len(scores) for r, scores in apart.scores.items()} == {2: 4, 4: 2}

    # Stopped by a signal in the middle, the search goes on to the same end.
    class stopped:
        def __enter__(self):
            return [2]

        def __exit__(self, *error):
            pass

    with monkeypatch.context() as patched:
        patched.setattr(search, "catch_signals", stopped)
        with pytest.raises(Interrupted):
            run(config, tmp_path / "stopped")
    assert run(config, tmp_path / "stopped") == apart
    # Going on from the half of the rounds changes nothing; and what is done is not done again.
    whole = run(config, tmp_path / "whole", halvings=0, labels=[apart.best])
    assert whole.scores[4][apart.best] == apart.scores[4][apart.best]
    monkeypatch.setattr(search, "play", None)
    assert run(config, tmp_path / "apart") == apart


def halved(folder, at, points, tell=lambda line: None):
    """A search of points that are not trained: label -> columns of each point's only row."""

    def train(rounds, folders, done):
        for label in folders:
            done(label, [[{"round": rounds, "trial": 0} | points[label]]])

    return search._halved(list(points), at, folder, train=train, tell=tell)


def test_rungs_of_an_earlier_search_are_not_in_the_result(tmp_path):
    points = {label: {"val_accuracy": len(label) / 10} for label in ("a", "bb", "ccc")}
    first = halved(tmp_path, [1, 2], {label: points[label] for label in ("a", "bb")})
    assert first.scores == {1: {"a": 0.1, "bb": 0.2}, 2: {"bb": 0.2}}
    assert halved(tmp_path, [2], points).scores == {2: {"a": 0.1, "bb": 0.2, "ccc": 0.3}}


def test_points_are_known_by_their_settings(config, tmp_path):
    config.rounds = 1
    slow, fast = (f"local:training.learning_rate={rate}" for rate in (0.001, 0.3))
    first = run(config, tmp_path / "a", 0, [slow]).scores[1]
    both = run(config, tmp_path / "a", 0, [fast, slow]).scores[1]
    assert both == first | run(config, tmp_path / "b", 0, [fast]).scores[1]
    with pytest.raises(ValueError, match=f"holds a search of other points, such as {slow}; search"):
        run(config, tmp_path / "a", 0, [fast])


def test_a_full_disk_ends_a_search_as_it_ends_a_run(config, tmp_path):
    def full(file, **arrays):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    config.rounds = 1
    # No program depends on how files are written; after `monkeypatch` all would be made again.
    with mock.patch.object(np, "savez", full), refused("earlier saves are intact", Unwritable):
        run(config, tmp_path, 0, ["local"])


@pytest.mark.parametrize("content", ['{"x": {}}', '{"1": 5}', '{"1": {"local": "x"}}'])
def test_a_record_of_other_types_is_refused(config, tmp_path, content):
    config.rounds = 1
    (tmp_path / "search.json").write_text(content)
    with refused(r"search\.json"):
        run(config, tmp_path, 0, ["local"])


def test_a_budget_counts_all_trials(config):
    config.trials = 2
    text = "4 settings, 32 rounds of training, by validation on {}, seeds 0 to 1"
    assert budget(typed_config(config), 4, 16) == text.format("1 split of seed 1")
    config.partition.per_trial = True
    assert budget(typed_config(config), 4, 16) == text.format("2 splits of seeds 1 to 2")


def test_a_search_that_goes_on_refuses_another_file_of_devices(config, tmp_path):
    def stop():
        raise Interrupted(2)

    table = tmp_path / "devices.csv"
    config.devices_profile.csv = str(table)
    for speed, error, line in (
        (1, Interrupted, "SIGINT"),
        (2, ValueError, r"devices\.csv \w{12} instead"),
    ):
        table.write_text("client,up\n" + "".join(f"{i},{speed}\n" for i in range(4)))
        with pytest.raises(error, match=line):
            run(config, tmp_path / "search", labels=["local"], tasks=Tasks(stop, None))


def test_without_validation_sets_nothing_is_chosen(config, tmp_path):
    config.partition.options.val_share = 0.0
    with pytest.raises(ValueError, match="no validation sets"):
        run(config, tmp_path)


def test_a_fair_comparison_tunes_every_method_alike(config, tmp_path):
    config.rounds, messages, dataset = 2, [], load_dataset(config.dataset.name)
    tell = {"points": 2, "tell": messages.append}
    tuned = fairly_tuned(
        config, ["local", "fedproto:variant=released"], tmp_path, dataset=dataset, **tell
    )
    local, fedproto = entries_of(tuned)
    assert [local.label, fedproto.label] == ["local@tuned", "fedproto@tuned"]
    # of so few rounds the worse half ends once, not twice
    budget = "2 settings, 3 rounds of training, by validation on 1 split of seed 1, seed 0"
    rate = "training.learning_rate from 0.00125 to 0.08"
    assert local.tuned == f"{budget}; searched: {rate}"
    assert fedproto.tuned == f"{budget}; searched: {rate}, weight from 0.01 to 10"
    assert fedproto.options["variant"] == "released"
    assert local.searched_on[0] == f"object:{dataset.name}"
    for name in ("local", "fedproto"):
        assert len(json.loads((tmp_path / "search" / name / "search.json").read_text())["1"]) == 2
    with pytest.raises(ValueError, match="each method once"):
        fairly_tuned(config, ["fedproto", "fedproto:weight=1"], tmp_path, **tell)
    noted = json.loads((tmp_path / "search" / "local" / "config.json").read_text())
    assert noted["dataset"]["name"] == f"object:{dataset.name}" in noted["run"]["objects"]
    best = next(line for line in messages if line.startswith("chosen: "))
    assert parse_entry(best.removeprefix("chosen: ")).settings == local.settings
    assert messages[0].startswith("local, up to round 1: ")


def test_the_recipe_is_searched_at_the_same_draws_for_all_methods(config):
    recipe = parse_space(["training.batch_size=64,512", "training.epochs=1,10"])
    settings = {}
    for method in ("local", "fedproto", "fedtgp"):
        space = space_of(method, typed_config(config), recipe)
        settings[method] = [label.split(":")[1:4] for label in points_of(method, space, 6)]
    assert settings["local"] == settings["fedproto"] == settings["fedtgp"]
    sizes = [point[1] for point in settings["local"][1:]]
    assert sizes.count("training.batch_size=64") == sizes.count("training.batch_size=512") == 3
    text = described_space(space_of("local", typed_config(config), recipe))
    assert text.endswith(", training.batch_size 64 or 512, training.epochs 1 or 10")
    for entry, over, message in (
        ("fedproto", "weight=1,2", "--over names 'weight'; with --fair it must name"),
        ("fedproto", f"{RATE}=0.1,1", f"--over lists values of {RATE}, all .* give a range, such"),
        ("fedproto:weight=3.0", f"{RATE}=log:0.1:1", "fedproto:weight=3.0 sets weight, which the"),
    ):
        with pytest.raises(ValueError, match=message):
            fairly_tuned(config, [entry], "", recipe=parse_space([over]))


SEARCHED = {  # of each kind of declaration: none, powers, an interval, several
    "local": {},
    "fedproto": {"weight": (0.01, 10, True)},
    "fedssa": {"mu": (0, 1, False)},
    "fml": {"alpha": (0, 1, False), "beta": (0, 1, False)},
    "fedral": {"angle_lr": (0.001, 1, True), "init_scale": (0.3, 30, True)},
    "hetlora": {"lam": (0.0001, 0.1, True)},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_factory_declares_what_is_searched_of_its_method(config, method):
    space = space_of(method, typed_config(config))
    rate = config.training.learning_rate
    assert space.pop("training.learning_rate") == (rate / 8, rate * 8, True)
    assert space == SEARCHED.get(method, space)
    assert all(0 <= low < high for low, high, _ in space.values())
    labels = points_of(method, space_of(method, typed_config(config)), 2)
    assert len(entries_of(only(config, labels))) == 3


def test_the_shipped_settings_say_what_was_searched_of_whom():
    config = few_samples.get_config()
    tuned = [preset for preset in presets_of(config.entries).values() if preset.tuned]
    assert len(tuned) == 8
    for preset in tuned:
        if preset.method != "fedclassavg":  # whose range is another one since
            space = described_space(space_of(preset.method, config))
            assert preset.tuned.endswith(f"; searched: {space}")


def fedmine(
    training: LocalTraining,
    share: Annotated[float, SearchRange(0.0, 1.0, log=False)] = 0.5,
    steps: Count = 3,
) -> Method:
    return METHODS["fedproto"](training, weight=share)._replace(name="fedmine")


def test_a_registered_method_is_searched_as_the_others_are(config, tmp_path, monkeypatch):
    monkeypatch.setitem(FACTORIES, "fedmine", fedmine)
    space = space_of("fedmine", typed_config(config))
    assert list(space) == ["training.learning_rate", "share"] and space["share"] == (0, 1, False)
    shares = {re.search("share=([^:]+)", label)[1] for label in points_of("fedmine", space, 4)[1:]}
    assert len(shares) == 4
    config = typed_config(only(config, ["fedmine", "local"]))
    expected = ["fedmine: at its defaults", "local: every client trains alone; it has no options"]
    assert [described(entry, config) for entry in entries_of(config)] == expected


def test_a_point_whose_client_or_server_stops_being_finite_is_not_chosen(tmp_path):
    broken = {"local:a": {"not_finite": [2]}, "local:b": {"server_finite": False}}
    points = {"local": {"val_accuracy": 0.1}} | {
        k: v | {"val_accuracy": 0.9} for k, v in broken.items()
    }
    messages = []
    for _ in range(2):  # the second time from the record
        result = halved(tmp_path / "all", [2], points, messages.append)
        assert result.best == "local" and math.isnan(result.scores[2]["local:a"])
        assert "| local:a | not finite |" in table(result)
    assert messages[1:] == [
        "local:a, up to round 2: skipped, clients [2] not finite in round 2 of trial 0",
        "local:b, up to round 2: skipped, the server not finite in round 2 of trial 0",
    ]
    with pytest.raises(ValueError, match="in every setting of local a client or the server"):
        halved(tmp_path / "none", [2], {label: points[label] for label in broken})


def test_settings_that_stopped_return_where_all_that_continue_diverge(tmp_path):
    """An earlier form ended the search with an error, although two settings were finite."""
    scores = {"local": 0.2, "local:a": 0.9, "local:b": 0.8, "local:c": 0.3}

    def search_of(diverging, folder):
        saved, trained = folder / "points" / "local" / "checkpoints", []
        saved.mkdir(parents=True)

        def train(rounds, folders, done):
            trained.append((rounds, *folders))
            for label in folders:
                bad = {"not_finite": [0]} if rounds > 1 and label in diverging else {}
                done(label, [[{"round": 1, "trial": 0, "val_accuracy": scores[label]} | bad]])

        tell = [].append
        return search._halved(list(scores), [1, 2, 4], folder, train=train, tell=tell), trained

    result, trained = search_of(("local:a", "local:b"), tmp_path / "some")
    rounds = [(1, *scores), (2, "local:a", "local:b"), (2, "local", "local:c"), (4, "local:c")]
    assert (result.best, trained) == ("local:c", rounds)
    assert rounds_trained(result.scores) == 4 * 1 + 4 * 1 + 1 * 2
    assert not (tmp_path / "some" / "points" / "local" / "checkpoints").exists()
    with pytest.raises(ValueError, match="in every setting of local a client or the server"):
        search_of(tuple(scores), tmp_path / "all")
