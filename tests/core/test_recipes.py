"""Clients of an architecture that train by a recipe of their own."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.local_training import num_steps
from fedjax_ht.simulation.lanes import simulation_lanes
from fedjax_ht.simulation.simulation import batch_notes
from tests.federations import ASSIGNMENT, TRAINING, federation_data, mixed_federation
from tests.tiny import client_data, context, linear_federation

SLOW = dataclasses.replace(TRAINING, optimizer=optax.adam(0.01), batch_size=2, epochs=3)


def test_a_client_trains_by_the_recipe_of_its_architecture():
    federation, data = linear_federation(), client_data([0, 1, 2, 3, 1])
    first, second = federation.buckets
    method = fl.by_architecture(fl.local, {first.name: SLOW, "*": TRAINING})
    for bucket, recipe in ((first, SLOW), (second, TRAINING)):
        assert method.training_of(bucket.name) is recipe
        arguments = init_variables(bucket, jax.random.key(0)), (), data, context(0)
        programs = [
            jax.jit(functools.partial(each.client_update, bucket)).lower(*arguments).as_text()
            for each in (method, fl.local(recipe))
        ]
        assert programs[0] == programs[1]


def test_flops_follow_the_recipe_of_each_architecture():
    federation = mixed_federation()
    data = federation_data(federation)
    long = dataclasses.replace(TRAINING, epochs=3)
    methods = fl.local(TRAINING), fl.by_architecture(fl.local, {"wide": long, "*": TRAINING})
    flops = []
    for method in methods:
        flops.append(fl.make_simulation(method, federation, data).client_flops())
    times = np.where(np.array(ASSIGNMENT) == "wide", 3, 1)
    np.testing.assert_array_equal(flops[1], times * flops[0])


def test_lanes_and_notes_take_the_recipe_of_each_architecture():
    federation = linear_federation()
    counts = np.array([4, 4, 4, 4])
    method = fl.by_architecture(fl.local, {"linear1": SLOW, "*": TRAINING})
    options = fl.SimulationOptions(devices=1)
    assert simulation_lanes(federation, counts, method, options) == {"linear0": 1, "linear1": 1}
    assert batch_notes(federation, method, counts) == []
    assert num_steps(method.training_of("linear1"), 4) == 6


def test_numbers_of_the_method_vary_under_all_recipes():
    def make(settings):
        return fl.fedproto(TRAINING, weight=settings["weight"])

    method = fl.by_architecture(
        lambda recipe: fl.varied(make, {"weight": 1.0})._replace(training=recipe),
        {"wide": SLOW, "*": TRAINING},
    )
    assert method.at({"weight": 2.0}).training_of("narrow") is TRAINING


def test_a_recipe_for_all_others_is_needed_and_names_are_those_of_the_federation():
    with pytest.raises(ValueError, match="training has recipes of wide; it must have one of '\\*'"):
        fl.by_architecture(fl.local, {"wide": SLOW})
    federation = mixed_federation()
    method = fl.by_architecture(fl.local, {"wild": SLOW, "*": TRAINING})
    with pytest.raises(ValueError, match="training has a recipe of 'wild'; did you mean 'wide'"):
        fl.make_simulation(method, federation, federation_data(federation))
