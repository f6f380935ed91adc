"""FedBABU: the part that is trained in a round, and before a score."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.methods.fedbabu import fedbabu
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import tiny
from tests.federations import TRAINING, federation_data, federation_for, identical, to_host
from tests.tiny import BUCKET, check_equal, model


@pytest.mark.parametrize(
    ("tune", "moved"), [("all", {"base", "head"}), ("base", {"base"}), ("head", {"head"})]
)
def test_parts(tune, moved):
    """A round trains the extractor alone; tuning, what is chosen."""
    method, ctx = fedbabu(tiny.TRAINING, tune), tiny.context(0)
    update = jax.jit(method.client_update, static_argnums=(0,))
    client, data = {"params": model(0), "stats": {}}, tiny.DATA

    def trained(ctx):
        new, uplink, _ = update(BUCKET, client, model(0), data, ctx)
        check_equal(uplink.params, new["params"]["base"])
        return {k for k in ("base", "head") if not identical(new["params"][k], model(0)[k])}

    assert trained(ctx) == {"base"}
    assert trained(ctx._replace(adapt_epochs=jnp.int32(1))) == moved


def test_tuning_helps_and_the_head_stays():
    federation = federation_for("fedbabu")
    data, scored = federation_data(federation), []
    for epochs in (None, 40):
        options = SimulationOptions(scoring=Scoring(adapt_epochs=epochs))
        sim = make_simulation(fedbabu(TRAINING), federation, data, options)
        state = sim.init()
        first = to_host(state).server
        for _ in range(3):
            state, _ = sim.run_round(state)
        scored.append(np.nanmean(sim.evaluate(state).accuracy["test"]["head"]))
        for before, after in zip(first, to_host(state).server):
            assert identical(before["head"], after["head"])
            assert not identical(before["base"], after["base"])
    assert scored[1] > scored[0]
