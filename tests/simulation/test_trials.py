"""Trials in one program are the runs they would be alone, bit by bit where clients run one after
another."""

import jax
import numpy as np
import pytest

from fedjax_ht.core.method import Pretrained
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation, make_trials
from fedjax_ht.simulation.trials import of_trial
from tests.federations import (
    NUM_CLIENTS,
    TRAINING,
    federation_data,
    federation_for,
    identical,
    mixed_federation,
    uniform_federation,
)
from tests.marks import thoroughly
from tests.method_wires import settings

ROUNDS, SEED = 2, 3


def options(seed: int, store: str = "device") -> SimulationOptions:
    return SimulationOptions(
        seed=seed,
        participation=0.6,
        drop_rate=0.2,
        lanes=1,
        devices=1,
        eval_batch_size=4,
        client_store=store,
    )


def played(simulation):
    """State, reports and evaluation after some rounds."""
    state, reports = simulation.init(), []
    for _ in range(ROUNDS):
        state, report = simulation.run_round(state)
        reports.append(report)
    return state, reports, simulation.evaluate(state)


def rows(federation, state, trial):
    """A trial's client states by bucket."""
    sizes = {b.name: len(federation.members(b)) for b in federation.buckets}
    return {
        name: jax.tree.map(
            lambda x, n=n: np.asarray(x[trial * n : (trial + 1) * n]), state.clients[name]
        )
        for name, n in sizes.items()
    }


@thoroughly
def test_a_trial_is_the_run_it_would_be_alone(name):
    federation, method = federation_for(name), method_factory(name)(TRAINING, **settings(name))
    # The second trial's split is padded further, with other images: its padding must not matter.
    splits = [federation_data(federation), federation_data(federation, padding=3)]
    together, reports, scores = played(make_trials(method, federation, splits, options(SEED)))
    assert together.last_round.shape == (2, NUM_CLIENTS)
    assert not np.array_equal(*together.last_round), (
        "the trials must draw participants of their own"
    )
    for t, data in enumerate(splits):
        state, alone, score = played(make_simulation(method, federation, data, options(SEED + t)))
        for bucket, states in rows(federation, together, t).items():
            # Without XLA's fusion emitters (tests/conftest.py) FedTGP's two programs round
            # differently.
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
                states,
                state.clients[bucket],
            )
            assert name == "fedtgp" or identical(states, state.clients[bucket])
        server = of_trial(together.servers, t)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
            server,
            state.server,
        )
        np.testing.assert_array_equal(together.last_round[t], state.last_round[0])
        for trials, single in zip(reports, alone):
            assert (trials[t].arrived, trials[t].uplink, trials[t].downlink) == (
                single.arrived,
                single.uplink,
                single.downlink,
            )
            np.testing.assert_array_equal(trials[t].participants, single.participants)
            assert trials[t].metrics == pytest.approx(single.metrics, nan_ok=True)
            assert trials[t].server_metrics == pytest.approx(single.server_metrics)
        jax.tree.map(np.testing.assert_array_equal, scores[t].accuracy, score.accuracy)
        assert scores[t].global_accuracy == score.global_accuracy


@pytest.mark.slow
def test_a_host_server_runs_each_trial():
    federation = uniform_federation()
    data = [federation_data(federation)] * 2
    compiled = METHODS["fedavg"](TRAINING)
    on_host = compiled._replace(pretrained=Pretrained(host=True))
    states = [
        played(make_trials(m, federation, data, options(SEED)))[0] for m in (compiled, on_host)
    ]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        states[0].servers,
        states[1].servers,
    )


def test_the_host_store_holds_all_trials():
    federation = mixed_federation()
    data = [federation_data(federation)] * 2
    method = METHODS["fedproto"](TRAINING)
    runs = [
        played(make_trials(method, federation, data, options(SEED, s))) for s in ("device", "host")
    ]
    for trial in (0, 1):
        assert identical(rows(federation, runs[0][0], trial), rows(federation, runs[1][0], trial))
