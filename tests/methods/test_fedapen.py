import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.samples import Split
from fedjax_ht.core.wire import wire_elements
from fedjax_ht.methods.fedapen import Rows, fedapen, hold_out, learn_weight
from tests import tiny
from tests.methods import pairs
from tests.reference import averaging, linear_client, mutual
from tests.reference.classification import cross_entropy
from tests.reference.gradients import numerical_gradient

TRAINING = LocalTraining(optax.sgd(pairs.LR), batch_size=3, shuffle=False)
FEDERATION = tiny.linear_federation()
BUCKET = FEDERATION.buckets[0]
EVERY = 4  # keeps positions 3, 7, ... of the training samples


def reference_weight(
    weight: float, private, shared, labels, steps: int = 10, lr: float = 1e-3
) -> float:
    """Full-batch steps on CE(w a + (1 - w) b, y), each followed by a cut to [0, 1]."""

    def loss(w):
        return cross_entropy(w * private + (1 - w) * shared, labels, [True] * len(labels))

    for _ in range(steps):
        weight = float(np.clip(weight - lr * numerical_gradient(loss, np.float64(weight)), 0, 1))
    return weight


def rows_of(scale: float = 1.0, count: int = 9, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    private, shared = (scale * rng.normal(size=(count, 4)).astype(np.float32) for _ in range(2))
    return Rows(
        jnp.asarray(private), jnp.asarray(shared), jnp.asarray(rng.integers(0, 4, count), jnp.int32)
    )


@pytest.mark.parametrize("count", [0, 3, 4, 11])
def test_every_fourth_training_sample_is_held_out(count):
    indices = np.arange(50, 50 + count)
    for padding in (1, 6):
        padded = jnp.asarray(np.concatenate([indices, np.full(padding, 99)]))
        data = tiny.client_data([0])._replace(
            splits={"train": Split(padded, jnp.int32(count)), "test": None}
        )
        splits = hold_out(data, EVERY).splits
        assert splits["test"] is None
        expected = {
            "train": [i for i in indices if i % 4 != 1],
            "adapt": [i for i in indices if i % 4 == 1],
        }
        for name, want in expected.items():
            np.testing.assert_array_equal(splits[name].indices[: splits[name].count], want)


@pytest.mark.parametrize(("start", "scale"), [(0.5, 1.0), (0.998, 60.0), (0.003, 60.0)])
def test_weight_equals_the_reference_and_stays_in_the_unit_interval(start, scale):
    for better in (0, 1):  # one model is right on every sample, then the other
        rows = rows_of(scale)
        right = [rows.private, rows.shared][better].argmax(1).astype(np.int32)
        valid = np.arange(9) < 7
        rows = rows._replace(labels=jnp.asarray(right))
        got = float(learn_weight(jnp.float32(start), rows, jnp.asarray(valid), jax.random.key(0)))
        private, shared = (
            np.asarray(logits[:7], np.float64) for logits in (rows.private, rows.shared)
        )
        want = reference_weight(start, private, shared, right[:7])
        assert 0 <= got <= 1 and got != start
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_without_adaptability_samples_the_weight_stays():
    assert learn_weight(jnp.float32(0.25), rows_of(), jnp.zeros(9, bool), jax.random.key(0)) == 0.25


def test_the_weight_is_learned_on_receipt_of_an_aggregated_model():
    method, data = fedapen(TRAINING, adapt_every=2), tiny.client_data(pairs.LABELS, padding=2)
    client = method.init_client(BUCKET, pairs.context()) | {"weight": jnp.float32(0.4)}
    downlink = pairs.shift(method.init_server(FEDERATION, jax.random.key(1)), 1, 2.0)
    receive = jax.jit(lambda ctx: method.receive(BUCKET, client, downlink, data, ctx))
    first, later = receive(pairs.context(round=0)), receive(pairs.context(round=1))
    for got in (first, later):
        jax.tree.map(np.testing.assert_array_equal, got["shared"], downlink)
        jax.tree.map(np.testing.assert_array_equal, got["params"], client["params"])
    assert first["weight"] == np.float32(0.4)
    x, held = tiny.pixels(data), [1, 3, 5]
    private, shared = (
        linear_client.logits(tiny.flat_params(p), x) for p in (client["params"], downlink["params"])
    )
    want = reference_weight(0.4, private[held], shared[held], pairs.LABELS[held])
    assert abs(want - 0.4) > 1e-4
    np.testing.assert_allclose(later["weight"], want, rtol=0, atol=1e-6)
    fixed = fedapen(TRAINING, adapt_every=2, learned=False)
    assert fixed.receive(BUCKET, client, downlink, data, pairs.context(round=1))[
        "weight"
    ] == np.float32(0.4)


def test_client_update_equals_the_reference():
    method, ctx = fedapen(TRAINING, adapt_every=EVERY), pairs.context()
    labels = np.array([0, 2, 2, 1, 0, 3, 0, 1])  # the fourth and the eighth are held out
    data = tiny.client_data(labels, padding=3)
    client = method.init_client(BUCKET, ctx) | {"weight": jnp.float32(0.3)}
    trained, uplink, metrics = jax.jit(lambda c: method.client_update(BUCKET, c, (), data, ctx))(
        client
    )
    x = tiny.pixels(data)
    steps = [(x[at], labels[at]) for at in ([0, 1, 2], [4, 5, 6])]
    want, loss = mutual.train(mutual.fedapen(0.3), pairs.flat_pair(client), steps, pairs.LR)
    pairs.assert_models_close(pairs.flat_pair(trained), want)
    pairs.assert_models_close(
        {"shared": tiny.flat_params(uplink["params"])}, {"shared": want["shared"]}
    )
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert metrics["weight"] == trained["weight"] == client["weight"]


@pytest.mark.parametrize("order", [tiny.ORDER, tiny.OTHER_ORDER], ids=["order", "other order"])
def test_server_update_averages_parameters_and_batch_statistics(order):
    federation, method = pairs.normed_federation(), fedapen(TRAINING)
    old = method.init_server(federation, jax.random.key(0))
    assert jax.tree.leaves(old["stats"])
    uplinks = {i: pairs.shift(old, i) for i in range(3)}
    got = method.server_update(federation, old, pairs.receive_uplinks(uplinks, order), None)[0]
    jax.tree.map(
        lambda new, *models: np.testing.assert_allclose(
            new, averaging.weighted_mean(list(models), [1.0] * 3), rtol=1e-5, atol=1e-6
        ),
        got,
        *uplinks.values(),
    )
    idle = method.server_update(
        federation, old, pairs.receive_uplinks(uplinks, order, dict.fromkeys(uplinks, 0)), None
    )
    jax.tree.map(np.testing.assert_array_equal, idle[0], old)


def test_prediction_is_the_weighted_ensemble():
    method = fedapen(TRAINING)
    client = method.init_client(BUCKET, pairs.context()) | {"weight": jnp.float32(0.7)}
    x = np.random.default_rng(2).normal(size=(5, 2, 2, 1)).astype(np.float32)
    scores = method.predict(BUCKET, client, (), jnp.asarray(x), jnp.ones(5, bool))
    both = client["params"], client["shared"]["params"]
    private, shared = (linear_client.logits(tiny.flat_params(p), x.reshape(5, -1)) for p in both)
    assert method.rules == ("ensemble", "head", "shared") and set(scores) == set(method.rules)
    for rule, want in (
        ("ensemble", 0.7 * private + 0.3 * shared),
        ("head", private),
        ("shared", shared),
    ):
        np.testing.assert_allclose(scores[rule], want, rtol=1e-5, atol=1e-6)


def test_the_shared_model_is_all_that_travels():
    """Parameters |s| each way, and the batch statistics that the paper averages too."""
    federation, method = pairs.normed_federation(), fedapen(TRAINING)
    bucket, ctx = federation.buckets[0], pairs.context()
    server = method.init_server(federation, ctx.key)
    down = method.broadcast(federation, bucket, server, ctx)
    _, up, _ = method.client_update(
        bucket, method.init_client(bucket, ctx), down, tiny.client_data(pairs.LABELS), ctx
    )
    size = (4 * 3 + 3) + (3 + 3) + (3 * 4 + 4)  # linear layer, normalisation, head
    assert (
        wire_elements(down).payload_elements == wire_elements(up).payload_elements == size + 2 * 3
    )
