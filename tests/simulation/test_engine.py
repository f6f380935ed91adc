"""Programs are kept by what they depend on: the same kind of simulation compiles nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.mesh import SHARDED
from fedjax_ht.core.wire import gaussian_noise
from fedjax_ht.data.client_data import arranged
from fedjax_ht.simulation import engine
from fedjax_ht.trust.defences import DEFENCES
from fedjax_ht.trust.options import Attack
from tests.federations import federation_data, federation_for, identical, samples
from tests.standard import method_of

FEDERATION = federation_for("fedproto")
DATA = federation_data(FEDERATION)
OPTIONS = fl.SimulationOptions(devices=1, lanes=1)


def method(rate: float = 0.1, weight: float = 1.0) -> fl.Method:
    return fl.fedproto(fl.LocalTraining(optax.sgd(rate), batch_size=4), weight=weight)


def played(simulation: fl.Simulation) -> list:
    state = simulation.init()
    state, report = simulation.run_round(state)
    return [state.server, report, simulation.evaluate(state)]


@pytest.fixture(scope="module")
def first():
    """The results of a simulation, whose programs others find."""
    return played(fl.make_simulation(method(), FEDERATION, DATA, OPTIONS))


def reversed_split():
    """Reverses the samples of all clients; the large ones lose one."""
    dataset, partition = samples()
    moved = []
    for client in partition:
        fewer = int(len(client.train) > 9)
        moved.append(client._replace(train=client.train[fewer:][::-1]))
    return arranged(dataset, moved, FEDERATION)


def test_states_keep_their_sharding():
    """A round's states are arguments of the programs that the first states compiled."""
    sim = with_changes()
    state, _ = sim.run_round(sim.init())
    assert {x.sharding.spec for x in jax.tree.leaves(state.clients)} == {SHARDED}


@pytest.mark.parametrize("what", ["again", "seed", "split", "lost uploads"])
def test_a_second_simulation_compiles_nothing(first, compiled, what):
    compiled.clear()
    data = reversed_split() if what == "split" else DATA
    changes = {"seed": {"seed": 7}, "lost uploads": {"drop_rate": 0.5}}.get(what, {})
    options = dataclasses.replace(OPTIONS, **changes)
    results = played(fl.make_simulation(method(), FEDERATION, data, options))
    assert not compiled
    assert identical(results, first) == (what == "again")


OTHERS = {
    "method": {"method": method(weight=2.0)},
    "recipe": {"method": method(rate=0.2)},
    "uplink": {"uplink": (gaussian_noise(0.1, 0.5),)},
    "downlink": {"downlink": (gaussian_noise(0.1, 0.5),)},
    "attack": {"attack": Attack("sign_flip", share=0.25)},
    "defence": {"robust": (DEFENCES["median"](),)},
    "bound of outliers": {"refuse_outliers": 5.0},
    "scored state": {"scoring": fl.Scoring("trained")},
    "scored at once": {"scoring": fl.Scoring(batch_size=2)},
    "store": {"client_store": "host"},
    "statistics": {"scoring": fl.Scoring(global_statistics="training")},
    "scores": {"scoring": fl.Scoring(auc=True)},
}


METHOD = method()


def with_changes(method: fl.Method = METHOD, **options) -> fl.Simulation:
    return fl.make_simulation(method, FEDERATION, DATA, dataclasses.replace(OPTIONS, **options))


# programs: of the server's step, of each bucket's training, of each bucket's scores
SERVER, TRAINING, SCORES = 1, 2, 2


@pytest.mark.parametrize(
    ("what", "programs"),
    [
        ("method", TRAINING + SERVER),
        ("recipe", TRAINING + SERVER),
        ("bound of outliers", SERVER),
        ("defence", SERVER),
        ("scored at once", SCORES),
        ("statistics", 0),
        ("store", 0),
    ],
)
def test_only_the_programs_that_know_of_a_difference_are_compiled(first, compiled, what, programs):
    simulation = with_changes(**OTHERS[what])
    compiled.clear()
    results = played(simulation)
    assert len(compiled) == programs
    # a weight of prototypes counts from the second round on
    assert identical(results, first) == (what not in ("recipe", "defence"))


@pytest.mark.parametrize("what", OTHERS)
def test_programs_of_another_kind_are_others(what):
    made = []
    for changes in ({}, {"method": method()}, OTHERS[what]):
        programs = with_changes(**changes).program.engine
        stores = [bucket.store for bucket in programs.buckets.values()]
        made.append((programs.train, programs.score, programs.serve, programs.score_global, stores))
    first, again, other = made
    # clients of FedProto keep their models whatever is scored
    assert first == again and (first == other) == (what == "scored state")


def test_first_weights_are_an_argument(first):
    """Programs that were made without weights start from those of their caller."""
    bucket, *further = FEDERATION.buckets
    weights = jax.device_get(fl.init_variables(bucket, jax.random.key(9)))
    started = dataclasses.replace(bucket, weights=weights)
    loaded = dataclasses.replace(FEDERATION, buckets=(started, *further))
    simulation = fl.make_simulation(method(), loaded, federation_data(loaded), OPTIONS)
    model = simulation.read_clients(simulation.init(), bucket.name, np.array([0]))
    assert identical(jax.tree.map(lambda x: x[0], model["params"]), weights["params"])


def test_programs_go_before_the_memory_maps_are_too_many(monkeypatch, first):
    def made(method: fl.Method):
        with_changes(method)
        return engine._part.cache_info().currsize

    engine.forget_engines()
    kept = made(method())
    assert made(method(rate=0.2)) > kept
    monkeypatch.setattr(engine, "MOST_MAPS", 0)
    assert made(method()) == kept


def test_a_state_of_weak_types_compiles_a_round_once(compiled):
    """jnp.full(3, 0.5) has one, and what a server makes of it has none."""
    weak = method_of("local")._replace(
        init_server=lambda federation, key: jnp.full(3, 0.5),
        server_update=lambda federation, server, received, ctx: (server + jnp.ones(3), {}),
    )
    sim = with_changes(weak)
    state, _ = sim.run_round(sim.init())
    compiled.clear()
    sim.run_round(state)
    assert not compiled
