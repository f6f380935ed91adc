"""FedMRL against NumPy: nested logits, a client's round, the mean."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.fedmrl import MIXER, fedmrl, shared_width
from fedjax_ht.methods.shared.averaging import ModelUplink
from fedjax_ht.methods.shared.small_part import mixed_features
from fedjax_ht.models import SplitModel
from fedjax_ht.models.layers import Linear
from tests import tiny
from tests.reference import averaging, mutual
from tests.standard import served
from tests.tiny import BATCHES, DATA, LR, TRAINING


def federation_of(width: int, shared_width: int):
    """Clients whose features are `width` wide, beside a shared model of another width."""
    model, shared = (SplitModel(tiny.Flat(k), Linear(4)) for k in (width, shared_width))
    return make_federation({"linear0": model}, (2, 2, 1), 4, num_clients=3, shared=shared)


def flat(client) -> dict:
    return tiny.flat_pair(client, client["projection"])


@pytest.mark.parametrize(
    ("width", "shared_width", "dim", "nested"),
    [(3, 2, None, 2), (4, 4, None, 1), (4, 4, 2, 2), (3, 3, 3, 3)],
)
def test_client_round_equals_the_reference(width, shared_width, dim, nested):
    federation = federation_of(width, shared_width)
    (bucket,), method = federation.buckets, fedmrl(TRAINING, dim=dim)
    method.check(federation)
    server = tiny.shift(method.init_server(federation, jax.random.key(1)), 1)
    client = method.init_client(bucket, tiny.context(0))
    assert server["head"]["kernel"].shape == (nested, 4)
    _, trained, uplink, metrics = tiny.play(method, client, server, bucket=bucket)
    models = flat(client) | {"shared": tiny.flat_params(server)}
    want, loss = mutual.train(mutual.fedmrl, models, BATCHES, LR, joint=True)
    tiny.check_models(flat(trained), want)
    tiny.check_model(uplink.params, want["shared"])
    assert uplink.num_samples.value == 10
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)


def test_heads_predict_from_the_fused_features_and_from_their_first_entries():
    (bucket,), method = federation_of(3, 2).buckets, fedmrl(TRAINING)
    client = method.init_client(bucket, tiny.context(0))
    x, mask = DATA.preprocess(DATA.inputs), jnp.ones(7, bool)
    scores = method.predict(bucket, client, None, x, mask)
    private, shared = mutual.nested_logits(flat(client), tiny.pixels(DATA))
    np.testing.assert_allclose(scores["head"], private, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scores["shared"], shared, rtol=1e-5, atol=1e-6)
    assert method.rules == ("head", "shared")
    assert mixed_features(MIXER, bucket, client, x, mask).shape == (7, 3)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_shared_model_is_the_mean_of_those_that_arrived(weighting):
    method, samples = fedmrl(TRAINING, weighting), {0: 3, 1: 0, 2: 5}
    old = method.init_server(tiny.FEDERATION, jax.random.key(0))
    uplinks = {}
    for i, count in samples.items():
        sent = Metadata(jnp.int32(count)) if weighting == "samples" else ()
        uplinks[i] = ModelUplink(tiny.shift(old, i), sent)
    new, _ = served(method, tiny.FEDERATION, old, tiny.receive(uplinks, samples=samples))
    weights = [3.0, 5.0] if weighting == "samples" else [1.0, 1.0]
    for name, value in tiny.flat_params(new).items():
        rows = [tiny.flat_params(uplinks[i].params)[name] for i in (0, 2)]
        np.testing.assert_allclose(value, averaging.weighted_mean(rows, weights), rtol=1e-5)


def test_the_private_part_and_batch_statistics_stay_with_the_client():
    federation = tiny.normed_federation()
    (bucket,), method, ctx = federation.buckets, fedmrl(TRAINING), tiny.context(0)
    server = method.init_server(federation, jax.random.key(1))
    client = tiny.shift(method.init_client(bucket, ctx), 1)
    received = method.receive(bucket, client, server, None, ctx)
    want = client | {"shared": {"params": server, "stats": client["shared"]["stats"]}}
    tiny.check_equal(received, want)


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
    models = {f"w{k}": SplitModel(tiny.Flat(k), Linear(4)) for k in (8, 12)}
    mixed = make_federation(models, (2, 2, 1), 4, num_clients=2, shared=models["w8"])
    unsplit = make_federation({"mine": Unsplit()}, (2, 2, 1), 4, num_clients=1)
    for federation, dim, line in (
        (federation_of(3, 4), None, "the shared model has 4 features, more than the 3 of"),
        (federation_of(3, 4), 4, "the shared model has 4 features, more than the 3 of"),
        (federation_of(3, 2), 3, "dim is 3; the shared model has only 2 features"),
        (mixed, None, r"dim would be \{'w8': 2, 'w12': 8\}; set dim"),
        (unsplit, 2, "a shared model that is no SplitModel keeps its 3"),
    ):
        with pytest.raises(ValueError, match=line):
            fedmrl(TRAINING, dim=dim).check(federation)
    for federation, dim in (
        (unsplit, None),
        (federation_of(3, 3), None),
        (federation_of(3, 3), 2),
        (federation_of(3, 4), 2),
        (mixed, 4),
    ):
        fedmrl(TRAINING, dim=dim).check(federation)
