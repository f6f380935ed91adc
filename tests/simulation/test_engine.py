"""Programs are kept by what they depend on: the same kind of simulation compiles nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.mesh import SHARDED
from fedjax_ht.core.method import Method
from fedjax_ht.core.wire import gaussian_noise
from fedjax_ht.data.client_data import arranged
from fedjax_ht.methods.fedproto import fedproto
from fedjax_ht.simulation import engine
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import Simulation, make_simulation
from fedjax_ht.trust.defences import DEFENCES
from fedjax_ht.trust.options import Attack
from tests.federations import federation_data, federation_for, identical, samples
from tests.standard import method_of, simulation_of

OPTIONS = SimulationOptions(devices=1, lanes=1)


def method(rate: float = 0.1, weight: float = 1.0) -> Method:
    return fedproto(LocalTraining(optax.sgd(rate), batch_size=4), weight=weight)


def played(simulation: Simulation) -> list:
    state = simulation.init()
    state, report = simulation.run_round(state)
    return [state.server, report, simulation.evaluate(state)]


@pytest.fixture(scope="module")
def first():
    """The results of a simulation, whose programs others find."""
    federation = federation_for("fedproto")
    return played(make_simulation(method(), federation, federation_data(federation), OPTIONS))


def reversed_split():
    """Reverses the samples of all clients; the large ones lose one."""
    dataset, partition = samples()
    moved = []
    for client in partition:
        fewer = int(len(client.train) > 9)
        moved.append(client._replace(train=client.train[fewer:][::-1]))
    return arranged(dataset, moved, federation_for("fedproto"))


def test_states_keep_their_sharding():
    """A round's states are arguments of the programs that the first states compiled."""
    sim = simulation_of("fedproto", devices=1, lanes=1)
    state, _ = sim.run_round(sim.init())
    assert {x.sharding.spec for x in jax.tree.leaves(state.clients)} == {SHARDED}


@pytest.mark.parametrize("what", ["again", "seed", "split", "lost uploads"])
def test_a_second_simulation_compiles_nothing(first, compiled, what):
    compiled.clear()
    federation, options = federation_for("fedproto"), OPTIONS
    data = reversed_split() if what == "split" else federation_data(federation)
    if what == "seed":
        options = dataclasses.replace(OPTIONS, seed=7)
    if what == "lost uploads":
        options = dataclasses.replace(OPTIONS, drop_rate=0.5)
    results = played(make_simulation(method(), federation, data, options))
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
    "scored state": {"scoring": Scoring("trained")},
    "scored at once": {"scoring": Scoring(batch_size=2)},
    "store": {"client_store": "host"},
    "statistics": {"scoring": Scoring(global_statistics="training")},
    "scores": {"scoring": Scoring(auc=True)},
}


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
    changes = dict(OTHERS[what])
    made, federation = changes.pop("method", method()), federation_for("fedproto")
    options = dataclasses.replace(OPTIONS, **changes)
    compiled.clear()
    results = played(make_simulation(made, federation, federation_data(federation), options))
    assert len(compiled) == programs
    # a weight of prototypes counts from the second round on
    assert identical(results, first) == (what not in ("recipe", "defence"))


@pytest.mark.parametrize("what", OTHERS)
def test_programs_of_another_kind_are_others(what):
    federation, made = federation_for("fedproto"), []
    for changes in ({}, {}, OTHERS[what]):
        changes = dict(changes)
        of = changes.pop("method", method())
        options = dataclasses.replace(OPTIONS, **changes)
        simulation = make_simulation(of, federation, federation_data(federation), options)
        programs = simulation.program.engine
        stores = [bucket.store for bucket in programs.buckets.values()]
        made.append((programs.train, programs.score, programs.serve, programs.score_global, stores))
    first, again, other = made
    # clients of FedProto keep their models whatever is scored
    assert first == again and (first == other) == (what == "scored state")


def test_first_weights_are_an_argument(first):
    """Programs that were made without weights start from those of their caller."""
    federation = federation_for("fedproto")
    bucket, *further = federation.buckets
    weights = jax.device_get(init_variables(bucket, jax.random.key(9)))
    started = dataclasses.replace(bucket, weights=weights)
    loaded = dataclasses.replace(federation, buckets=(started, *further))
    simulation = make_simulation(method(), loaded, federation_data(loaded), OPTIONS)
    model = simulation.read_clients(simulation.init(), bucket.name, np.array([0]))
    assert identical(jax.tree.map(lambda x: x[0], model["params"]), weights["params"])


def test_programs_go_before_the_memory_maps_are_too_many(monkeypatch, first):
    federation = federation_for("fedproto")

    def made(method: Method):
        make_simulation(method, federation, federation_data(federation), OPTIONS)
        return engine._part.cache_info().currsize

    engine.forget_engines()
    kept = made(method())
    assert made(method(rate=0.2)) > kept
    monkeypatch.setattr(engine, "MOST_MAPS", 0)
    assert made(method()) == kept


def test_a_state_of_weak_types_compiles_a_round_once(compiled):
    """jnp.full(3, 0.5) has one, and what a server makes of it has none."""
    federation = federation_for("local")
    weak = method_of("local")._replace(
        init_server=lambda federation, key: jnp.full(3, 0.5),
        server_update=lambda federation, server, received, ctx: (server + jnp.ones(3), {}),
    )
    sim = make_simulation(weak, federation, federation_data(federation), OPTIONS)
    state, _ = sim.run_round(sim.init())
    compiled.clear()
    sim.run_round(state)
    assert not compiled
