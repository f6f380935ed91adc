"""Numbers of a method that may be arguments of its programs go through a round traced."""

import dataclasses

import jax
import optax
import pytest

from fedjax_ht.check.options import kind_of, options_of
from fedjax_ht.core.method import varied
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import TRAINING, federation_data, federation_for
from tests.method_wires import settings

# Decide a branch or a shape, or are reckoned with on the host.
FIXED = {
    "fedktl": {"clip_norm", "margin"},
    "fedral": {"byte_budget"},
    "fedkd": {"start", "end"},
    "dense": {"alpha", "b_bn"},
    "fedftg": {"alpha"},
    "dfrd": {"alpha"},
}


def numbers(name: str) -> dict[str, float]:
    """The options that need not be whole, and the learning rate."""
    found = {"rate": 0.05}
    for p in list(options_of(method_factory(name)).values())[1:]:
        value = settings(name).get(p.name, p.default)
        if value is None and kind_of(p.annotation) is float:
            value = 0.5
        if type(value) is float and p.name not in FIXED.get(name, ()):
            found[p.name] = value
    return found


def maker(name: str):
    def make(values):
        training = dataclasses.replace(TRAINING, optimizer=optax.sgd(values["rate"]))
        options = {key: value for key, value in values.items() if key != "rate"}
        return method_factory(name)(training, **settings(name) | options)

    return make


@pytest.mark.parametrize("name", METHODS)
def test_a_factory_takes_them_traced(name):
    jax.eval_shape(lambda values: maker(name)(values) and 0, numbers(name))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "fedssa" else pytest.mark.slow) for name in METHODS],
)
def test_a_round_does_too(name):
    federation, values = federation_for(name), numbers(name)
    options = SimulationOptions(lanes=1, devices=1)
    simulation = make_simulation(
        varied(maker(name), values),
        federation,
        federation_data(federation),
        options,
        settings=values,
    )
    state, _ = simulation.run_round(simulation.init())
    simulation.evaluate(state)
