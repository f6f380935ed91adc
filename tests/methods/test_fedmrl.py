"""FedMRL against NumPy: nested logits, a client's round, the mean."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.fedmrl import MIXER, fedmrl, shared_width
from fedjax_ht.methods.shared.averaging import ModelUplink
from fedjax_ht.methods.shared.small_part import mixed_features
from fedjax_ht.models import SplitModel
from fedjax_ht.models.layers import Linear
from tests import tiny
from tests.methods import pairs
from tests.reference import averaging, mutual

TRAINING = LocalTraining(optax.sgd(pairs.LR), batch_size=3, shuffle=False)


def federation_of(width: int, shared_width: int):
    """Clients whose features are `width` wide, beside a shared model of another width."""
    model, shared = (SplitModel(tiny.Flat(k), Linear(4)) for k in (width, shared_width))
    return make_federation({"linear0": model}, (2, 2, 1), 4, num_clients=3, shared=shared)


def flat(client) -> dict:
    return pairs.flat_pair(client, client["projection"])


@pytest.mark.parametrize(
    ("width", "shared_width", "dim", "nested"),
    [(3, 2, None, 2), (4, 4, None, 1), (4, 4, 2, 2), (3, 3, 3, 3)],
)
def test_client_round_equals_the_reference(width, shared_width, dim, nested):
    federation = federation_of(width, shared_width)
    bucket, method = federation.buckets[0], fedmrl(TRAINING, dim=dim)
    method.check(federation)
    ctx, data = pairs.context(), tiny.client_data(pairs.LABELS, padding=2)
    server = pairs.shift(method.init_server(federation, jax.random.key(1)), 1)
    client = method.init_client(bucket, ctx)

    @jax.jit
    def client_round(client):
        downlink = method.broadcast(federation, bucket, server, ctx)
        client = method.receive(bucket, client, downlink, data, ctx)
        return method.client_update(bucket, client, downlink, data, ctx)

    assert server["head"]["kernel"].shape == (nested, 4)
    trained, uplink, metrics = client_round(client)
    models = flat(client) | {"shared": tiny.flat_params(server)}
    want, loss = mutual.train(mutual.fedmrl, models, pairs.batches(data), pairs.LR, joint=True)
    pairs.assert_models_close(flat(trained), want)
    pairs.assert_models_close(
        {"shared": tiny.flat_params(uplink.params)}, {"shared": want["shared"]}
    )
    assert uplink.num_samples.value == len(pairs.LABELS)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)


def test_heads_predict_from_the_fused_features_and_from_their_first_entries():
    federation = federation_of(3, 2)
    bucket, method = federation.buckets[0], fedmrl(TRAINING)
    client, data = method.init_client(bucket, pairs.context()), tiny.client_data(pairs.LABELS)
    x, mask = data.preprocess(data.inputs), jnp.ones(len(pairs.LABELS), bool)
    scores = method.predict(bucket, client, None, x, mask)
    private, shared = mutual.nested_logits(flat(client), tiny.pixels(data))
    np.testing.assert_allclose(scores["head"], private, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scores["shared"], shared, rtol=1e-5, atol=1e-6)
    assert method.rules == ("head", "shared")
    assert mixed_features(MIXER, bucket, client, x, mask).shape == (len(pairs.LABELS), 3)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("order", [tiny.ORDER, tiny.OTHER_ORDER], ids=["order", "other order"])
def test_the_shared_model_is_the_mean_of_those_that_arrived(weighting, order):
    method, samples = fedmrl(TRAINING, weighting), {0: 3, 1: 0, 2: 5}
    federation = tiny.linear_federation()
    old = method.init_server(federation, jax.random.key(0))
    uplinks = {}
    for i, count in samples.items():
        sent = Metadata(jnp.int32(count)) if weighting == "samples" else ()
        uplinks[i] = ModelUplink(pairs.shift(old, i), sent)
    received = pairs.receive_uplinks(uplinks, order, samples)
    new, _ = jax.jit(lambda r: method.server_update(federation, old, r, None))(received)
    weights = [3.0, 5.0] if weighting == "samples" else [1.0, 1.0]
    for name, value in tiny.flat_params(new).items():
        rows = [tiny.flat_params(uplinks[i].params)[name] for i in (0, 2)]
        np.testing.assert_allclose(value, averaging.weighted_mean(rows, weights), rtol=1e-5)


def test_the_private_part_and_batch_statistics_stay_with_the_client():
    federation = pairs.normed_federation()
    bucket, method, ctx = federation.buckets[0], fedmrl(TRAINING), pairs.context()
    server = method.init_server(federation, jax.random.key(1))
    client = pairs.shift(method.init_client(bucket, ctx), 1)
    received = method.receive(bucket, client, server, None, ctx)
    want = client | {"shared": {"params": server, "stats": client["shared"]["stats"]}}
    jax.tree.map(np.testing.assert_array_equal, received, want)


def test_each_part_is_clipped_by_its_own_norm():
    """All of them together are clipped to one bound where the optimizer sees one tree."""
    bound = 0.01
    clipped = optax.chain(optax.clip_by_global_norm(bound), optax.sgd(1.0))
    training = LocalTraining(clipped, batch_size=6, shuffle=False)
    bucket, method = federation_of(3, 2).buckets[0], fedmrl(training)
    client, data = method.init_client(bucket, pairs.context()), tiny.client_data(pairs.LABELS)
    trained, *_ = method.client_update(bucket, client, None, data, pairs.context())
    for part in (lambda c: c["params"], lambda c: c["shared"]["params"], lambda c: c["projection"]):
        step = jax.tree.map(jnp.subtract, part(trained), part(client))
        np.testing.assert_allclose(optax.tree.norm(step), bound, rtol=1e-3)


def test_a_quarter_of_the_features_nests_by_default():
    """HtFLlib's 128 of 512; a shared model that is narrower keeps its width."""
    shared = federation_of(512, 512).shared
    assert shared_width(shared, 512, None) == 128
    assert shared_width(shared, 600, None) == 512
    assert shared_width(shared, 512, 512) == 512


class Unsplit(nn.Module):
    """A model that is no SplitModel."""

    def setup(self):
        self.base, self.head = Linear(3), Linear(4)

    def features(self, x, train=False, mask=None):
        return self.base(x.reshape(len(x), -1))

    def classify(self, features):
        return self.head(features)

    def __call__(self, x):
        return self.classify(self.features(x))


def test_widths_that_cannot_be_are_named():
    with pytest.raises(ValueError, match="the shared model has 4 features, more than the 3 of"):
        fedmrl(TRAINING).check(federation_of(3, 4))
    with pytest.raises(ValueError, match="the shared model has 4 features, more than the 3 of"):
        fedmrl(TRAINING, dim=4).check(federation_of(3, 4))
    with pytest.raises(ValueError, match="dim is 3; the shared model has only 2 features"):
        fedmrl(TRAINING, dim=3).check(federation_of(3, 2))
    with pytest.raises(ValueError, match="dim is 0; it must be"):
        fedmrl(TRAINING, dim=0)
    models = {f"w{k}": SplitModel(tiny.Flat(k), Linear(4)) for k in (8, 12)}
    mixed = make_federation(models, (2, 2, 1), 4, num_clients=2, shared=models["w8"])
    with pytest.raises(ValueError, match=r"dim would be \{'w8': 2, 'w12': 8\}; set dim"):
        fedmrl(TRAINING).check(mixed)
    unsplit = make_federation({"mine": Unsplit()}, (2, 2, 1), 4, num_clients=1)
    with pytest.raises(ValueError, match="a shared model that is no SplitModel keeps its 3"):
        fedmrl(TRAINING, dim=2).check(unsplit)
    fedmrl(TRAINING).check(unsplit)
    for method in (fedmrl(TRAINING), fedmrl(TRAINING, dim=2)):
        method.check(federation_of(3, 3))
    fedmrl(TRAINING, dim=2).check(federation_of(3, 4))
    fedmrl(TRAINING, dim=4).check(mixed)
