"""FedAPEN against NumPy: the weight of its ensemble, and a client's training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.samples import Split
from fedjax_ht.core.task import CLASSIFICATION
from fedjax_ht.core.wire import wire_elements
from fedjax_ht.methods.fedapen import Rows, fedapen, hold_out, learn_weight
from tests import tiny
from tests.reference import linear_client, mutual
from tests.reference.classification import cross_entropy
from tests.reference.gradients import numerical_gradient
from tests.tiny import BUCKET, FEDERATION, LABELS, LR, TRAINING

learn = jax.jit(functools.partial(learn_weight, CLASSIFICATION.loss))
EVERY = 4  # keeps positions 3, 7, ... of the training samples


def reference_weight(weight: float, private, shared, labels) -> float:
    """Ten full-batch steps on CE(w a + (1 - w) b, y), each followed by a cut to [0, 1]."""

    def loss(w):
        return cross_entropy(w * private + (1 - w) * shared, labels)

    for _ in range(10):
        weight = float(np.clip(weight - 1e-3 * numerical_gradient(loss, np.float64(weight)), 0, 1))
    return weight


def rows_of(scale: float) -> Rows:
    rng = np.random.default_rng(0)
    private, shared = (scale * rng.normal(size=(9, 4)).astype(np.float32) for _ in range(2))
    labels = rng.integers(0, 4, 9)
    return Rows(jnp.asarray(private), jnp.asarray(shared), jnp.asarray(labels, jnp.int32))


def first_client(method, weight: float):
    return method.init_client(BUCKET, tiny.context(0)) | {"weight": jnp.float32(weight)}


@pytest.mark.parametrize(("count", "padding"), [(0, 1), (3, 6), (11, 1), (11, 6)])
def test_every_fourth_training_sample_is_held_out(count, padding):
    indices = np.arange(50, 50 + count)
    want = {"train": indices[indices % 4 != 1], "adapt": indices[indices % 4 == 1]}
    padded = jnp.asarray(np.concatenate([indices, np.full(padding, 99)]))
    train = {"train": Split(padded, jnp.int32(count)), "test": None}
    splits = hold_out(tiny.DATA._replace(splits=train), EVERY).splits
    assert splits["test"] is None
    for name, held in want.items():
        np.testing.assert_array_equal(splits[name].indices[: splits[name].count], held)


@pytest.mark.parametrize(("start", "scale"), [(0.5, 1.0), (0.998, 60.0), (0.003, 60.0)])
def test_weight_equals_the_reference_and_stays_in_the_unit_interval(start, scale):
    rows, valid, key = rows_of(scale), np.arange(9) < 7, jax.random.key(0)
    private, shared = (np.asarray(x[:7], np.float64) for x in (rows.private, rows.shared))
    for better in (private, shared):  # one model is right on every sample, then the other
        right = np.pad(better.argmax(1).astype(np.int32), (0, 2))
        given = rows._replace(labels=jnp.asarray(right))
        got = float(learn(jnp.float32(start), given, jnp.asarray(valid), key))
        want = reference_weight(start, private, shared, right[:7])
        assert 0 <= got <= 1 and got != start
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert learn(jnp.float32(0.25), rows, jnp.zeros(9, bool), key) == 0.25


def test_the_weight_is_learned_on_receipt_of_an_aggregated_model():
    method = fedapen(TRAINING, adapt_every=2)
    client = first_client(method, 0.4)
    downlink = tiny.shift(method.init_server(FEDERATION, jax.random.key(1)), 1, 2.0)
    receive = jax.jit(lambda ctx: method.receive(BUCKET, client, downlink, tiny.DATA, ctx))
    first, later = (receive(tiny.context(0, round=round)) for round in (0, 1))
    for got in (first, later):
        tiny.check_equal(got["shared"], downlink)
        tiny.check_equal(got["params"], client["params"])
    assert first["weight"] == np.float32(0.4)
    x, held = tiny.pixels(tiny.DATA), [1, 3, 5]
    private, shared = (
        linear_client.logits(tiny.flat_params(p), x) for p in (client["params"], downlink["params"])
    )
    want = reference_weight(0.4, private[held], shared[held], LABELS[held])
    assert abs(want - 0.4) > 1e-4
    np.testing.assert_allclose(later["weight"], want, rtol=0, atol=1e-6)
    fixed = fedapen(TRAINING, adapt_every=2, learned=False)
    kept = fixed.receive(BUCKET, client, downlink, tiny.DATA, tiny.context(0, round=1))["weight"]
    assert kept == np.float32(0.4)


def test_client_update_equals_the_reference():
    method, labels = fedapen(TRAINING, adapt_every=EVERY), np.array([0, 2, 2, 1, 0, 3, 0, 1])
    data = tiny.client_data(labels, padding=3)  # the fourth and the eighth are held out
    client = first_client(method, 0.3)
    _, trained, uplink, metrics = tiny.play(method, client, client["shared"], data=data)
    x = tiny.pixels(data)
    steps = [(x[at], labels[at]) for at in ([0, 1, 2], [4, 5, 6])]
    want, loss = mutual.train(mutual.fedapen(0.3), tiny.flat_pair(client), steps, LR)
    tiny.check_models(tiny.flat_pair(trained), want)
    tiny.check_model(uplink["params"], want["shared"])
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert metrics["weight"] == trained["weight"] == client["weight"]


def test_parameters_and_batch_statistics_travel():
    """|s| parameters each way, and the batch statistics."""
    federation, method = tiny.normed_federation(), fedapen(TRAINING)
    (bucket,), ctx = federation.buckets, tiny.context(0)
    server = method.init_server(federation, jax.random.key(0))
    size = (4 * 3 + 3) + (3 + 3) + (3 * 4 + 4)  # linear layer, normalisation, head
    down = method.broadcast(federation, bucket, server, ctx)
    *_, up, _ = tiny.play(method, method.init_client(bucket, ctx), down, bucket=bucket)
    for message in (down, up):
        assert wire_elements(message).payload_elements == size + 2 * 3


def test_prediction_is_the_weighted_ensemble():
    method = fedapen(TRAINING)
    client = first_client(method, 0.7)
    x = np.random.default_rng(2).normal(size=(5, 2, 2, 1)).astype(np.float32)
    scores = method.predict(BUCKET, client, (), jnp.asarray(x), jnp.ones(5, bool))
    both = client["params"], client["shared"]["params"]
    private, shared = (linear_client.logits(tiny.flat_params(p), x.reshape(5, -1)) for p in both)
    assert method.rules == ("ensemble", "head", "shared") and set(scores) == set(method.rules)
    want = {"ensemble": 0.7 * private + 0.3 * shared, "head": private, "shared": shared}
    for rule, value in want.items():
        np.testing.assert_allclose(scores[rule], value, rtol=1e-5, atol=1e-6)
