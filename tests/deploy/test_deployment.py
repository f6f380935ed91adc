"""A federation whose clients are elsewhere gives what the simulation gives, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_ht.deploy import rounds, states
from fedjax_ht.deploy.ended import Ended
from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.messages import pack
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.serve import serve
from fedjax_ht.deploy.server import hello
from fedjax_ht.deploy.site import answer
from fedjax_ht.simulation.history import run
from tests.deploy.sites import (
    assert_same_rows,
    moved,
    simulation_of,
    sites_of,
    small_config,
    transport,
)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """(config, its simulation, its clients); compiled once."""
    config = small_config()
    experiment, simulation = simulation_of(config)
    return config, simulation, sites_of(config, experiment, tmp_path_factory.mktemp("sites"))


def simulated(simulation, rounds):
    return run(simulation, rounds)[1]


def test_equal_to_the_simulation_and_to_its_bytes(federation, tmp_path):
    config, simulation, sites = federation
    rows = serve(make_plan(config), tmp_path, transport(sites), print)
    assert_same_rows(simulated(simulation, 2), rows)
    assert rows[-1]["accuracy"] > 0.2  # two rounds of prototypes: above chance
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written == rows and (tmp_path / "summary.md").exists()


def test_a_server_that_ends_goes_on_from_its_checkpoint_and_its_clients_with_it(
    federation, tmp_path
):
    """Its clients have trained a round that it never heard of."""
    config, simulation, sites = federation

    def end_in_round_2(client, letter):
        if letter.head["kind"] == "train" and letter.head["round"] == 1 and client == 3:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        serve(make_plan(config), tmp_path, transport(sites, end_in_round_2), print)
    said = []
    rows = serve(make_plan(config), tmp_path, transport(sites), said.append)
    assert said[0] == "fedproto: goes on after round 1"
    assert_same_rows(simulated(simulation, 2), rows)


@pytest.mark.parametrize(
    "how", ["silent", "not_finite", "other_shape", "other_head", "huge", "forged", "infinite"]
)
def test_a_round_goes_on_without_a_client_and_one_line_says_who(federation, tmp_path, how):
    config, _, sites = federation

    def in_round_1(letter):
        return letter.head["kind"] == "train" and letter.head["round"] == 0

    def lost(client, letter):
        return how == "silent" and client == 2 and in_round_1(letter)

    def changed(client, reply):
        if client != 2 or "metrics" not in reply.head or changed.done or how == "silent":
            return reply
        changed.done = True
        heads = {
            "other_head": {k: v for k, v in reply.head.items() if k != "finite"},
            "huge": reply.head | {"metrics": {"loss": 10**400}},
            "infinite": reply.head | {"seconds": float("inf")},
            "forged": {"error": "a\nround 9 of 9: 4 of 4 arrived\x1b[2J"},
        }
        if how in heads:
            return Envelope(heads[how], reply.arrays)
        name = next(name for name, x in reply.arrays.items() if x.dtype == np.float32)
        wrong = reply.arrays[name] * np.nan if how == "not_finite" else reply.arrays[name][:, 1:]
        return Envelope(reply.head, reply.arrays | {name: wrong})

    changed.done = False
    said = []
    rows = serve(make_plan(config), tmp_path, transport(sites, lost, changed), said.append)
    (line,) = [line for line in said if line.startswith("client")]
    words = {
        "silent": "no answer",
        "not_finite": "it is not finite",
        "other_shape": "it must be float32",
    }
    words |= {
        "other_head": "what it says of 'finite' cannot be read",
        "huge": "of 'metrics' cannot be read",
    }
    words |= {
        "infinite": "of 'seconds' cannot be read",
        "forged": r"a round 9 of 9: 4 of 4 arrived\x1b[2J",
    }
    assert line.startswith("client 2, round 1: ") and words[how] in line
    assert [row["arrived"] for row in rows[1:]] == [3, 4]
    assert [row["not_finite"] for row in rows[1:]] == [
        [2] if how in ("not_finite", "other_shape") else [],
        [],
    ]


def deserted(sites, lines, kinds, words, times):
    """A transport that loses letters of `kinds` after round 1 until `words` were said so many
    times."""

    def lost(client, letter):
        begun = any(line.startswith("round 1 of 2") for line in lines)
        return (
            begun and letter.head["kind"] in kinds and sum(words in line for line in lines) < times
        )

    return transport(sites, lost, tell=lines.append)


@pytest.mark.parametrize(
    ("kinds", "words"), [(("hello",), "can be reached"), (("train",), "took part")]
)
def test_a_round_in_which_nobody_takes_part_is_none(
    federation, tmp_path, monkeypatch, kinds, words
):
    """The run waits, and its numbers are those of a run in which they never were away."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.01)
    config, simulation, sites = federation
    lines, times = [], {"hello": 1, "train": 2}[kinds[0]]
    rows = serve(
        make_plan(config),
        tmp_path,
        deserted(sites, lines, kinds, words, times),
        lines.append,
        patience=30.0,
    )
    assert sum(words in line for line in lines) == times
    assert_same_rows(simulated(simulation, 2), rows)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (("hello", "train"), "round 2: no client can be reached, after 0.1 s"),
        (
            ("train",),
            "round 2: no client took part, and it does not count; 3 tries are as many as give_up "
            "says",
        ),
    ],
)
def test_a_run_that_is_left_alone_stops_and_goes_on_later(
    federation, tmp_path, monkeypatch, kinds, words
):
    """Without a table: it is not done."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.01)
    _, simulation, sites = federation
    config, lines = small_config(), []
    config.give_up = 3
    gone = deserted(sites, lines, kinds, words, 1)
    with pytest.raises(Ended, match=words) as error:
        serve(make_plan(config), tmp_path, gone, lines.append, patience=0.1)
    assert str(error.value).endswith("The same command goes on from the last checkpoint")
    assert not (tmp_path / "summary.md").exists()
    rows = serve(make_plan(config), tmp_path, transport(sites), lines.append)
    assert_same_rows(simulated(simulation, 2), rows)
    assert (tmp_path / "summary.md").exists()


def test_another_config_or_version_is_refused_by_the_client(federation, tmp_path):
    _, _, sites = federation
    own, said = small_config(), []
    own.training.learning_rate = 0.5
    with pytest.raises(ValueError, match="of 4 clients 4 are not there: 0, 1, 2, 3"):
        serve(make_plan(own), tmp_path, transport(sites, tell=said.append), print)
    assert (
        said[0]
        == "client 0 is left out: it has another config: training.learning_rate 0.01, not 0.5"
    )
    hello = {"kind": "hello", "about": sites[0].hello | {"version": "9.0"}}
    assert answer(sites[0], Envelope(hello, {})).head["error"] == "it has fedjax_ht 0.1.0, not 9.0"


def test_a_client_says_at_home_why_it_is_left_out(federation):
    _, _, sites = federation
    lines, letter = [], hello(sites[1].plan)
    site = sites[1]._replace(tell=lines.append)
    assert answer(site, letter).head["client"] == 1 and "error" not in answer(site, letter).head
    assert (
        "error" not in answer(site, letter._replace(head=letter.head | {"owner": 1})).head
        and lines == []
    )
    told = answer(site, letter._replace(head=letter.head | {"owner": 2})).head["error"]
    assert told == "its key is that of client 2" and lines == [f"client 1 is left out: {told}"]


def test_what_a_client_cannot_answer_is_one_line(federation):
    _, _, sites = federation
    head = {"kind": "train", "run": "a", "round": 5, "last_round": 3, "oldest": 0}
    assert "has no state after 4 rounds" in answer(sites[1], Envelope(head, {})).head["error"]
    assert (
        answer(sites[1], Envelope({"kind": "delete"}, {})).head["error"]
        == "a message of kind 'delete'"
    )
    deleted = answer(sites[1], Envelope(head | {"oldest": 10**9}, {})).head["error"]
    assert "states older than 1000000000 rounds to be deleted" in deleted
    assert (
        "a run called '../x'"
        in answer(sites[1], Envelope(head | {"run": "../x"}, {})).head["error"]
    )
    assert (
        "the downlink lacks"
        in answer(sites[1], Envelope(head | {"last_round": -1}, {})).head["error"]
    )


@pytest.mark.parametrize("invented", ["runs", "rounds"])
def test_a_server_cannot_fill_a_clients_disk(federation, tmp_path, monkeypatch, invented):
    """Each message is of a run, or a round, of its own, and none lets a state go."""
    _, _, sites = federation
    monkeypatch.setattr(states, "MOST", 3)
    lines = []
    site = moved(sites[1], tmp_path, tell=lines.append)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), site.downlink)
    replies = []
    for i in range(5):
        where = {"run": f"run{i}", "round": 0} if invented == "runs" else {"run": "run", "round": i}
        head = {"kind": "train", "last_round": -1, "oldest": 0, **where}
        replies.append(answer(site, Envelope(head, pack(zeros))).head)
    assert [reply.get("finite") for reply in replies] == [True, True, True, None, None]
    assert "has 3 states of" in replies[3]["error"] and replies[3]["error"] in lines[-2]
    assert len(list(tmp_path.glob("*/*/seal.json"))) == 3


def test_a_server_asks_no_client_for_more_states_than_it_keeps(federation, tmp_path):
    config, _, sites = federation
    many = config.copy_and_resolve_references()
    many.rounds, many.checkpoint.every, many.checkpoint.keep = 5000, 500, 2
    with pytest.raises(
        ValueError,
        match="500 rounds by 2 checkpoints are 1000 states, and a client keeps fewer than",
    ):
        serve(make_plan(many), tmp_path, transport(sites), print)


def test_secure_sums_are_of_both_sides_and_never_leave_unmasked(federation):
    """Before anything is trained."""
    config, _, sites = federation
    plain, secure = make_plan(config), make_plan(config, secure_sums=True)
    there = {False: sites[1], True: sites[1]._replace(plan=secure)}
    for flag, other in ((False, secure), (True, plain)):
        said = answer(there[flag], hello(other)).head["error"]
        assert said == f"it has another config: secure_sums {flag}, not {not flag}"
    head = {"kind": "train", "run": "a", "round": 0, "last_round": -1, "oldest": 0}
    for unmasked in (head, head | {"masked": False}):
        said = answer(there[True], Envelope(unmasked, {})).head["error"]
        assert (
            said
            == "this client was started with --secure_sums, and its answer would leave unmasked"
        )
    said = answer(there[False], Envelope(head | {"masked": True}, {})).head["error"]
    assert (
        said == "this client was started without --secure_sums, and its answer would leave masked"
    )
    assert (
        "the downlink lacks"
        in answer(there[True], Envelope(head | {"masked": True}, {})).head["error"]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trials": 2}, "trials is 2; a deployment, whose clients are real, takes 1 alone"),
        ({"drop_rate": 0.5}, "drop_rate is 0.5"),
        ({"devices_profile.available": "0.5"}, "devices_profile is {.*'available': '0.5'"),
        ({"dataset.normalisation": "dataset"}, "dataset.normalisation is 'dataset'"),
    ],
    ids=["trials", "drops", "devices", "moments"],
)
def test_what_only_a_simulation_can_do_is_refused(change, words):
    config = small_config()
    config.update_from_flattened_dict(change)
    with pytest.raises(ValueError, match=words):
        make_plan(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["local", "fedtgp", "fedssa", "fedktl", "fedrolex", "fml", "fedgen"]
)
def test_equal_to_the_simulation(method):
    """In a process of its own: with XLA's optimisations off, as in the tests', another program may
    round otherwise."""
    alone = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    words = [sys.executable, "-m", "tests.deploy.equal", method]
    done = subprocess.run(
        words, env=alone, cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
