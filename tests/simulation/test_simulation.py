"""Simulations of the probe, whose every number is known in advance: messages, stores, noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.core.mesh import client_mesh
from fedjax_ht.core.samples import PUBLIC
from fedjax_ht.core.wire import gaussian_noise
from fedjax_ht.simulation import compiled
from fedjax_ht.simulation.host_store import host_store
from fedjax_ht.simulation.roster import make_roster
from tests.federations import (
    ASSIGNMENT,
    NUM_CLIENTS,
    TRAIN_COUNTS,
    each_client,
    federation_data,
    identical,
    play,
    samples,
    to_host,
)
from tests.simulation.probe import FEDERATION, probe, simulation


def test_clients_get_their_info_and_the_server_hears_each_once():
    sim = simulation(lanes=4, padding=2)
    state = to_host(sim.init())
    state, report = play(sim, state, [0, 4, 5], dropped=[5])
    first = state.server.facts
    state, report = play(sim, state, [0, 1, 2, 5, 6])
    np.testing.assert_array_equal(state.last_round, [1, 1, 1, -1, 0, 1, 1, -1])
    assert state.round == 2 and report.server_metrics == {"heard": 5.0}
    assert report.metrics["id"] == pytest.approx(np.mean([0, 1, 2, 5, 6]))
    np.testing.assert_array_equal(report.participants, [0, 1, 2, 5, 6])
    heard = {0: 1, 1: 1, 2: 1, 4: 0, 5: 1, 6: 1}  # in which round
    # the last round in which each was reached, when it was heard
    before = {0: 0, 1: -1, 2: -1, 4: -1, 5: 0, 6: -1}
    facts = np.zeros((NUM_CLIENTS, 4))
    for i in before:
        facts[i] = i, TRAIN_COUNTS[i].sum(), before[i], heard[i]
    np.testing.assert_array_equal(state.server.facts[:, :4], facts)
    # client 0's, and then each one's last
    draws = [first[0, 4], *(state.server.facts[i, 4] for i in before)]
    assert len(set(draws)) == len(draws)
    np.testing.assert_array_equal(state.server.heard, [2, 1, 1, 0, 1, 1, 1, 0])
    weights = [client["weight"] for client in each_client(FEDERATION, state)]
    for i in before:
        np.testing.assert_array_equal(state.server.weights[i], weights[i])


def test_clients_get_the_round_and_a_control_sees_their_training_samples():
    """The round beside the data, in training alone; samples only where a method asks."""
    dataset, partition = samples()
    held = sorted(np.concatenate([client.train for client in partition]))

    def client_update(bucket, client, downlink, data, ctx):
        client, uplink, metrics = probe().client_update(bucket, client, downlink, data, ctx)
        return client, uplink, metrics | {"round": data.round}

    def receive(bucket, client, downlink, data, ctx):
        assert data.round is None
        return probe().receive(bucket, client, downlink, data, ctx)

    def server_update(federation, server, received, ctx):
        indices, count = ctx.data.splits["train"]
        real = jnp.arange(len(indices)) < count
        labels = jnp.where(real, ctx.data.labels[indices], 0).sum()
        brightness = jnp.where(real, ctx.data.inputs[indices].sum((1, 2, 3)), 0).sum()
        seen = {"samples": count, "labels": labels, "brightness": brightness}
        return server, seen | {"of": jnp.sum(indices * real)}

    functions = ("client_update", client_update), ("receive", receive)
    needs = ("needs", fl.Needs(clients_data=True))
    sim = simulation((*functions, ("server_update", server_update), needs))
    state, report = play(sim, to_host(sim.init()), [0, 4])
    assert report.metrics["round"] == 0
    _, report = play(sim, state, [0, 4], round=7)
    assert report.metrics["round"] == 7
    seen = {"samples": len(held), "labels": dataset.labels[held].sum(), "of": sum(held)}
    seen |= {"brightness": dataset.inputs[held].sum(dtype=int)}
    assert report.server_metrics == seen


def test_a_public_set_is_there_for_methods_that_read_it():
    """Clients and server read the same samples, whose bytes count in a client's first round."""
    dataset, _ = samples()

    def seen(data):
        indices, count = data.splits[PUBLIC]
        assert indices.shape == dataset.public.shape
        return {"public": data.labels[indices].sum(), "public_count": count}

    def client_update(bucket, client, downlink, data, ctx):
        client, uplink, metrics = probe().client_update(bucket, client, downlink, data, ctx)
        return client, uplink, metrics | seen(data)

    def server_update(federation, server, received, ctx):
        assert federation.public_set.samples == len(dataset.public) and ctx.info is None
        return server, seen(ctx.data)

    functions = ("client_update", client_update), ("server_update", server_update)
    needs = ("needs", fl.Needs(public_samples=len(dataset.public)))
    sim = simulation((*functions, needs), lanes=4)
    state, report = play(sim, to_host(sim.init()), [0, 3, 4])
    expected = {"public": dataset.labels[dataset.public].sum(), "public_count": 10}
    assert {name: report.metrics[name] for name in expected} == expected
    assert report.server_metrics == expected
    a_copy = 10 * (16 + 4)  # pixels, and a label
    assert report.public_bytes == 3 * a_copy
    state, report = play(sim, state, [0, 3, 5])
    assert report.public_bytes == a_copy
    without = simulation()
    _, report = play(without, to_host(without.init()), [0])
    assert report.public_bytes is None


def test_a_method_is_refused_a_public_set_that_is_too_small():
    data = federation_data(FEDERATION)
    for needed, available, message in (
        (11, data, "probe uses 11 public samples a round, but the public set has 10"),
        (
            1,
            data._replace(public=None, public_set=None),
            "probe needs a public set, shared by server",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            method = probe()._replace(needs=fl.Needs(public_samples=needed))
            fl.make_simulation(method, FEDERATION, available)


def test_shared_init():
    states = [to_host(simulation(shared_init=x).init()) for x in (False, True)]
    own, shared = ([c["weight"].tobytes() for c in each_client(FEDERATION, s)] for s in states)
    assert len(set(own)) == NUM_CLIENTS
    assert len(set(shared)) == len(set(zip(shared, ASSIGNMENT))) == len(set(ASSIGNMENT))


# two clients a round of buckets of five and three
FEW = {"participation": 0.25, "lanes": 2, "scoring": fl.Scoring("trained")}


def test_host_store_with_fewer_rows_than_clients():
    device, host = (simulation(client_store=store, **FEW) for store in ("device", "host"))
    a, b = device.init(), host.init()
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(b.clients))
    for _ in range(6):
        a, report = device.run_round(a)
        b, report_b = host.run_round(b)
        assert report.metrics == report_b.metrics and report.uplink == report_b.uplink
    assert identical(to_host(a), to_host(b))
    assert len(set(a.last_round)) > 3
    expected = host.evaluate(b).accuracy["test"]["cap"]
    np.testing.assert_array_equal(device.evaluate(a).accuracy["test"]["cap"], expected)


def test_states_that_no_memory_holds_are_refused(monkeypatch):
    room = 2 * sum(x.nbytes for x in jax.tree.leaves(simulation().init().clients))
    monkeypatch.setattr(compiled, "free_bytes", lambda mesh: room)
    simulation().init()
    monkeypatch.setattr(compiled, "free_bytes", lambda mesh: 8)
    with pytest.raises(ValueError, match=f"states of {NUM_CLIENTS} clients .*client_store"):
        simulation().init()
    simulation(client_store="host").init()


def test_nothing_compiles_after_the_first_round_with_states_on_the_host(caplog):
    """The contract suite's test has them on the device."""
    sim = simulation((("name", "fresh"),), client_store="host", **FEW)  # has run no round yet
    state, _ = sim.run_round(sim.init())
    with jax.log_compiles():
        sim.evaluate(state)
    assert "jit(local)" not in caplog.text  # it is the program that has scored the participants
    with jax.log_compiles(), jax.transfer_guard("disallow"):
        for _ in range(5):
            state, _ = sim.run_round(state)
        sim.evaluate(state)
    assert "Compiling" not in caplog.text and "tracing" not in caplog.text


def test_host_store_moves_only_members():
    mesh = client_mesh(1)
    ids, steps, device = np.arange(5) * 10, np.ones(5, int), np.zeros(5, int)
    roster = make_roster(ids, steps, device, participants=2, lanes=1, mesh=mesh)
    store, made = host_store(mesh), []

    def make(flat):
        made.append(flat)
        return {"w": jnp.float32(flat)}

    stored = store.init(roster, make)
    # never more at once than a round takes
    np.testing.assert_array_equal(made, [[0, 1], [2, 3], [4, -1]])
    np.testing.assert_array_equal(stored["w"], np.arange(5))
    states = store.load(stored, roster, np.array([3, 1]))
    slots = store.slots(roster, np.array([3, 1]))
    np.testing.assert_array_equal(states["w"], [3, 1])
    np.testing.assert_array_equal(slots, [0, 1])
    # the second is padding
    stored = store.save(stored, {"w": jnp.array([-3.0, -1.0])}, roster, np.array([3, -1]))
    np.testing.assert_array_equal(stored["w"], [0, 1, 2, -3, 4])
    stored = store.write(stored, roster, np.array([4, 0]), {"w": np.array([7.0, 8.0])})
    np.testing.assert_array_equal(store.read(stored, roster, np.array([0, 3, 4]))["w"], [8, -3, 7])
    assert store.block(roster) == 2


def test_noise_on_the_uplink():
    noises = ((), (gaussian_noise(0.0, 0.0),), (gaussian_noise(0.1, 0.0),))
    plain, silent, noisy = (simulation(uplink=steps) for steps in noises)
    start = to_host(plain.init())
    ids = range(NUM_CLIENTS)
    after, _ = play(plain, start, ids)
    assert identical(after, play(silent, start, ids)[0])
    heard, _ = play(noisy, start, ids)
    assert identical(heard.clients, after.clients)
    assert identical(heard.server.facts, after.server.facts)  # metadata is not payload
    noise = heard.server.weights - after.server.weights
    # 0.1 is expected of 16 draws
    assert len(np.unique(noise)) == noise.size and 0.02 < noise.std() < 0.3
    again, _ = play(noisy, heard, ids)
    other = again.server.weights - play(plain, heard, ids)[0].server.weights
    assert not np.allclose(other, noise, atol=1e-4)


def test_noise_on_the_downlink():
    plain, noisy = simulation(), simulation(downlink=(gaussian_noise(0.1, 0.0),))
    start = to_host(plain.init())
    after, report = play(plain, start, [0, 1, 4])
    heard, noisy_report = play(noisy, start, [0, 1, 4])
    pairs = zip(*(each_client(FEDERATION, s) for s in (after, heard)))
    shifts = [b["weight"] - a["weight"] for a, b in pairs]
    moved = [s for i, s in enumerate(shifts) if i in (0, 1, 4)]
    # one level for both entries
    assert all(s[0] == pytest.approx(s[1], abs=1e-5) and s[0] != 0 for s in moved)
    assert len({round(float(s[0]), 4) for s in moved}) == 3
    assert not np.any([s for i, s in enumerate(shifts) if i not in (0, 1, 4)])
    assert noisy_report.downlink == report.downlink


def test_server_on_the_host_gives_the_same():
    def server_update(federation, server, received, ctx):
        # concrete, not traced
        assert all(isinstance(np.asarray(r.arrived), np.ndarray) for r in received.values())
        return probe().server_update(federation, server, received, ctx)

    needs = fl.Needs(pretrained=fl.Pretrained(host=True))
    jitted, host = simulation(), simulation((("server_update", server_update), ("needs", needs)))
    start = to_host(jitted.init())
    states = [play(sim, start, [0, 4, 6], dropped=[6])[0] for sim in (jitted, host)]
    assert identical(*states)
    for sim in (jitted, host):  # a round in which nobody arrives is none for either
        state, report = play(sim, start, [0, 4], dropped=[0, 4])
        assert identical(state.server, start.server) and report.arrived == 0
