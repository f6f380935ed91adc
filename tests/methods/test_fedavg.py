"""FedAvg, FedPer and LG-FedAvg against NumPy: their clients, and all servers that are a mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.fedapen import fedapen
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.fedclassavg import fedclassavg
from fedjax_ht.methods.fedmrl import fedmrl
from fedjax_ht.methods.fedper import fedper
from fedjax_ht.methods.fml import fml
from fedjax_ht.methods.lg_fedavg import lg_fedavg
from fedjax_ht.methods.shared.architectures import EXTRACTOR, groups_of
from fedjax_ht.methods.shared.averaging import ModelUplink, weighted_mean
from fedjax_ht.models import SplitModel, mlp
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import DenseHead
from tests import tiny
from tests.reference import averaging, linear_client
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, DATA, IN_ONE_BUCKET, LR, ONE_BUCKET, TRAINING

NORMED = tiny.normed_federation()
BY_SAMPLES, ALIKE = [3, 5], [1, 1]
SERVERS = {  # the method, what clients send of a model, and the weights of three and five samples
    "fedavg": (fedavg(TRAINING), ModelUplink, BY_SAMPLES),
    "fedavg, uniform": (fedavg(TRAINING, "uniform"), ModelUplink, ALIKE),
    "lg_fedavg": (lg_fedavg(TRAINING), ModelUplink, BY_SAMPLES),
    "lg_fedavg, uniform": (lg_fedavg(TRAINING, "uniform"), ModelUplink, ALIKE),
    "fedclassavg": (fedclassavg(TRAINING), ModelUplink, BY_SAMPLES),
    "fml": (fml(TRAINING), None, ALIKE),
    "fedapen": (fedapen(TRAINING), None, ALIKE),
    "fedmrl": (fedmrl(TRAINING), ModelUplink, BY_SAMPLES),
    "fedmrl, uniform": (fedmrl(TRAINING, "uniform"), ModelUplink, ALIKE),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_averages_the_models_of_clients_with_samples(name):
    """FedAPEN's with their batch statistics. In a uniform mean, too, a client without samples
    weighs nothing, and if only such clients arrive the server's model stays."""
    method, form, weights = SERVERS[name]
    old = method.init_server(NORMED, jax.random.key(0))
    assert ("stats" in old) == (name == "fedapen")
    models = {i: tiny.shift(old, i) for i in range(3)}

    def uplink(i, count):
        sent = Metadata(np.int32(count)) if weights is BY_SAMPLES else ()
        return models[i] if form is None else form(models[i], sent)

    def after(samples, arrived=None):
        uplinks = {i: uplink(i, count) for i, count in samples.items()}
        order = IN_ONE_BUCKET if method.name == "fedavg" else tiny.OTHER_ORDER
        return served(method, NORMED, old, tiny.receive(uplinks, order, samples, arrived))[0]

    def check(new, *uploads):
        mean = averaging.weighted_mean(uploads, weights[: len(uploads)])
        np.testing.assert_allclose(new, mean, rtol=1e-5, atol=1e-6)

    jax.tree.map(check, after({0: 3, 1: 0, 2: 5}), models[0], models[2])
    jax.tree.map(check, after({0: 0, 1: 9, 2: 0}), models[1])
    tiny.check_equal(after(dict.fromkeys(models, 0)), old)
    tiny.check_equal(after({0: 9, 1: 0, 2: 0}, arrived=(1, 2)), old)


def test_weighted_mean_keeps_dtypes_and_reads_no_row_of_weight_zero():
    stacked = {
        "x": jnp.array([1.0, jnp.nan, 4.0], jnp.float16),
        "y": jnp.array([[2.0], [jnp.inf], [8.0]]),
    }
    got = weighted_mean(stacked, jnp.array([2.0, 0.0, 1.0]))
    assert got["x"].dtype == jnp.float16 and got["y"].dtype == jnp.float32
    np.testing.assert_allclose([got["x"], got["y"][0]], [2, 4], rtol=1e-3)


# the part of a model that the server has; None: all of it
PARTS = {"fedavg": None, "fedper": "base", "lg_fedavg": "head"}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("name", PARTS)
def test_a_client_trains_the_servers_part_beside_its_own_rest(name, weighting):
    method, part = METHODS[name](TRAINING, weighting), PARTS[name]
    server = method.init_server(ONE_BUCKET, jax.random.key(1))
    state = method.init_client(BUCKET, tiny.context(0))
    downlink = method.broadcast(ONE_BUCKET, BUCKET, server, tiny.context(0))
    received, trained, uplink, metrics = tiny.play(method, state, downlink)
    taken = downlink if part is None else {part: downlink}
    tiny.check_equal(received["params"], state["params"] | taken)
    kept = method.receive(BUCKET, state | {"stats": 3}, downlink, None, None)
    assert kept["stats"] == 3  # batch statistics stay the client's own
    want, loss, _ = linear_client.train(tiny.flat_params(received["params"]), BATCHES, LR)
    tiny.check_model(trained["params"], want)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    sent, num_samples = uplink
    tiny.check_equal(sent, trained["params"] if part is None else trained["params"][part])
    assert num_samples.value == 10 if weighting == "samples" else num_samples == ()
    x = DATA.preprocess(DATA.inputs)
    scores = method.predict(BUCKET, trained, None, x, jnp.ones(len(x), bool))["head"]
    logits = linear_client.logits(want, tiny.pixels(DATA))
    np.testing.assert_allclose(scores, logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedper_averages_extractors_of_one_architecture_whatever_their_heads(weighting):
    """Clients 0 and 3 have another architecture, of which nobody arrives; 1, 4 and 2, 5 have one
    extractor and two heads. Client 2 has no samples, and weighs nothing."""
    models = {
        "other": mlp(2, (5, 3)),
        "plain": SplitModel(tiny.Flat(3), Linear(2)),
        "deep": SplitModel(tiny.Flat(3), DenseHead((4,), 2)),
    }
    federation = make_federation(models, (2, 2, 1), 2, assignment=[*models] * 2)
    counts, arrived = [3, 5, 0, 2, 1, 7], (1, 2, 4, 5)
    expected = [["other"], ["deep", "plain"]]
    assert [sorted(b.name for b in group) for group in groups_of(federation, EXTRACTOR)] == expected
    method, by_samples = fedper(TRAINING, weighting), weighting == "samples"
    server, uplinks = method.init_server(federation, jax.random.key(0)), {}
    for i, count in enumerate(counts):
        row = tiny.shift(server[0 if i in (0, 3) else 1], i)
        uplinks[i] = ModelUplink(row, Metadata(np.int32(count)) if by_samples else ())
    received = tiny.receive(uplinks, tiny.members(federation), enumerate(counts), arrived)
    new, _ = served(method, federation, server, received)
    tiny.check_equal(new[0], server[0])
    weights = [counts[i] if by_samples else float(counts[i] > 0) for i in arrived]

    def check(new, *uploads):
        np.testing.assert_allclose(new, averaging.weighted_mean(uploads, weights), rtol=1e-5)

    jax.tree.map(check, new[1], *(uplinks[i].params for i in arrived))
    for bucket in federation.buckets:
        sent = method.broadcast(federation, bucket, new, None)
        tiny.check_equal(sent, new[bucket.name != "other"])
