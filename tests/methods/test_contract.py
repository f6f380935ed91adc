"""Properties that every registered method must have: the same checks for all, on a few compiled
simulations a method.

A new method enters by its name in LIBRARY, and in WIRE and METADATA of tests/method_wires.py.
"""

import json
import os

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods.shared.checking import check_method
from fedjax_ht.simulation.options import choose_participants
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import (
    NUM_CLIENTS,
    ONE_ARCHITECTURE,
    TEST_COUNTS,
    changed,
    each_client,
    federation_data,
    federation_for,
    identical,
    play,
    to_device,
    to_host,
)
from tests.marks import every_method, thoroughly
from tests.method_wires import METADATA, SAMPLES, WIRE, Sent
from tests.methods.recording import (
    ALL_BAD,
    BAD_STATE,
    BAD_UPLINK,
    DISTILLED,
    NO_TRAINING,
    OPTIONS,
    RECORDED,
    RELEASED,
    history,
    method_of,
    numbers,
    options_for,
    played,
    released_form,
    simulation,
)


def finite(tree) -> bool:
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


@every_method
def test_finite(name):
    """Also for a client that fills no batch, one without samples, and a class that nobody has."""
    states, reports = history(name)
    assert {2, 3} <= set(np.concatenate([r.participants for r in reports]))
    for state, report in zip(states[1:], reports):
        assert finite((state.server, state.clients, report.metrics, report.server_metrics))
        assert report.metrics and not report.not_finite
    for state in (states[0], states[-1]):
        scored = simulation(name).evaluate(to_device(state))
        np.testing.assert_array_equal(scored.counts["test"], TEST_COUNTS)
        for rule in method_of(name).rules:
            accuracy = scored.accuracy["test"][rule]
            np.testing.assert_array_equal(np.isnan(accuracy), TEST_COUNTS == 0)
            assert (accuracy[TEST_COUNTS > 0] >= 0).all() and (accuracy[TEST_COUNTS > 0] <= 1).all()


@thoroughly
def test_masked_samples_and_absent_clients_change_nothing(name):
    check_method(method_of(name), federation_for(name))


# Other vector instructions and jax 0.11 leave 1e-6 of them, but for Adam on the tiny gradients of a
# generator.
RELATIVE, ABSOLUTE = {"fedgen released": 1e-2}, 1e-6


def as_lines(recorded: dict[str, list]) -> str:
    """JSON with a line for each round."""
    entries = []
    for entry, rows in sorted(recorded.items()):
        lines = ",\n".join(map(json.dumps, rows))
        entries.append(f"{json.dumps(entry)}: [\n{lines}\n]")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def check_recorded(entry: str, rows: list[dict[str, float]]) -> None:
    """FEDJAX_HT_RECORD=1 with -n0 records numbers that are meant to move, in one process."""
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("FEDJAX_HT_RECORD"):
        recorded[entry] = [{k: float(f"{v:.7g}") for k, v in row.items()} for row in rows]
        RECORDED.write_text(as_lines(recorded))
        return
    assert len(recorded[entry]) == len(rows) == 3
    for row, before in zip(rows, recorded[entry]):
        assert row.keys() == before.keys()
        for key, value in before.items():
            assert row[key] == pytest.approx(value, rel=RELATIVE.get(entry, 2e-5), abs=ABSOLUTE), (
                key
            )


@every_method
def test_recorded_numbers(name):
    """A change that moves a method's numbers is seen."""
    check_recorded(name, numbers(*history(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RELEASED, *DISTILLED])
def test_recorded_numbers_of_released_forms(name):
    method, federation = released_form(name), federation_for(name)
    sim = make_simulation(method, federation, federation_data(federation), options_for(name))
    check_recorded(f"{name} released", numbers(*played(sim, 3)))


@thoroughly
def test_same_seed_same_bits(name):
    states, reports = history(name)
    again, reports_again = history(name, build=1)
    assert all(map(identical, states, again))
    assert [r.metrics for r in reports] == [r.metrics for r in reports_again]
    assert [r.server_metrics for r in reports] == [r.server_metrics for r in reports_again]


@thoroughly
def test_another_seed_differs(name):
    (start, _), _ = history(name, rounds=1)
    other = simulation(name, seed=1)
    assert changed(federation_for(name), start, to_host(other.init())) == set(range(NUM_CLIENTS))
    if name in NO_TRAINING:
        return
    # From the same state, too: batches are drawn in another order.
    first, second = (play(s, start, [0, 5, 6])[0] for s in (simulation(name), other))
    assert changed(federation_for(name), first, second) >= {0, 5}


VARIANTS = {
    "lanes and padding": {"lanes": 4, "padding": 3},
    "host store": {"client_store": "host"},
    "bucket order": {"reverse": True},
}


@thoroughly
@pytest.mark.parametrize("variant", VARIANTS)
def test_same_numbers_whatever_runs_them(name, variant):
    if variant == "bucket order" and name in ONE_ARCHITECTURE:
        pytest.skip("runs on one bucket only")
    states, reports = history(name)
    other_states, other_reports = history(name, **VARIANTS[variant])
    plain, varied = federation_for(name), federation_for(name, reverse=variant == "bucket order")
    for a, b in zip(states, other_states):
        chex.assert_trees_all_close(a.server, b.server, rtol=0, atol=1e-5)
        chex.assert_trees_all_close(
            each_client(plain, a), each_client(varied, b), rtol=0, atol=1e-5
        )
    for a, b in zip(reports, other_reports):
        chex.assert_trees_all_close(
            (a.metrics, a.server_metrics), (b.metrics, b.server_metrics), rtol=1e-5, atol=1e-5
        )
        assert (a.arrived, a.uplink, a.downlink) == (b.arrived, b.uplink, b.downlink)


@thoroughly
def test_a_bad_client_spoils_no_neighbour(name):
    """Side by side in lanes, one client that is not finite changes nothing for the others."""
    (start, *_), _ = history(name)
    variant = VARIANTS["lanes and padding"]
    alone, beside = (
        play(s, start, [0, 1, 2, 5], round=BAD_STATE)[0]
        for s in (simulation(name), simulation(name, **variant))
    )
    chex.assert_trees_all_close(
        (alone.server, alone.clients), (beside.server, beside.clients), rtol=0, atol=1e-5
    )


@every_method
def test_wire_counts(name):
    """Participants pay for the downlink; a dropped client's uplink does not count."""
    _, reports = history(name)
    earlier = []
    for round, report in enumerate(reports):
        ids, dropped = choose_participants(OPTIONS, NUM_CLIENTS, round)
        assert dropped.sum() == 1 and report.arrived == len(ids) - 1
        expected = WIRE[name](ids, ids[~dropped], earlier)
        assert Sent(report.uplink.payload_elements, report.downlink.payload_elements) == expected
        assert (report.uplink.payload_bytes, report.downlink.payload_bytes) == (
            4 * expected.up,
            4 * expected.down,
        )
        metadata = Sent(report.uplink.metadata_bytes, report.downlink.metadata_bytes)
        assert metadata == METADATA[name](expected, ids, ids[~dropped])
        earlier.append(ids[~dropped])


@every_method
def test_only_participants_change(name):
    federation = federation_for(name)
    states, reports = history(name)
    for round, report in enumerate(reports):
        chosen = set(report.participants)
        assert len(report.participants) == len(chosen) == 5
        assert chosen == set(choose_participants(OPTIONS, NUM_CLIENTS, round)[0])
        moved = changed(federation, states[round], states[round + 1])
        assert {i for i in chosen if SAMPLES[i]} <= moved <= chosen


@every_method
def test_dropped_client_trains_but_is_absent(name):
    """The client keeps its trained state; server and uplink cost are those of a round without
    it."""
    sim, federation = simulation(name), federation_for(name)
    start = history(name)[0][1]
    heard, report = play(sim, start, [0, 4, 5, 6])
    lost, lost_report = play(sim, start, [0, 4, 5, 6], dropped=[5])
    absent, absent_report = play(sim, start, [0, 4, 6])
    assert identical(heard.clients, lost.clients)
    assert identical(lost.server, absent.server)
    assert changed(federation, start, lost) == {0, 4, 5, 6}
    assert (report.arrived, lost_report.arrived, absent_report.arrived) == (4, 3, 3)
    assert lost_report.uplink == absent_report.uplink
    assert lost_report.downlink == report.downlink
    # One-shot clients send nothing that the server has already.
    if report.uplink.payload_elements > lost_report.uplink.payload_elements:
        assert not identical(heard.server, lost.server)


@thoroughly
def test_resume_is_exact(name):
    states, _ = history(name)
    sim = simulation(name, build=1)
    state = to_device(states[1])
    for _ in range(2):
        state, _ = sim.run_round(state)
    assert state.round == states[3].round
    assert identical(to_host(state)[1:], states[3][1:])


@thoroughly
def test_nothing_compiles_or_moves_unasked_after_the_first_round(name, caplog):
    """Whoever takes part: nobody of a bucket, all of it, few or many."""
    sim = simulation(name, build=2)  # one that has run no round yet
    state, _ = sim.run_round(sim.init())
    sim.evaluate(state)
    with jax.log_compiles(), jax.transfer_guard("disallow"):
        for _ in range(2):
            state, _ = sim.run_round(state)
            sim.evaluate(state)
        for ids in ([4], [4, 6, 7], [0, 1, 2, 3, 5]):
            state, _ = play(sim, state, ids)
    assert "Compiling" not in caplog.text and "tracing" not in caplog.text, caplog.text
    with jax.log_compiles():  # what was absent is a message of this kind
        jax.jit(lambda x: x + 1)(jnp.zeros(3))
    assert "Compiling" in caplog.text and "tracing" in caplog.text
    with (
        jax.transfer_guard("disallow"),
        pytest.raises(Exception, match="Disallowed host-to-device"),
    ):
        jnp.zeros(3) + np.ones(3)


@every_method
@pytest.mark.parametrize("round", [BAD_UPLINK, BAD_STATE])
def test_client_that_is_not_finite_is_left_out(name, round):
    if round == BAD_UPLINK and name == "local":
        pytest.skip("sends nothing that could be wrong")
    sim, federation = simulation(name), federation_for(name)
    start = history(name)[0][1]
    after, report = play(sim, start, [0, 1, 4, 5], round=round)
    absent, absent_report = play(sim, start, [0, 4, 5], round=round)
    assert report.not_finite == (1,) and report.arrived == 3
    assert changed(federation, start, after) == {0, 4, 5}
    assert identical((after.server, after.clients), (absent.server, absent.clients))
    assert (report.metrics, report.uplink) == (absent_report.metrics, absent_report.uplink)
    later, report = play(sim, after, [0, 1, 4, 5], round=round + 10)
    assert not report.not_finite and finite((later.server, later.clients, report.metrics))
    # A one-shot client whose server has heard nobody else keeps its head.
    due = {1} if name in NO_TRAINING else {0, 1, 4, 5}
    assert due <= changed(federation, after, later) <= {0, 1, 4, 5}


@every_method
@pytest.mark.parametrize("how", ["dropped", "not finite"])
def test_round_in_which_nobody_arrives(name, how):
    """The server stays as it was; so do clients whose results are not finite, while dropped ones
    have trained."""
    sim, federation = simulation(name), federation_for(name)
    start = history(name)[0][1]
    if how == "dropped":
        after, report = play(sim, start, [0, 1, 4], dropped=[0, 1, 4])
        assert changed(federation, start, after) == {0, 1, 4} and report.not_finite == ()
    else:
        after, report = play(sim, start, [0, 1, 4], round=ALL_BAD)
        assert changed(federation, start, after) == set() and report.not_finite == (0, 1, 4)
    assert identical(after.server, start.server) and finite(report.server_metrics)
    assert report.arrived == report.uplink.payload_elements == report.uplink.metadata_elements == 0
    later, report = play(sim, after, [0, 1, 4])
    assert report.arrived == 3 and finite((later.server, later.clients, report.metrics))


def learned(server):
    """A server's state without its notes on which clients are up to date."""
    return server._replace(heard=()) if hasattr(server, "heard") else server


@thoroughly
def test_smallest_clients(name):
    """Client 2 fills no batch and still trains; client 3, alone, has no sample to train on and
    nothing to tell."""
    sim, federation = simulation(name), federation_for(name)
    start = history(name)[0][1]
    after, report = play(sim, start, [2])
    assert changed(federation, start, after) == {2} and report.arrived == 1
    after, report = play(sim, start, [3])
    assert report.arrived == 1 and changed(federation, start, after) <= {3}
    assert finite((after.server, after.clients, report.metrics, report.server_metrics))
    assert identical(learned(after.server), learned(start.server))
