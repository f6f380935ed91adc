"""The client's side of LG-FedAvg; its server is tested in test_heads.py."""

import jax
import numpy as np
import pytest

from fedjax_ht.core.wire import wire_elements
from fedjax_ht.methods.lg_fedavg import lg_fedavg
from tests import tiny
from tests.reference import linear_client
from tests.tiny import BATCHES, BUCKET, DATA, FEDERATION, LR, TRAINING


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_client_trains_its_extractor_with_the_global_head(weighting):
    method = lg_fedavg(TRAINING, weighting)
    server = method.init_server(FEDERATION, jax.random.key(1))
    state = method.init_client(BUCKET, tiny.context(0))
    received, trained, uplink, metrics = tiny.play(method, state, server)
    tiny.check_equal(received["params"], {"base": state["params"]["base"], "head": server})
    want, loss, _ = linear_client.train(tiny.flat_params(received["params"]), BATCHES, LR)
    tiny.check_model(trained["params"], want)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    tiny.check_equal(uplink.head, trained["params"]["head"])
    if weighting == "samples":
        assert uplink.num_samples.value == 10
    else:
        assert uplink.num_samples == () and not wire_elements(uplink).metadata_elements
    x = np.asarray(DATA.inputs[:2], np.float32) / 255
    logits = method.predict(BUCKET, trained, None, x, np.ones(2, bool))["head"]
    expected = linear_client.logits(tiny.flat_params(trained["params"]), x.reshape(2, -1))
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
