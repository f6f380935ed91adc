"""FedPer against NumPy: the client's training, and a mean for each architecture."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.context import Received
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.fedper import fedper
from fedjax_ht.methods.shared.architectures import extractor, groups_of
from fedjax_ht.methods.shared.averaging import ModelUplink
from fedjax_ht.models import SplitModel, mlp
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import DenseHead
from tests import tiny
from tests.reference import linear_client
from tests.reference.averaging import weighted_mean

LR = 0.1
TRAINING = LocalTraining(optax.sgd(LR), batch_size=3, shuffle=False)
FEDERATION = tiny.linear_federation(buckets=1)
BUCKET = FEDERATION.buckets[0]
LABELS = np.array([0, 2, 2, 0, 3, 0])


def three_buckets(order=("other", "plain", "deep")):
    """Clients 0 and 3 have another architecture; 1, 4 and 2, 5 one extractor and two heads."""
    models = {
        "other": mlp(2, (5, 3)),
        "plain": SplitModel(tiny.Flat(3), Linear(2)),
        "deep": SplitModel(tiny.Flat(3), DenseHead((4,), 2)),
    }
    assignment = ["other", "plain", "deep"] * 2
    models = {name: models[name] for name in order}
    return make_federation(models, (2, 2, 1), 2, assignment=assignment)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_client_trains_the_global_extractor_with_its_own_head(weighting):
    method, ctx = fedper(TRAINING, weighting), tiny.context(0)
    server = method.init_server(FEDERATION, jax.random.key(1))
    start, data = method.init_client(BUCKET, ctx), tiny.client_data(LABELS)

    @jax.jit
    def client_round(client):
        downlink = method.broadcast(FEDERATION, BUCKET, server, ctx)
        client = method.receive(BUCKET, client, downlink, data, ctx)
        return client, method.client_update(BUCKET, client, downlink, data, ctx)

    received, (trained, uplink, metrics) = client_round(start)
    jax.tree.map(np.testing.assert_array_equal, received["params"]["base"], server[0])
    jax.tree.map(np.testing.assert_array_equal, received["params"]["head"], start["params"]["head"])
    x = tiny.pixels(data)
    batches = [(x[:3], LABELS[:3]), (x[3:], LABELS[3:])]
    want, loss, _ = linear_client.train(
        tiny.flat_params(start["params"] | {"base": server[0]}), batches, LR
    )
    for name, value in tiny.flat_params(trained["params"]).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, uplink.params, trained["params"]["base"])
    if weighting == "samples":
        assert uplink.num_samples.value == ctx.info.num_samples
    else:
        assert uplink.num_samples == ()


def received_of(federation, rows, counts, arrived):
    """Makes uplinks of the extractors rows[group][client]; absent ones are NaN."""
    received = {}
    for bucket in federation.buckets:
        ids = list(federation.members(bucket))
        present = np.array([i in arrived for i in ids])
        (group,) = (g for g, b in enumerate(groups_of(federation, extractor)) if bucket in b)

        def stacked(*xs, present=present):
            flags = present.reshape(-1, *[1] * xs[0].ndim)
            return jnp.where(flags, jnp.stack(xs), jnp.nan)

        base = jax.tree.map(stacked, *[rows[group][i] for i in ids])
        numbers = Metadata(jnp.array([counts[i] for i in ids]))
        info = tiny.infos(ids, [counts[i] for i in ids])
        received[bucket.name] = Received(ModelUplink(base, numbers), info, jnp.asarray(present))
    return received


@pytest.mark.parametrize("order", [("other", "plain", "deep"), ("deep", "plain", "other")])
def test_extractors_of_one_architecture_are_averaged_whatever_their_heads(order):
    federation, counts, arrived = three_buckets(order), [3, 5, 0, 2, 1, 7], (1, 2, 4, 5)
    assert [sorted(b.name for b in group) for group in groups_of(federation, extractor)] == [
        ["other"],
        ["deep", "plain"],
    ]
    method = fedper(TRAINING)
    server = method.init_server(federation, jax.random.key(0))
    rng = np.random.default_rng(0)

    def random(base):
        return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), base)

    rows = [[random(base) for _ in range(6)] for base in server]
    received = received_of(federation, rows, counts, arrived)
    new, _ = jax.jit(lambda r: method.server_update(federation, server, r, None))(received)
    jax.tree.map(np.testing.assert_array_equal, new[0], server[0])  # nobody of it arrived
    weights = [counts[i] for i in arrived]
    want = jax.tree.map(lambda *xs: weighted_mean(xs, weights), *[rows[1][i] for i in arrived])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), new[1], want)
    for bucket in federation.buckets:
        sent = method.broadcast(federation, bucket, new, None)
        jax.tree.map(np.testing.assert_array_equal, sent, new[bucket.name != "other"])
