"""FedL2G against NumPy: the closed form of its gradient, and who sends which rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.bucket import features, logits
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.wire import Masked
from fedjax_ht.losses import cross_entropy
from fedjax_ht.methods.fedl2g import fedl2g
from fedjax_ht.models import SplitModel, mlp
from fedjax_ht.models.layers import Linear
from tests import tiny
from tests.federations import identical
from tests.methods.test_fedbn import Base
from tests.reference import fedl2g as reference
from tests.standard import served
from tests.tiny import LR, C, K, check_equal, check_model, model
from tests.tiny import ONE_BUCKET as FEDERATION
from tests.tiny import SHORT_TRAINING as TRAINING

LABELS = np.array([1, 0, 3, 0, 2, 2, 0, 1])  # a quiz of three; two batches to study, one short
DATA = tiny.client_data(LABELS, padding=2)
X = tiny.pixels(DATA)
QUIZ, STUDY, LAST = (X[:3], LABELS[:3]), (X[3:6], LABELS[3:6]), (X[6:], LABELS[6:])


def vectors(guide):
    width = C if guide == "logits" else K
    return np.random.default_rng(1).normal(size=(C, width)).astype(np.float32)


CLIENT = {"params": model(3), "stats": {}}


def update(method, v, data=DATA, round=0):
    """A client's training."""
    return tiny.play(method, CLIENT, v, data=data, ctx=tiny.context(0, round=round))[1:]


@pytest.mark.parametrize("guide", ["logits", "features"])
def test_client_update_equals_the_reference(guide):
    method, v = fedl2g(TRAINING, guide=guide, warmup=2), vectors(guide)
    trained, uplink, metrics = update(method, v, round=2)
    params = tiny.flat_params(CLIENT["params"])
    for batch in (STUDY, LAST):
        params = reference.step(params, v, batch, LR, guide)
    check_model(trained["params"], params)
    want = reference.vector_gradient(params, v.astype(float), STUDY, QUIZ, LR, guide)
    np.testing.assert_array_equal(uplink.mask, [True, False, True, False])
    np.testing.assert_allclose(uplink.values[uplink.mask], want[[0, 2]], rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(want[[1, 3]], 0, atol=1e-9)  # not in the batch: nothing to send
    assert np.abs(want).max() > 1e-3 and metrics["quiz_loss"] > 0


def test_several_batches_are_a_mean_over_as_many():
    """The second study batch is short, a third is empty and does not count."""
    for batches in (2, 3):
        method, v = fedl2g(TRAINING, warmup=9, study_batches=batches), vectors("logits")
        _, uplink, _ = update(method, v)
        params, v64 = tiny.flat_params(CLIENT["params"]), v.astype(float)

        def quiz_loss(v, params=params):
            moved = [reference.step(params, v, batch, LR, "logits") for batch in (STUDY, LAST)]
            virtual = {k: p + sum(m[k] - p for m in moved) / 2 for k, p in params.items()}
            return reference.linear_client.loss(virtual, *QUIZ)

        for c, d in ((0, 1), (1, 2), (2, 0)):
            up, down = v64.copy(), v64.copy()
            up[c, d] += reference.STEP
            down[c, d] -= reference.STEP
            want = (quiz_loss(up) - quiz_loss(down)) / (2 * reference.STEP)
            np.testing.assert_allclose(uplink.values[c, d], want, rtol=1e-3, atol=1e-7)
        np.testing.assert_array_equal(uplink.mask, [True, True, True, False])


def test_rows_without_a_gradient_are_not_sent():
    """ReLUs that are off for all samples pass none to the features; the logits have their bias."""
    federation = make_federation({"mlp": mlp(C, (K,))}, (2, 2, 1), C, num_clients=1)
    (bucket,) = federation.buckets
    params = bucket.module.init(jax.random.key(3), np.zeros((1, 2, 2, 1)))["params"]
    params["base"]["fc1"]["bias"] -= 100
    client, ctx = {"params": params, "stats": {}}, tiny.context(0, last_round=0)
    for guide, sent in (("features", []), ("logits", [0, 2])):
        method = fedl2g(TRAINING, guide=guide, warmup=2)
        run = jax.jit(
            lambda v, method=method: method.client_update(bucket, client, v, DATA, ctx)[1]
        )
        assert np.flatnonzero(run(vectors(guide)).mask).tolist() == sent


def test_in_the_first_rounds_clients_stay_as_they_are():
    method = fedl2g(TRAINING, warmup=2)
    trained, uplink, metrics = update(method, vectors("logits"), round=1)
    check_equal(trained, CLIENT)
    assert uplink.mask.any() and metrics["loss"] == 0
    ctx = tiny.context(0, round=1)._replace(adapt_epochs=jnp.int32(2))
    tuned = tiny.play(method, CLIENT, vectors("logits"), data=DATA, ctx=ctx)[1]
    assert not identical(tuned, CLIENT)  # before an evaluation
    assert "do not train" in method.view.warn({"warming_up": 1.0})
    assert method.view.warn({"warming_up": 0.0}) is None


def test_a_client_without_samples_beyond_its_quiz_trains_and_sends_nothing():
    data, v = tiny.client_data(LABELS, np.arange(3)), vectors("logits")
    trained, uplink, metrics = update(fedl2g(TRAINING, warmup=0), v, data)
    start = tiny.flat_params(CLIENT["params"])
    check_model(trained["params"], reference.step(start, v, QUIZ, LR, "logits"))
    assert not uplink.mask.any() and np.isfinite(uplink.values).all() and metrics["loss"] > 0


def test_batch_norm_is_passed_through_and_keeps_no_statistics_of_the_virtual_step():
    """Modules with a rule for reverse mode alone, such as batch norm, are taken."""
    federation = make_federation(
        {"a": SplitModel(Base(), Linear(C), stateful=True)}, (2, 2, 1), C, num_clients=1
    )
    bucket, method = federation.buckets[0], fedl2g(TRAINING, guide="features", warmup=9)
    client = method.init_client(bucket, tiny.context(0, last_round=0))
    v = jnp.asarray(vectors("features"))

    def loss(v, params):
        """The gradient of a gradient, which the method does not take."""

        def batch_of(start, stop):
            x = DATA.preprocess(DATA.inputs[start:stop])
            return x, DATA.labels[start:stop], jnp.ones(stop - start, bool)

        def outputs(params, x, mask):
            rows, _ = features(bucket, params, client["stats"], x, mask, train=True)
            return logits(bucket, params, rows), rows

        def study(params):
            x, y, mask = batch_of(3, 6)
            scores, rows = outputs(params, x, mask)
            return cross_entropy(scores, y, mask) + jnp.mean((rows - v[y]) ** 2)

        virtual = jax.tree.map(lambda p, g: p - LR * g, params, jax.grad(study)(params))
        x, y, mask = batch_of(0, 3)
        return cross_entropy(outputs(virtual, x, mask)[0], y, mask)

    want = jax.jit(jax.grad(loss))(v, client["params"])
    ctx = tiny.context(0, last_round=0)
    trained, uplink, _ = jax.jit(lambda c: method.client_update(bucket, c, v, DATA, ctx))(client)
    check_equal(trained["stats"], client["stats"])
    np.testing.assert_allclose(
        np.where(uplink.mask[:, None], uplink.values, 0), want, rtol=1e-3, atol=1e-6
    )


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_server_update_equals_the_reference(scale):
    """The rows of a class are averaged over those who sent it; together they are clipped."""
    method, rng = fedl2g(TRAINING, server_lr=0.5), np.random.default_rng(0)
    v = vectors("logits")
    values = scale * rng.normal(size=(4, C, C)).astype(np.float32)
    mask = np.array([[1, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
    values[~mask] = np.nan
    uplinks = {i: Masked(values[i], mask[i]) for i in range(4)}
    received = tiny.receive(uplinks, [[0, 1, 2, 3]], arrived=(0, 1, 2))
    new, metrics = served(method, FEDERATION, jnp.asarray(v), received, tiny.context())
    uploads = [{c: values[i, c] for c in np.flatnonzero(mask[i])} for i in range(3)]
    np.testing.assert_allclose(new, reference.server_update(v, uploads, 0.5), rtol=1e-5)
    assert metrics["classes"] == 2 and metrics["warming_up"]


def test_rates_and_widths_follow_the_guide():
    for guide, rate, width in (("logits", 0.1, C), ("features", 100.0, K)):
        method = fedl2g(TRAINING, guide=guide)
        server = method.init_server(FEDERATION, jax.random.key(0))
        assert server.shape == (C, width)
        row = jnp.zeros_like(server).at[0, 0].set(1e-3)
        received = tiny.receive({0: Masked(row, np.arange(C) == 0)}, [[0]])
        new, _ = served(method, FEDERATION, server, received, tiny.context())
        np.testing.assert_allclose(server[0, 0] - new[0, 0], rate * 1e-3, rtol=1e-3)


def test_the_virtual_step_has_the_rate_of_the_round():
    half = dataclasses.replace(TRAINING, schedule=lambda round: 0.5)
    lower, v = dataclasses.replace(TRAINING, optimizer=optax.sgd(LR / 2)), vectors("logits")
    rows = [update(fedl2g(t, warmup=9), v)[1].values for t in (half, lower)]
    np.testing.assert_allclose(*rows, rtol=1e-6)
