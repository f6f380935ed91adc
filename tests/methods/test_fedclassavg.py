"""The client's side of FedClassAvg; its server is tested in test_heads.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.data.augment import flip
from fedjax_ht.methods.fedclassavg import fedclassavg, random_view
from tests import tiny
from tests.reference import fedclassavg as reference
from tests.tiny import BUCKET, FEDERATION

LR = 0.02
TRAINING = LocalTraining(
    optax.sgd(LR), batch_size=3, shuffle=False, augmentation=lambda key, x, black: flip(key, x)
)
LABELS = tiny.LABELS[:6]
NEWCOMER, OLD_HAND = -1, 4  # last rounds


def context(last_round: int):
    return tiny.context(0, seed=3, last_round=last_round)


@functools.cache
def method_with(**options):
    """One method for all tests of these options, so that its round is compiled once."""
    return fedclassavg(TRAINING, **options)


compiled_view = jax.jit(random_view)  # op by op it takes some forty programs


def views(data, key):
    """Batches (x1, x2, y) of a pass with this key; `train` keeps its third part for the loss."""
    loss_key = jax.random.split(key, 3)[2]
    x = tiny.pixels(data).reshape(-1, 2, 2, 1)
    for number in range(2):
        batch = slice(3 * number, 3 * number + 3)
        keys = jax.random.split(jax.random.fold_in(loss_key, number), 3)
        drawn = [compiled_view(k, data, jnp.float32(x[batch])) for k in keys[:2]]
        x1, x2 = (np.asarray(view, np.float64).reshape(3, -1) for view in drawn)
        assert np.abs(x1 - x2).max() > 0.1
        yield x1, x2, LABELS[batch]


@pytest.mark.parametrize("last_round", [NEWCOMER, OLD_HAND])
@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({"variant": "released"}, {"scale": 100 / 0.07, "temperature": 100.0, "mu": 0.1}),
        ({"mu": 3.0, "temperature": 0.5}, {"scale": 1.0, "temperature": 0.5, "mu": 3.0}),
    ],
    ids=str,
)
def test_client_update_equals_the_reference(options, used, last_round):
    """A newcomer trains once more before, from the classifier of its own."""
    method, ctx = method_with(**options), context(last_round)
    data = tiny.client_data(LABELS, padding=1)
    state, head = method.init_client(BUCKET, ctx), method.init_server(FEDERATION, jax.random.key(8))
    _, trained, uplink, metrics = tiny.play(method, state, head, data=data, ctx=ctx)

    def after_pass(params, left: int):
        batches = list(views(data, jax.random.fold_in(ctx.key, left)))
        return reference.local_pass(params, batches, LR, **used)

    want = tiny.flat_params(state["params"])
    if last_round == NEWCOMER:
        want, _ = after_pass(want, 2)
    want |= {f"head_{name}": np.asarray(value, np.float64) for name, value in head.items()}
    want, loss = after_pass(want, 1)
    tiny.check_model(trained["params"], want, atol=1e-5)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    tiny.check_equal(uplink.params, trained["params"]["head"])
    assert uplink.num_samples.value == ctx.info.num_samples


def test_a_client_takes_the_classifier_once_it_has_pretrained():
    method, data = fedclassavg(TRAINING), tiny.client_data(LABELS)
    state = method.init_client(BUCKET, context(0))
    head = method.init_server(FEDERATION, jax.random.key(8))
    for last_round, expected in ((NEWCOMER, state["params"]["head"]), (0, head)):
        client = method.receive(BUCKET, state, head, data, context(last_round))
        tiny.check_equal(client["params"], {"base": state["params"]["base"], "head": expected})


def test_views_stay_pixels_and_depend_on_the_key():
    data = tiny.client_data(LABELS, shape=(8, 8, 3))
    x = jnp.asarray(tiny.pixels(data).reshape(-1, 8, 8, 3), jnp.float32)
    view, same, other = (compiled_view(jax.random.key(k), data, x) for k in (0, 0, 1))
    np.testing.assert_array_equal(view, same)
    assert np.abs(view - other).max() > 0.5
    pixels = np.asarray(data.preprocess.pixels(view))
    assert view.shape == x.shape and pixels.min() > -1e-5 and pixels.max() < 1 + 1e-5


def test_prediction_rectifies_the_features():
    method = fedclassavg(TRAINING)
    client = method.init_client(BUCKET, tiny.context(0))
    x = np.random.default_rng(2).normal(size=(5, 2, 2, 1)).astype(np.float32)
    params = tiny.flat_params(client["params"])
    features = x.reshape(5, -1) @ params["base_kernel"] + params["base_bias"]
    assert (features < 0).any()
    want = np.maximum(features, 0) @ params["head_kernel"] + params["head_bias"]
    got = method.predict(BUCKET, client, None, x, np.ones(5, bool))
    np.testing.assert_allclose(got["head"], want, rtol=1e-5, atol=1e-5)
