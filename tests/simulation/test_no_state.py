"""Clients that keep nothing between rounds."""

import contextlib
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.core import wire
from fedjax_ht.core.message_forms import keeps_state
from fedjax_ht.core.round import Channel
from fedjax_ht.lab.checkpoints import segments
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.simulation import compiled, engine
from fedjax_ht.simulation.roster import lay_out
from fedjax_ht.simulation.state import copy_state
from tests.federations import federation_data, federation_for, uniform_federation
from tests.methods.recording import KEEP_NOTHING
from tests.standard import method_of, simulation_of

CHANNEL = Channel(wire.chain(()), wire.chain(()))

SOME = ("fedavg", "fedprox", "moon", "fedproto", "heterofl", "fedbn", "fedit", "local")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in fl.METHODS if name not in SOME]


@pytest.mark.parametrize("name", [*SOME, *OTHERS])
def test_methods_whose_clients_keep_nothing(name):
    """Clients whose downlink is all that their model has keep nothing."""
    federation, method = federation_for(name), method_of(name)
    kept = {keeps_state(method, federation, bucket, CHANNEL) for bucket in federation.buckets}
    assert kept == {name not in KEEP_NOTHING}


@contextlib.contextmanager
def with_a_store(keeps: bool):
    """Makes simulations built inside keep all clients' states."""
    if not keeps:
        yield
        return
    engine.forget_engines()
    with mock.patch.object(engine, "keeps_state", lambda *_: True):
        yield
    engine.forget_engines()


# the tests look at the same few runs; none of them may give the state away to a round
@functools.cache
def played(keeps: bool, name: str = "fedavg", **options) -> tuple:
    """Simulation, state, reports and evaluation after three rounds."""
    with with_a_store(keeps):
        simulation = simulation_of(name, seed=1, **options)
        state, reports = simulation.init(), []
        for _ in range(3):
            state, report = simulation.run_round(state)
            reports.append(report)
    return simulation, state, reports, simulation.evaluate(state)


@pytest.mark.parametrize(
    "options",
    [
        {"participation": 0.5, "lanes": 2, "drop_rate": 0.3},
        pytest.param({"name": "fedrolex", "participation": 0.5}, marks=pytest.mark.slow),
    ],
    ids=["whole models", "slices"],
)
def test_no_bit_is_another_one_than_with_a_store(options):
    (_, kept, *kept_rest), (_, state, *rest) = (played(keeps, **options) for keeps in (True, False))
    assert kept.changed and not state.changed
    jax.tree.map(np.testing.assert_array_equal, (state.server, *rest), (kept.server, *kept_rest))


def test_states_are_empty_and_reading_one_gives_the_servers_model():
    simulation, state, *_ = played(False, participation=0.5)
    assert state.clients == {"narrow": ()}
    held = simulation.read_clients(state, "narrow", np.array([1, 4]))
    for leaf, server in zip(jax.tree.leaves(held["params"]), jax.tree.leaves(state.server)):
        np.testing.assert_array_equal(leaf, np.stack([server] * 2))
    with pytest.raises(ValueError, match="keep nothing"):
        simulation.write_clients(state, "narrow", np.array([1]), held)


def test_trained_evaluation_needs_what_training_left():
    assert set(simulation_of("fedavg", scoring=fl.Scoring("trained")).init().changed) == {"narrow"}


def test_a_checkpoint_has_no_client(tmp_path):
    simulation, state, *_ = played(False, participation=0.5)
    checkpointer = Checkpointer(tmp_path / "checkpoints", simulation)
    checkpointer.save(state, [])
    assert not list(segments.beside(tmp_path / "checkpoints").iterdir())
    restored, _ = checkpointer.restore()
    after, again = (simulation.run_round(s)[0].server for s in (restored, copy_state(state)))
    jax.tree.map(np.testing.assert_array_equal, after, again)


def test_a_result_that_is_not_finite_falls_back_on_what_came_down():
    federation, method, outcomes = uniform_federation(), method_of("fedavg"), []

    def breaks(bucket, client, downlink, data, ctx):
        client, uplink, metrics = method.client_update(bucket, client, downlink, data, ctx)
        broken = jax.tree.map(lambda x: jnp.where(ctx.info.id == 2, jnp.nan, x), client)
        return broken, uplink, metrics

    for keeps in (True, False):
        broken, data = method._replace(client_update=breaks), federation_data(federation)
        with with_a_store(keeps):
            simulation = fl.make_simulation(broken, federation, data, fl.SimulationOptions(seed=1))
        state, report = simulation.run_round(simulation.init())
        assert report.not_finite == (2,)
        outcomes.append((state.server, np.delete(report.accuracy["head"], 2)))
    jax.tree.map(np.testing.assert_array_equal, *outcomes)
    assert np.isfinite(report.accuracy["head"]).any()


def test_clients_without_samples_are_not_scored(monkeypatch):
    """100,000 users, of whom 1,000 have test samples, are evaluated like 1,000."""
    simulation, state, _, evaluation = played(False)
    counts = federation_data(uniform_federation()).counts["test"]
    assert 0 < np.sum(counts > 0) < len(counts)
    scored = []

    def noted(roster, rows, size):
        scored.append(rows)
        return lay_out(roster, rows, size)

    monkeypatch.setattr(compiled, "lay_out", noted)
    simulation.evaluate(state)
    np.testing.assert_array_equal(np.concatenate(scored), np.flatnonzero(counts > 0))
    np.testing.assert_array_equal(np.isnan(evaluation.accuracy["test"]["head"]), counts == 0)
