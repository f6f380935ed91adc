"""The client's side of LG-FedAvg; its server is tested in test_heads.py."""

import jax
import numpy as np
import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import wire_elements
from fedjax_ht.methods.lg_fedavg import lg_fedavg
from tests import tiny
from tests.reference import linear_client

LR = 0.1
TRAINING = LocalTraining(optax.sgd(LR), batch_size=3, shuffle=False)
FEDERATION = tiny.linear_federation()
BUCKET = FEDERATION.buckets[0]
LABELS = np.array([0, 2, 2, 0, 3, 0])


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_client_trains_its_extractor_with_the_global_head(weighting):
    method, ctx = lg_fedavg(TRAINING, weighting), tiny.context(0)
    server = method.init_server(FEDERATION, jax.random.key(1))
    state, data = method.init_client(BUCKET, ctx), tiny.client_data(LABELS)

    @jax.jit
    def client_round(state):
        downlink = method.broadcast(FEDERATION, BUCKET, server, ctx)
        client = method.receive(BUCKET, state, downlink, data, ctx)
        return client, method.client_update(BUCKET, client, downlink, data, ctx)

    received, (trained, uplink, metrics) = client_round(state)
    jax.tree.map(np.testing.assert_array_equal, received["params"]["head"], server)
    jax.tree.map(np.testing.assert_array_equal, received["params"]["base"], state["params"]["base"])
    x = tiny.pixels(data)
    batches = [(x[:3], LABELS[:3]), (x[3:], LABELS[3:])]
    want, loss, _ = linear_client.train(
        tiny.flat_params(state["params"] | {"head": server}), batches, LR
    )
    for name, value in tiny.flat_params(trained["params"]).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, uplink.head, trained["params"]["head"])
    if weighting == "samples":
        assert uplink.num_samples.value == ctx.info.num_samples
    else:
        assert uplink.num_samples == () and not wire_elements(uplink).metadata_elements
    logits = method.predict(BUCKET, trained, None, data.inputs[:2] / 255.0, np.ones(2, bool))[
        "head"
    ]
    want = linear_client.logits(
        tiny.flat_params(trained["params"]), np.asarray(data.inputs[:2]).reshape(2, -1) / 255.0
    )
    np.testing.assert_allclose(logits, want, rtol=1e-5, atol=1e-5)
