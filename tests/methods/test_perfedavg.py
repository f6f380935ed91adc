"""Per-FedAvg's tuning, and scores after it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.perfedavg import perfedavg
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import tiny
from tests.federations import TRAINING, federation_data, federation_for
from tests.tiny import BUCKET, model


def test_tuning_is_plain_sgd_of_length_alpha():
    """Whatever the recipe's optimiser is."""
    recipe = dataclasses.replace(tiny.TRAINING, optimizer=optax.adam(0.5))
    step = dataclasses.replace(tiny.TRAINING, optimizer=optax.sgd(0.2))
    client, ctx = {"params": model(0), "stats": {}}, tiny.context(0)
    tuned = []
    for method in (perfedavg(recipe, alpha=0.2), fedavg(step)):
        update = jax.jit(method.client_update, static_argnums=(0,))
        tuning = ctx._replace(adapt_epochs=jnp.int32(1))
        tuned.append(update(BUCKET, client, model(0), tiny.DATA, tuning)[0]["params"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *tuned)


def test_a_step_takes_the_batches_of_its_parts():
    assert perfedavg(TRAINING).training.batch_size == 3 * TRAINING.batch_size
    assert perfedavg(TRAINING, variant="first_order").training.batch_size == 2 * TRAINING.batch_size


def test_scores_rise_with_tuning():
    federation = federation_for("perfedavg")
    data, scored = federation_data(federation), []
    for epochs in (None, 40):
        options = SimulationOptions(scoring=Scoring(adapt_epochs=epochs))
        sim = make_simulation(perfedavg(TRAINING, alpha=0.1), federation, data, options)
        state, _ = sim.run_round(sim.init())
        scored.append(np.nanmean(sim.evaluate(state).accuracy["test"]["head"]))
    assert scored[1] > scored[0]
