"""Servers among clients that attack, on the small federation of every method."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.attacks import Attack, attackers
from fedjax_ht.core.robust import DEFENCES
from fedjax_ht.methods import method_factory
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import (
    NUM_CLIENTS,
    SLICES,
    TRAINING,
    by_name,
    federation_data,
    federation_for,
    identical,
    to_host,
)
from tests.method_wires import settings

some_methods = by_name(("fedavg", "fedtgp"))
SEED = 5  # clients 1 and 6 attack: one of each architecture
GIANT = Attack("scaled", 0.25, 1e30, seed=SEED)
ROBUST = {"norm_bound": (3.0,), "median": (), "trimmed_mean": (0.3,), "geometric_median": (), "multi_krum": (0.3,)}
# Of one or two owners of a class nobody knows who is right: only lengths tell.
BOUNDED = [("norm_bound",), *(("norm_bound", name) for name in ROBUST if name != "norm_bound")]
EACH_BOUNDED = [BOUNDED[0], BOUNDED[1], *(pytest.param(one, marks=pytest.mark.slow) for one in BOUNDED[2:])]


@functools.cache
def simulation(name: str, attack: Attack | None = None, robust: tuple[str, ...] = ()):
    method, federation = method_factory(name)(TRAINING, **settings(name)), federation_for(name)
    defences = tuple(DEFENCES[defence](*ROBUST[defence]) for defence in robust)
    options = SimulationOptions(lanes=1, attack=attack, robust=defences)
    return make_simulation(method, federation, federation_data(federation), options)


def played(sim, rounds: int = 3):
    state, states, reports = sim.init(), [], []
    for _ in range(rounds):
        state, report = sim.run_round(state)
        states.append(to_host(state))
        reports.append(report)
    return states, reports


def finite(tree) -> bool:
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


@some_methods
def test_without_a_defence_the_server_stays_finite_and_says_who_it_was(name):
    states, reports = played(simulation(name, GIANT))
    assert all(finite(state.servers) for state in states)
    if name != "local":
        named = {i for i, _ in reports[0].far_off}
        # Where three own a class of a slice's head, one giant bends the middle of it.
        assert named == {1, 6} or (name.split("+")[-1] in SLICES and {1, 6} < named)


def test_a_server_step_that_is_not_finite_is_not_taken():
    name = "fedavg"
    federation, method = federation_for(name), method_factory(name)(TRAINING)

    def server_update(federation, server, received, ctx):
        new, metrics = method.server_update(federation, server, received, ctx)
        return jax.tree.map(lambda x: jnp.where(ctx.round == 1, jnp.inf, x), new), metrics

    sim = make_simulation(
        method._replace(server_update=server_update),
        federation,
        federation_data(federation),
        SimulationOptions(lanes=1),
    )
    (first, second, third), reports = played(sim)
    assert [report.server_finite for report in reports] == [True, False, True]
    assert identical(first.servers, second.servers) and not identical(second.servers, third.servers)
    assert finite((third.servers, third.clients))


@some_methods
@pytest.mark.parametrize("defences", EACH_BOUNDED, ids="+".join)
def test_behind_a_defence_everybody_arrives(name, defences):
    method = method_factory(name)(TRAINING, **settings(name))
    if method.uplinks == "own" and defences != ("norm_bound",):
        with pytest.raises(ValueError, match=f"robust is {defences[-1]}, .*; take norm_bound"):
            simulation(name, GIANT, defences)
        return
    states, reports = played(simulation(name, GIANT, defences))
    assert all(finite((state.servers, state.clients)) for state in states)
    assert all(report.not_finite == () and report.arrived >= NUM_CLIENTS - 1 for report in reports)


def test_attackers_are_not_scored():
    report = played(simulation("fedavg", GIANT))[1][0]
    nan = np.isnan(report.accuracy["head"])
    assert nan[attackers(GIANT, NUM_CLIENTS)].all() and not nan.all()
