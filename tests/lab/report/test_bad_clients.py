"""Runs among clients that attack: what is scored, what is said, and when a run gives up."""

import json

import numpy as np
import pytest

from experiments.configs import attacked
from fedjax_ht.core.method import View
from fedjax_ht.lab.config.base import base_config, typed_config
from fedjax_ht.lab.config.entries import only
from fedjax_ht.lab.report.bad_clients import Notes, outliers, why_silent
from fedjax_ht.lab.report.results import Aim
from fedjax_ht.lab.runs.compare import write_comparison
from fedjax_ht.lab.runs.method import evaluated_clients
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.play import play, simulate, with_noted_lanes
from fedjax_ht.lab.runs.progress import Progress
from fedjax_ht.lab.runs.train import GaveUp, train_and_evaluate
from fedjax_ht.trust.attacks import attackers
from fedjax_ht.trust.options import Attack
from tests.runs import config_of, metrics


def rows(arrived, far_off=()):
    """One row a round, from the untrained federation on."""
    history = []
    for i, n in enumerate(arrived, 1):
        history.append({"round": i, "trial": 0, "arrived": n, "far_off": []})
    for round, outlying in far_off:
        history[round - 1]["far_off"] = outlying
    return [{"round": 0, "trial": 0}, *history]


def test_a_line_says_since_when_nothing_has_arrived_and_who_was_far_off():
    runs = [rows([3, 3, 0, 0], [(1, [[7, 40.0]]), (2, [[2, 1e30], [3, 12.0]])])]
    assert why_silent("fedavg", runs, 3) is None
    assert why_silent("fedavg", runs, 0) is None  # 0: never
    assert why_silent("fedavg", [*runs, rows([3, 3, 0, 1])], 2) is None
    line = why_silent("fedavg", runs, 2)
    assert line.startswith("fedavg stopped in round 4: since round 2 nothing has arrived that")
    named = "outlying uploads in round 2: client 2 (1e+30x the median norm), client 3 (12x); "
    assert named in line
    assert "outlying" not in why_silent("fedavg", [rows([0, 0])], 2)


def test_the_largest_outliers_are_named():
    two = "client 2 (21.8x the median norm), client 15 (14.8x)"
    assert outliers([[2, 21.84], [15, 14.8]]) == two
    many = [[client, 30.0 + client % 5] for client in range(6)]
    text = "client 2 (32x the median norm), client 3 (33x), client 4 (34x), and 3 more"
    assert outliers(many) == text


def test_trouble_of_every_trial_is_told_once_a_client():
    notes = Notes()
    row = {"trial": 0, "round": 3, "not_finite": [2], "server_finite": True, "far_off": []}
    first = ["not finite, excluded from the round: client 2"]
    assert notes.of("local", row) == first
    assert notes.of("local", row | {"round": 4}) == []
    others = ["not finite, excluded from the round: clients 5, 6"]
    assert notes.of("local", row | {"not_finite": [2, 5, 6]}) == others
    assert notes.of("local", row | {"trial": 1}) == first
    assert notes.of("fd", row | {"server_finite": False, "far_off": [[4, 21.84], [7, 1e30]]}) == [
        *first,
        "the server's step was not finite; its last state was kept",
        "outlying uploads: client 4 (21.8x the median norm), client 7 (1e+30x)",
    ]
    refused = ["outlying uploads refused, by refuse_outliers: client 7"]
    assert notes.of("fd", row | {"not_finite": [], "refused": [7]}) == refused
    assert notes.of("fd", {"trial": 0, "round": 0}) == []


SCALED = {"kind": "scaled", "share": 0.25, "strength": 1e30}


def config_with(path, *entries, **fields):
    """Returns the config of a file with these entries alone and other fields."""
    config = only(config_of(path), entries)
    config.report.maps = "none"
    config.update(fields)
    return config


def test_the_log_tells_it_at_once_also_where_nothing_is_evaluated(capsys):
    progress = Progress(rounds=4, trials=2)
    row = {"round": 1, "not_finite": [2], "server_finite": True, "far_off": []}
    for trial in (0, 1):
        progress("local", row | {"trial": trial, "seconds_round": 1.0, "seconds_evaluation": 0.0})
    line = "local, trial {}, round 1: not finite, excluded from the round: client 2"
    assert capsys.readouterr().err.splitlines() == [line.format(0), line.format(1)]


def test_a_method_warns_of_every_trial(tiny_config, tmp_path):
    config = config_with(tiny_config, "local", trials=2, devices=1, rounds=2)
    (run,), warned = plan(config).runs.values(), []
    view = View(warn=lambda row: "odd" if row["trial"] == 0 else None)

    def tell(kind, *what):
        if kind == "warn":
            warned.extend(what)

    play(run._replace(method=run.method._replace(view=view)), tmp_path, tell, [])
    assert warned == ["local, trial 0, round 1: odd"]


def test_honest_clients_are_scored():
    config = base_config()
    assert vars(config.attack) == vars(Attack())
    assert evaluated_clients(typed_config(config)) is None
    config.attack.update({"kind": "noise", "share": 0.3, "seed": 4})
    honest = ~attackers(Attack("noise", 0.3, seed=4), 20)
    np.testing.assert_array_equal(evaluated_clients(typed_config(config)), np.flatnonzero(honest))
    config.evaluate.sample = 5
    some = evaluated_clients(typed_config(config))
    assert len(some) == 5 and honest[some].all() and (np.diff(some) > 0).all()
    np.testing.assert_array_equal(evaluated_clients(typed_config(config)), some)


def test_the_committed_config_takes_attacks_and_defences():
    config = attacked.get_config("attack=sign_flip,share=0.3,robust=median")
    assert vars(config.attack) == vars(Attack("sign_flip", 0.3, 5.0, seed=1))
    assert [entry[0] for entry in config.robust] == ["norm_bound", "median"]
    last = {entry[-1][0] for entry in attacked.DEFENCES.values() if entry}
    assert set(attacked.DEFENCES) - {"none"} == last


def test_a_run_in_which_nothing_arrives_stops_and_the_next_entry_goes_on(
    blank_pictures, tiny_config, tmp_path
):
    fields = {"rounds": 5, "give_up": 2, "refuse_outliers": 0.0, "attack": SCALED}
    config = config_with(tiny_config, "lg_fedavg", "local", **fields)
    silence = r"^lg_fedavg stopped in round [34]: .* client \d"
    with pytest.raises(GaveUp, match=silence) as stopped:
        train_and_evaluate(config, tmp_path, warn=lambda line: None)
    written = write_comparison(config, stopped.value.result, Aim(), tmp_path)
    assert all(path.exists() for path in written)
    short, whole = (metrics(tmp_path, name) for name in config.entries)
    assert len(short) < len(whole) == 6 and short[1]["far_off"] and not whole[1]["far_off"]
    assert "outlying uploads: client" in (tmp_path / "report.html").read_text()
    assert len(whole[-1]["clients"]) == 3
    config.give_up = 0
    result = train_and_evaluate(config, tmp_path, warn=lambda line: None)  # it goes on from there
    assert {len(history) for (history,) in result.histories.values()} == {6}


def test_entries_of_other_architectures_note_their_lanes_in_one_file(tiny_config, tmp_path):
    other = "fedavg:model.group=conv4_quarter:model.norm=static_batch"
    entries = ("local", other, "local:training.epochs=2")
    config = config_with(tiny_config, *entries, dataset={"image_size": 16})
    arms, noted = plan(config).runs, tmp_path / "lanes.json"
    for name in entries:
        with_noted_lanes(arms[name], noted, writes=True)
    known = json.loads(noted.read_text())
    assert {"mlp_narrow", "mlp_wide"} < set(known) and len(known) == 3
    noted.write_text(json.dumps(dict.fromkeys(known, 2)))
    run = with_noted_lanes(arms["local"], noted, writes=True)
    assert set(simulate(run).lanes.values()) == {2}
    noted.write_text("{")
    with pytest.raises(ValueError, match=r"lanes\.json is not readable as JSON"):
        with_noted_lanes(arms["local"], noted, writes=True)
