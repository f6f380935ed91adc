"""The clients of FML and FedMRL against NumPy; the means of their servers are in test_fedavg."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.methods.fedmrl import MIXER, fedmrl, shared_width
from fedjax_ht.methods.fml import fml
from fedjax_ht.methods.shared.small_part import mixed_features
from fedjax_ht.models import SplitModel
from fedjax_ht.models.layers import Linear
from tests import tiny
from tests.methods.test_fedktl import Whole
from tests.reference import mutual
from tests.tiny import BATCHES, BUCKET, DATA, FEDERATION, LR, TRAINING


def federation_of(width: int, shared_width: int):
    """Clients whose features are `width` wide, beside a shared model of another width."""
    model, shared = (SplitModel(tiny.Flat(k), Linear(4)) for k in (width, shared_width))
    return make_federation({"linear0": model}, (2, 2, 1), 4, num_clients=3, shared=shared)


def flat(client) -> dict:
    return tiny.flat_pair(client, client["projection"])


@pytest.mark.parametrize(
    ("options", "alpha", "beta"),
    [({}, 0.5, 0.5), ({"alpha": 0.9, "beta": 0.2}, 0.9, 0.2), ({"variant": "released"}, 0.5, 0.5)],
    ids=str,
)
def test_a_client_of_fml_trains_two_models(options, alpha, beta):
    method = fml(TRAINING, **options)
    server = tiny.shift(method.init_server(FEDERATION, jax.random.key(1)), 1)
    client = method.init_client(BUCKET, tiny.context(0))
    _, trained, uplink, metrics = tiny.play(method, client, server)
    models = {"own": tiny.flat_params(client["params"]), "shared": tiny.flat_params(server)}
    released = options.get("variant") == "released"
    losses = mutual.fml(alpha, beta, 1 / 4 if released else 1.0)
    want, loss = mutual.train(losses, models, BATCHES, LR, joint=released)
    tiny.check_models(tiny.flat_pair(trained), want)
    tiny.check_model(uplink, want["shared"])
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)


NORMED = tiny.normed_federation()


def test_batch_statistics_of_fml_stay_with_the_client():
    """Of FML, and of FedMRL, which receives alike."""
    (bucket,), method, ctx = NORMED.buckets, fml(TRAINING), tiny.context(0)
    server = method.init_server(NORMED, jax.random.key(1))
    client = method.init_client(bucket, ctx)
    client["shared"]["stats"] = tiny.shift(client["shared"]["stats"], 1)
    received = method.receive(bucket, client, server, None, ctx)
    tiny.check_equal(received["shared"], {**client["shared"], "params": server})
    tiny.check_equal(received["params"], client["params"])


@pytest.mark.parametrize(
    ("width", "shared_width", "dim", "nested"),
    [(3, 2, None, 2), (4, 4, None, 1), (4, 4, 2, 2), (3, 3, 3, 3)],
)
def test_a_client_of_fedmrl_trains_three_parts(width, shared_width, dim, nested):
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


def test_a_quarter_of_the_features_nests_by_default():
    """HtFLlib's 128 of 512; a shared model that is narrower keeps its width."""
    shared = federation_of(512, 512).shared
    assert shared_width(shared, 512, None) == 128
    assert shared_width(shared, 600, None) == 512
    assert shared_width(shared, 512, 512) == 512


def test_widths_that_cannot_be_are_named():
    models = {f"w{k}": SplitModel(tiny.Flat(k), Linear(4)) for k in (8, 12)}
    mixed = make_federation(models, (2, 2, 1), 4, num_clients=2, shared=models["w8"])
    unsplit = make_federation({"mine": Whole()}, (2, 2, 1), 4, num_clients=1)
    for federation, dim, line in (
        (federation_of(3, 4), None, "the shared model has 4 features, more than the 3 of"),
        (federation_of(3, 4), 4, "the shared model has 4 features, more than the 3 of"),
        (federation_of(3, 2), 3, "dim is 3; the shared model has only 2 features"),
        (mixed, None, r"dim would be \{'w8': 2, 'w12': 8\}; set dim"),
        (unsplit, 2, "not a SplitModel, or has features for each pixel, keeps its 3"),
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
