"""A deployment gives the numbers of its simulation, bit for bit, whoever fails."""

import copy
import json
import math
import re
import signal
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest

import fedjax_ht
from fedjax_ht.deploy import client as client_side
from fedjax_ht.deploy import rounds
from fedjax_ht.deploy.client import answer
from fedjax_ht.deploy.command import serve
from fedjax_ht.deploy.messages import Envelope, pack
from fedjax_ht.deploy.plan import DeploymentEnded, description, difference, make_plan
from fedjax_ht.deploy.replies import _sharing
from fedjax_ht.deploy.server import hello
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.simulation.history import run
from tests.deploy.sites import (
    assert_same_rows,
    make_server_once,
    moved,
    never,
    simulation_of,
    sites_of,
    small_config,
    transport,
    unchanged,
)


@pytest.fixture(scope="module", autouse=True)
def servers_share_programs():
    with mock.patch.object(rounds, "make_server", make_server_once):
        yield


@pytest.fixture(scope="module")
def simulated(federation):
    return run(federation[1], 2)[1]


@pytest.fixture
def served(federation, tmp_path):
    """Returns (messages that are lost, changes of replies, options) -> (rows, lines)."""
    config, _, sites = federation

    def serve_all(lost=never, changed=unchanged, clients=sites, **options):
        lines, reached = [], transport(clients, lost, changed)
        reached = reached._replace(tell=lines.append, **options)
        rows = serve(make_plan(config), tmp_path, reached)
        return rows, lines

    return serve_all


def test_equal_to_the_simulation_and_to_its_bytes(simulated, served, tmp_path):
    rows, _ = served()
    assert_same_rows(simulated, rows)
    assert rows[-1]["accuracy"] > 0.2  # two rounds of prototypes: above chance
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written == rows and (tmp_path / "summary.md").exists()


def test_a_deployment_selects_and_counts_downloads_as_its_simulation(tmp_path):
    """Newcomers download the frozen weights once."""
    config = small_config("fedavg", rounds=3)
    config.update({"participation": 0.5, "select": "power_of_choice/1.5"})
    config.model.lora = "rank=2"
    config.method.options.weighting = "uniform"
    made, simulation = simulation_of(config)
    _, rows = run(simulation, 3)
    sites = sites_of(config, made, tmp_path / "sites")
    served = serve(make_plan(config), tmp_path / "run", transport(sites, never, unchanged))
    assert_same_rows(rows, served)
    assert rows[1]["frozen_bytes"] > 0
    with pytest.raises(ValueError, match="--secure_sums: select is power_of_choice, which reads"):
        make_plan(config, secure_sums=True)


def end_in_round_2(client, request):
    """Ends the server as it sends the second round's last request."""
    if request.header["kind"] == "train" and request.header["round"] == 1 and client == 3:
        raise KeyboardInterrupt
    return False


def test_a_server_that_ends_goes_on_from_its_checkpoint(simulated, served):
    """Clients have trained a round whose uploads never reached the server."""
    with pytest.raises(KeyboardInterrupt):
        served(end_in_round_2)
    rows, lines = served()
    assert lines[0] == "fedproto: continues after round 1"
    assert_same_rows(simulated, rows)


def test_a_server_goes_on_without_a_client_that_is_gone(federation, simulated, served, tmp_path):
    """Whether it lives or is started again."""
    _, _, sites = federation
    with pytest.raises(KeyboardInterrupt):
        served(end_in_round_2)
    rows, lines = served(clients={i: site for i, site in sites.items() if i != 3})
    assert "continuing without client 3: unreachable" in lines
    assert [row["arrived"] for row in rows[1:]] == [4, 3]
    assert_same_rows(simulated[:2], rows[:2])
    # the samples that a client began with count, not those it has now
    kept = json.loads((tmp_path / "clients.json").read_text())
    assert kept["3"]["counts"] == sites[3].counts and len(kept) == 4
    (tmp_path / "clients.json").write_text('{"0": {"client": 1}}')
    with pytest.raises(ValueError, match=r"clients.json is damaged at client 0; delete it"):
        served()


def test_a_client_that_comes_back_with_other_classes_is_left_out(federation, served):
    """The server lives on; started again, it refuses the client."""
    _, _, sites = federation
    meaning = sites[3].hello["meaning"] | {"classes": "0" * 64}
    clients, began = dict(sites), []

    def changed(client, reply):
        if not began:
            began.append(client)
            clients[3] = sites[3]._replace(hello=sites[3].hello | {"meaning": meaning})
        return reply

    rows, lines = served(clients=clients, changed=changed)
    reason = "the meaning of its samples has changed since the run began"
    assert f"client 3 is left out: {reason}" in lines
    assert [row["arrived"] for row in rows[1:]] == [3, 3]
    with pytest.raises(ValueError, match="client 3 has other names of classes than client 0"):
        served(clients=clients)


@pytest.mark.parametrize("attempts", [4, 100])
@pytest.mark.parametrize("name", ["save", "write_runs"])
def test_files_that_cannot_be_written_are_tried_again(
    simulated, served, tmp_path, monkeypatch, name, attempts
):
    """Numbers and files are those of a run that could write all the time, if it can in the end."""
    monkeypatch.setattr(rounds, "RETRY_SECONDS", 0.01)
    places = {"save": Checkpointer, "write_runs": rounds}
    write, tries = getattr(places[name], name), []

    def failing(*arguments):
        tries.append(arguments)
        if len(tries) <= attempts:
            raise OSError(24, "Too many open files")
        return write(*arguments)

    monkeypatch.setattr(places[name], name, failing)
    if attempts > rounds.MOST_FAILURES:
        with pytest.raises(OSError, match="Too many open files"):
            served()
        assert len(tries) == rounds.MOST_FAILURES
        return
    rows, lines = served()
    failures = [line for line in lines if line.endswith("Too many open files; it is tried again")]
    assert len(failures) == attempts and failures[0].startswith("round 1: ")
    assert_same_rows(simulated, rows)
    assert read_runs(tmp_path) == [rows]
    again, lines = served()
    assert again == rows and "fedproto: continues after round 2" in lines


def test_training_that_diverges_is_told_of_by_all_rows(served, monkeypatch):
    """The untrained federation's among them, which says what accuracy is lost."""
    monkeypatch.setattr(rounds.Divergence, "notes", lambda _, row: [f"{row['round']} is read"])
    _, lines = served()
    assert [f"round {n}: {n} is read" for n in range(3)] == [x for x in lines if "is read" in x]


FAILURES = {
    "silent": "no answer",
    "not_finite": "it is not finite",
    "other_shape": "it must be float32",
    "other_header": "'finite' in its header is missing or invalid",
    "renamed": "it reports unknown metrics: 'accuracy', 'trial'",
    "forged": r"a round 9 of 9: 4 of 4 arrived\x1b[2J",
}


def failed(reply, how):
    """Returns a client's reply to "train" with what `how` says wrong with it."""
    header, arrays = reply
    if how == "other_header":
        header = {name: value for name, value in header.items() if name != "finite"}
    elif how == "renamed":
        header = header | {"metrics": header["metrics"] | {"accuracy": 0.99, "trial": 3}}
    elif how == "forged":
        header = {"error": "a\nround 9 of 9: 4 of 4 arrived\x1b[2J"}
    else:
        name = next(name for name, array in arrays.items() if array.dtype == np.float32)
        wrong = arrays[name] * np.nan if how == "not_finite" else arrays[name][:, 1:]
        arrays = arrays | {name: wrong}
    return Envelope(header, arrays)


@pytest.mark.parametrize("how", FAILURES)
def test_a_round_goes_on_without_a_client_and_one_line_says_which(served, how):
    failures = []

    def lost(client, request):
        in_round_1 = request.header["kind"] == "train" and request.header["round"] == 0
        return how == "silent" and client == 2 and in_round_1

    def changed(client, reply):
        if client != 2 or "metrics" not in reply.header or failures or how == "silent":
            return reply
        failures.append(how)
        return failed(reply, how)

    rows, lines = served(lost, changed)
    (line,) = [line for line in lines if line.startswith("client")]
    assert line.startswith("client 2, round 1: ") and FAILURES[how] in line
    assert [row["arrived"] for row in rows[1:]] == [4 if how == "renamed" else 3, 4]
    assert rows[1]["trial"] == 0 and rows[1].keys() - {"absent"} == rows[2].keys()
    not_finite = [2] if how in ("not_finite", "other_shape") else []
    assert [row["not_finite"] for row in rows[1:]] == [not_finite, []]


def test_a_client_without_test_samples_has_no_accuracy_and_ends_nothing(simulated, served):
    """Nor does one that says so."""

    def changed(client, reply):
        if client != 3 or not {"val", "test"} <= reply.header.get("scores", {}).keys():
            return reply
        nothing = {}
        for split, score in reply.header["scores"].items():
            nothing[split] = {"count": 0, "correct": dict.fromkeys(score["correct"], 0)}
        return reply._replace(header=reply.header | {"scores": nothing})

    rows, _ = served(changed=changed)
    for row, full in zip(rows, simulated, strict=True):
        assert row["clients"] == [*full["clients"][:3], None]


def test_a_split_of_some_clients_is_scored_for_them_alone(monkeypatch):
    """Client 0 has validation samples, client 1 does not answer, and client 2 has test samples."""

    def scores(val, test):
        counts = {"train": 0, "val": val, "test": test}
        return {name: {"count": n, "correct": {"head": n // 2}} for name, n in counts.items()}

    replies = {2: Envelope({"scores": scores(0, 4)}, {}), 0: Envelope({"scores": scores(2, 0)}, {})}
    monkeypatch.setattr(rounds, "reachable_clients", lambda server: replies)
    monkeypatch.setattr(rounds, "ask", lambda *_: replies)
    plan = SimpleNamespace(num_clients=3)
    server = SimpleNamespace(plan=plan, counts={"train": np.array([3, 3, 3])})
    found = rounds.evaluate(server, SimpleNamespace(round=0))
    assert found.counts["val"].tolist() == [2, 0, 0] and found.counts["test"].tolist() == [0, 0, 4]
    np.testing.assert_array_equal(found.accuracy["val"]["head"], [0.5, np.nan, np.nan])
    np.testing.assert_array_equal(found.accuracy["test"]["head"], [np.nan, np.nan, 0.5])
    replies.clear()
    assert rounds.evaluate(server, SimpleNamespace(round=0)).accuracy == {}


def test_a_client_whose_loss_is_infinite_is_named_as_not_finite(served):
    """As in the simulation, and not as one whose header cannot be read."""

    def changed(client, reply):
        if client != 2 or "metrics" not in reply.header:
            return reply
        metrics = dict.fromkeys(reply.header["metrics"], math.inf)
        return Envelope(reply.header | {"finite": False, "metrics": metrics}, {})

    rows, lines = served(changed=changed)
    assert [(row["arrived"], row["not_finite"], row.get("absent")) for row in rows[1:]] == [
        (3, [2], None),
        (3, [2], None),
    ]
    assert not any("header" in line for line in lines) and math.isfinite(rows[-1]["loss"])


def test_the_log_names_who_is_far_off_and_refused(served):
    def changed(client, reply):
        if client != 2 or not reply.arrays:
            return reply
        arrays = dict(reply.arrays)
        for name, array in arrays.items():
            arrays[name] = array * 1e6 if array.dtype == np.float32 else array
        return reply._replace(arrays=arrays)

    rows, lines = served(changed=changed)
    assert [row["refused"] for row in rows[1:]] == [[2], [2]]
    assert "round 1: outlying uploads refused, by refuse_outliers: client 2" in lines
    (line,) = [line for line in lines if "the median norm" in line]
    assert line.startswith("round 1: outlying uploads: client 2 (")


def deserted(sites, lines, kinds, phrase, times):
    """Loses requests of these kinds after round 1, until the lines have a phrase so many times."""

    def lost(client, request):
        has_begun = any(line.startswith("round 1 of 2") for line in lines)
        count = sum(phrase in line for line in lines)
        return has_begun and request.header["kind"] in kinds and count < times

    return transport(sites, lost, tell=lines.append)


@pytest.mark.parametrize("waits", [False, True], ids=["in a round", "without clients"])
def test_a_signal_lets_the_round_end_and_saves_it(
    federation, simulated, tmp_path, monkeypatch, waits
):
    """Also while the server waits for clients; the same command then continues."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.01)
    _, _, sites = federation
    config, lines, asked = small_config(), [], []
    config.checkpoint.every = 2

    def signalled(client, request):
        """Loses no message, but, if the server is to wait, greetings after the first round."""
        is_greeting = request.header["kind"] == "hello"
        has_begun = any(line.startswith("round 1 of 2") for line in lines)
        is_due = is_greeting and has_begun if waits else request.header["kind"] == "train"
        if is_due and not asked:
            asked.append(client)
            signal.raise_signal(signal.SIGTERM)
        return waits and is_greeting and has_begun

    def at_once(number, frame):
        raise RuntimeError("the signal ended the server at once")

    before = signal.signal(signal.SIGTERM, at_once)
    try:
        waiting = transport(sites, signalled)._replace(tell=lines.append, patience=30.0)
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            serve(make_plan(config), tmp_path, waiting)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [path.name for path in (tmp_path / "checkpoints").glob("[0-9]*")] == ["1"]
    assert not (tmp_path / "summary.md").exists()
    rows = serve(make_plan(config), tmp_path, transport(sites)._replace(tell=lines.append))
    assert "fedproto: continues after round 1" in lines
    assert_same_rows(simulated, rows)


def test_requests_of_a_round_share_the_arrays_of_one_model(served):
    """One copy of an architecture's model is in memory, not one for each client."""
    asked = {}

    def lost(client, request):
        if request.header["kind"] == "train" and request.header["round"] == 1:
            asked[client] = request.arrays
        return False

    served(lost)
    addresses = {}
    for arrays in asked.values():
        for name, array in arrays.items():
            addresses.setdefault(name, set()).add(array.__array_interface__["data"][0])
    assert len(asked) == 4 and [len(places) for places in addresses.values()] == [2] * len(
        addresses
    )
    zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
    shared = _sharing({"a": -zero, "b": one.copy(), "c": one}, {"a": zero, "b": one})
    assert np.signbit(shared["a"]).all() and shared["b"] is one and shared["c"] is one


def test_a_run_does_not_go_back(served, federation, tmp_path):
    """Its summary would show the later rounds."""
    _, _, sites = federation
    served()
    config = small_config(rounds=1)
    message = r"fedproto has 2 rounds in .*, but rounds is 1; a run cannot go back: set rounds to 2"
    with pytest.raises(ValueError, match=message) as error:
        serve(make_plan(config), tmp_path, transport(sites))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kinds", "phrase", "times"), [(("hello",), "can be reached", 1), (("train",), "took part", 2)]
)
def test_a_round_in_which_no_client_takes_part_does_not_count(
    federation, simulated, tmp_path, monkeypatch, kinds, phrase, times
):
    """The run waits, and its numbers are those of a run without any absence."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.01)
    config, _, sites = federation
    lines = []
    waiting = deserted(sites, lines, kinds, phrase, times)
    rows = serve(make_plan(config), tmp_path, waiting._replace(tell=lines.append, patience=30.0))
    assert sum(phrase in line for line in lines) == times
    assert_same_rows(simulated, rows)


def test_a_client_that_always_fails_ends_no_run_of_others(tmp_path, monkeypatch):
    """The seed draws the same participants again, from those that may take part."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    config = small_config(rounds=1)
    config.update({"participation": 0.25})
    sites, asked = sites_of(config, simulation_of(config)[0], tmp_path / "sites"), []

    def fails(client, request):
        if request.header["kind"] == "train":
            asked.append(client)
        return request.header["kind"] == "train" and client == asked[0]

    rows = serve(make_plan(config), tmp_path / "run", transport(sites, fails))
    assert len(asked) == 2 and rows[-1]["arrived"] == 1


def test_a_group_that_fails_once_is_asked_again(monkeypatch):
    """With sums, the others alone may be too few to ask any."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    everyone, asked = {i: {} for i in range(5)}, []

    def try_round(server, state, headers):
        asked.append([i for i in (0, 1, 2) if set(range(3)) <= set(headers)])
        return SimpleNamespace(ids=np.array(asked[-1], int)), {0: None} if len(asked) == 3 else {}

    monkeypatch.setattr(rounds, "_await_clients", lambda *_: everyone)
    monkeypatch.setattr(rounds, "_try_round", try_round)
    plan = SimpleNamespace(config=SimpleNamespace(give_up=4))
    server = SimpleNamespace(plan=plan, transport=SimpleNamespace(tell=print))
    rounds._play_until_replies(server, SimpleNamespace(round=0))
    assert asked == [[0, 1, 2], [], [0, 1, 2]]


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("hello", "train"), "round 2: no client can be reached in 0.1 s"),
        (("train",), "round 2: no client took part, so the round does not count; gave up after 3"),
    ],
)
def test_a_run_without_clients_stops_and_continues_later(
    federation, simulated, tmp_path, monkeypatch, kinds, message
):
    """A run that is not done writes no table."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.01)
    _, _, sites = federation
    config, lines = small_config(), []
    config.give_up = 3
    gone = deserted(sites, lines, kinds, message, 1)
    with pytest.raises(DeploymentEnded, match=message) as error:
        serve(make_plan(config), tmp_path, gone._replace(tell=lines.append, patience=0.1))
    assert str(error.value).endswith("The same command continues from the last checkpoint")
    assert not (tmp_path / "summary.md").exists()
    rows = serve(make_plan(config), tmp_path, transport(sites)._replace(tell=lines.append))
    assert_same_rows(simulated, rows)
    assert (tmp_path / "summary.md").exists()


def test_first_weights_are_compared_by_their_content(tmp_path):
    config, plans = small_config(), []
    config.model.weights = str(tmp_path / "first.npz")
    for value in (0.0, 1.0):
        np.savez(tmp_path / "first.npz", value=value)
        plans.append(description(make_plan(config)))
    assert re.search(r"first.npz \(SHA-256\) '.*, not '", difference(*plans))
    assert not difference(plans[1], description(make_plan(config)))


def test_another_config_or_version_is_refused_by_the_client(federation, tmp_path):
    _, _, sites = federation
    changed, lines = small_config(), []
    changed.training.learning_rate = 0.5
    with pytest.raises(ValueError, match="4 of 4 clients cannot be reached: 0, 1, 2, 3"):
        serve(make_plan(changed), tmp_path, transport(sites, tell=lines.append))
    assert "client 0 is left out: it has another config: training.learning_rate 0.01" in lines[0]
    draws = sites[0].hello["fields"] | {"jax_default_prng_impl": "rbg"}
    hello = {"kind": "hello", "about": sites[0].hello | {"fields": draws}}
    error = answer(sites[0], Envelope(hello, {})).header["error"]
    assert error == "it has another config: jax_default_prng_impl 'threefry2x32', not 'rbg'"
    hello = {"kind": "hello", "about": sites[0].hello | {"version": "9.0"}}
    line = f"it has fedjax_ht {fedjax_ht.__version__}, not 9.0"
    assert answer(sites[0], Envelope(hello, {})).header["error"] == line


def test_a_client_says_at_home_why_it_is_left_out(federation):
    _, _, sites = federation
    lines, request = [], hello(sites[1].plan)
    site = sites[1]._replace(tell=lines.append)

    def header_for(owner):
        return answer(site, request._replace(header=request.header | owner)).header

    assert header_for({})["client"] == 1 and "error" not in header_for({})
    assert "error" not in header_for({"owner": 1}) and lines == []
    error = header_for({"owner": 2})["error"]
    assert error == "its key is that of client 2" and lines == [f"client 1 is left out: {error}"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "has no state after 4 rounds"),
        ({"kind": "delete"}, "the server sent a request of unknown kind 'delete'"),
        ({"last_round": -1}, "the downlink lacks"),
    ],
    ids=["state", "kind", "arrays"],
)
def test_a_request_that_a_client_cannot_answer_is_one_line(federation, change, message):
    _, _, sites = federation
    header = {"kind": "train", "run": "a", "round": 5, "last_round": 3, "oldest": 0}
    assert message in answer(sites[1], Envelope(header | change, {})).header["error"]


@pytest.mark.parametrize("invented", ["runs", "rounds"])
def test_a_server_cannot_fill_a_clients_disk(federation, tmp_path, monkeypatch, invented):
    """Each request is of a run, or a round, of its own, and none lets a state be deleted."""
    _, _, sites = federation
    monkeypatch.setattr(client_side, "MAX_STATES", 3)
    lines = []
    site = moved(sites[1], tmp_path, tell=lines.append)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), site.downlink_form)
    replies = []
    for i in range(5):
        where = {"run": f"run{i}", "round": 0} if invented == "runs" else {"run": "run", "round": i}
        header = {"kind": "train", "last_round": -1, "oldest": 0, **where}
        replies.append(answer(site, Envelope(header, pack(zeros))).header)
    assert [reply.get("finite") for reply in replies] == [True, True, True, None, None]
    assert "has 3 states of" in replies[3]["error"] and replies[3]["error"] in lines[-2]
    assert len(list(tmp_path.glob("*/*/seal.json"))) == 3


def test_a_server_asks_no_client_for_more_states_than_it_keeps(federation, tmp_path):
    config, _, sites = federation
    many = copy.deepcopy(config)
    many.rounds, many.checkpoint.every, many.checkpoint.keep = 5000, 500, 2
    with pytest.raises(ValueError, match="500 rounds times 2 checkpoints are 1000 states, but a"):
        serve(make_plan(many), tmp_path, transport(sites))


def test_secure_sums_are_of_both_sides_and_never_leave_unmasked(federation):
    """Before anything is trained."""
    config, _, sites = federation
    plain, secure = make_plan(config), make_plan(config, secure_sums=True)
    clients = {False: sites[1], True: sites[1]._replace(plan=secure)}

    def error_of(client, request):
        return answer(client, request).header["error"]

    for flag, other in ((False, secure), (True, plain)):
        error = error_of(clients[flag], hello(other))
        assert error == f"it has another config: secure_sums {flag}, not {not flag}"
    header = {"kind": "train", "run": "a", "round": 0, "last_round": -1, "oldest": 0}
    masked = Envelope(header | {"masked": True}, {})
    for unmasked in (header, header | {"masked": False}):
        error = error_of(clients[True], Envelope(unmasked, {}))
        assert (
            "with --secure_sums, but its answer would leave unmasked; also start the server"
            in error
        )
    error = error_of(clients[False], masked)
    assert "without --secure_sums, but its answer would leave masked; start it" in error
    assert "the downlink lacks" in error_of(clients[True], masked)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scoring.auc", True),
        ("scoring.state", "both"),
        ("trials", 2),
        ("drop_rate", 0.5),
        ("scoring.adapt_epochs", 5),
        ("new_share", 0.2),
        ("devices_profile.available", "0.5"),
        ("dataset.task", "regression"),
        ("dataset.normalisation", "dataset"),
        ("dataset.backbone", f"resnet4:{__file__}"),
        ("track", ("tensorboard",)),
    ],
)
def test_fields_of_simulations_are_refused(field, value):
    config = small_config()
    config.update({field: value})
    name = field.removesuffix(".available")
    message = f"^{name} is .*{value}.*; a deployment, whose clients are real, needs "
    with pytest.raises(ValueError, match=message):
        make_plan(config)
