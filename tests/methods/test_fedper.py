"""FedPer against NumPy: the client's training, and a mean for each architecture."""

import jax
import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
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
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, LR, ONE_BUCKET, TRAINING


def three_buckets():
    """Clients 0 and 3 have another architecture; 1, 4 and 2, 5 one extractor and two heads."""
    models = {
        "other": mlp(2, (5, 3)),
        "plain": SplitModel(tiny.Flat(3), Linear(2)),
        "deep": SplitModel(tiny.Flat(3), DenseHead((4,), 2)),
    }
    return make_federation(models, (2, 2, 1), 2, assignment=[*models] * 2)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_client_trains_the_global_extractor_with_its_own_head(weighting):
    method = fedper(TRAINING, weighting)
    server = method.init_server(ONE_BUCKET, jax.random.key(1))
    start = method.init_client(BUCKET, tiny.context(0))
    downlink = method.broadcast(ONE_BUCKET, BUCKET, server, tiny.context(0))
    received, trained, uplink, metrics = tiny.play(method, start, downlink)
    tiny.check_equal(received["params"], {"base": server[0], "head": start["params"]["head"]})
    want, loss, _ = linear_client.train(tiny.flat_params(received["params"]), BATCHES, LR)
    tiny.check_model(trained["params"], want)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    tiny.check_equal(uplink.params, trained["params"]["base"])
    by_samples = weighting == "samples"
    assert uplink.num_samples.value == 10 if by_samples else uplink.num_samples == ()


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_extractors_of_one_architecture_are_averaged_whatever_their_heads(weighting):
    """Client 2 has no samples, and weighs nothing."""
    federation, counts, arrived = three_buckets(), [3, 5, 0, 2, 1, 7], (1, 2, 4, 5)
    expected = [["other"], ["deep", "plain"]]
    assert [sorted(b.name for b in group) for group in groups_of(federation, extractor)] == expected
    method, by_samples = fedper(TRAINING, weighting), weighting == "samples"
    server = method.init_server(federation, jax.random.key(0))
    rng = np.random.default_rng(0)

    def random(i):
        base = server[0 if i in (0, 3) else 1]
        return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), base)

    rows = [random(i) for i in range(6)]
    uplinks = {}
    for i, row in enumerate(rows):
        uplinks[i] = ModelUplink(row, Metadata(np.int32(counts[i])) if by_samples else ())
    received = tiny.receive(uplinks, tiny.members(federation), enumerate(counts), arrived)
    new, _ = served(method, federation, server, received)
    tiny.check_equal(new[0], server[0])  # nobody of it arrived
    weights = [counts[i] if by_samples else float(counts[i] > 0) for i in arrived]
    want = jax.tree.map(lambda *xs: weighted_mean(xs, weights), *(rows[i] for i in arrived))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), new[1], want)
    for bucket in federation.buckets:
        sent = method.broadcast(federation, bucket, new, None)
        tiny.check_equal(sent, new[bucket.name != "other"])
