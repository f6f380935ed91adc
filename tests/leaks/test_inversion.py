"""Images found from what a client sends."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Data
from fedjax_ht.core.wire import Masked, Metadata, gaussian_noise
from fedjax_ht.data.sources import load_dataset
from fedjax_ht.leaks import inversion
from fedjax_ht.leaks.inversion import Search, Victim, attack_on, in_order, invert, payload, upload
from fedjax_ht.methods import METHODS
from fedjax_ht.metrics.images import psnr
from fedjax_ht.models import mlp
from tests import tiny

ONE_STEP = LocalTraining(optax.sgd(0.1), batch_size=1, steps=1, shuffle=False)
ROOT = jax.random.key(0)


def victim_of(name, federation):
    """The only client of a federation in its first round, and its state."""
    method, bucket = METHODS[name](ONE_STEP), federation.buckets[0]
    context = tiny.context(0)
    downlink = method.broadcast(federation, bucket, method.init_server(federation, ROOT), context)
    data = Data((), (), tiny.client_data([0]).preprocess, {})
    return Victim(method, bucket, downlink, ROOT, jnp.int32(0), context.info, data), method.init_client(bucket, context)


@pytest.fixture(scope="module")
def linear():
    """FedAvg's client with a linear model, one image of it, and the attack on it."""
    victim, state = victim_of("fedavg", tiny.linear_federation(clients=1, buckets=1))
    images, labels = jax.random.uniform(jax.random.key(1), (1, 2, 2, 1)), jnp.array([2])
    return victim, state, images, labels, attack_on(victim, state, images, labels)


def test_what_is_seen_is_the_clients_own_gradient(linear):
    victim, state, images, labels, attacked = linear
    np.testing.assert_allclose(attacked.simulate(state, images), attacked.seen, rtol=1e-4, atol=1e-7)
    sent = upload(victim, state, images, labels).params
    change = tiny.flat_params(jax.tree.map(lambda a, b: a - b, sent, victim.downlink))
    image = change["base_kernel"] / change["base_bias"]  # closed form, once for every feature
    real = np.ravel(victim.data.preprocess(images))
    np.testing.assert_allclose(image, np.repeat(real[:, None], 3, 1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(attacked.seen), np.sqrt(sum((x**2).sum() for x in change.values())), 1e-4)


def test_dlg_finds_the_image_of_a_linear_model(linear):
    _, state, images, _, attacked = linear
    found = invert(attacked.simulate, state, attacked.seen, images.shape, jax.random.key(2), Search(steps=300))
    assert psnr(found.images, images) > 60
    assert found.loss < 1e-6


def test_of_several_starts_the_nearest_is_taken(linear):
    """After one step of next to nothing: the first images are what was drawn."""
    _, state, images, _, attacked = linear
    search = Search(steps=1, rate=1e-9, starts=3)
    best = invert(attacked.simulate, state, attacked.seen, images.shape, ROOT, search)
    drawn = [jax.random.uniform(key, images.shape) for key in jax.random.split(ROOT, 3)]
    losses = [inversion.relative_square(attacked.simulate(state, x), attacked.seen) for x in drawn]
    np.testing.assert_allclose(best.loss, min(losses), rtol=1e-4)
    np.testing.assert_allclose(best.images, drawn[np.argmin(losses)], atol=1e-6)


def test_distances():
    a, b = jnp.array([3.0, 4.0]), jnp.array([4.0, -3.0])
    np.testing.assert_allclose(inversion.relative_square(a, b), 2, rtol=1e-6)
    np.testing.assert_allclose(inversion.one_less_cosine(a, b), 1, rtol=1e-6)
    np.testing.assert_allclose(inversion.one_less_cosine(2 * a, a), 0, atol=1e-6)
    assert inversion.one_less_cosine(0 * a, a) == 1
    steps = jnp.array([[0.0, 1.0], [0.5, 0.5]])[None, :, :, None]
    np.testing.assert_allclose(inversion.total_variation(steps), 0.5 + 0.5)


def test_a_payload_is_what_is_sent():
    message = (
        Masked(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([False, True])),
        Metadata(jnp.ones(3)),
        jnp.ones(1),
    )
    np.testing.assert_array_equal(payload(message), [0, 0, 3, 4, 1])
    other = (message[0]._replace(mask=jnp.array([True, False])), *message[1:])
    np.testing.assert_array_equal(payload(message, like=other), [1, 2, 0, 0, 1])


def test_found_images_come_in_the_order_of_the_real_ones():
    real = np.random.default_rng(0).random((4, 2, 2, 1))
    np.testing.assert_array_equal(in_order(real[[2, 0, 3, 1]], real), real)


def test_what_sends_nothing_is_refused():
    victim, state = victim_of("local", tiny.linear_federation(clients=1, buckets=1))
    with pytest.raises(ValueError, match="clients of local send no numbers, so that there is nothing to invert"):
        attack_on(victim, state, jnp.zeros((1, 2, 2, 1)), jnp.array([1]))


def test_bad_fields_of_a_search_are_refused():
    with pytest.raises(ValueError, match=r"search\.steps is 0"):
        invert(None, None, None, (1, 2, 2, 1), None, Search(steps=0))


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("fedproto", "lg_fedavg")]


@pytest.mark.parametrize("name", ["fedral", *SLOW])
def test_any_uplink_has_a_gradient(name):
    """Prototypes, a part of a matrix, and a head: finite differences along a line agree."""
    victim, state = victim_of(name, tiny.linear_federation(width=4, clients=1, buckets=1))
    images, labels = jax.random.uniform(jax.random.key(1), (1, 2, 2, 1)), jnp.array([1])
    attacked = attack_on(victim, state, images, labels)

    def loss(x):
        return inversion.relative_square(attacked.simulate(state, x), attacked.seen)

    x, line = jnp.full((1, 2, 2, 1), 0.5), jax.random.normal(jax.random.key(3), (1, 2, 2, 1))
    slope = jnp.vdot(jax.grad(loss)(x), line)
    np.testing.assert_allclose((loss(x + 0.01 * line) - loss(x - 0.01 * line)) / 0.02, slope, rtol=0.02, atol=1e-3)


@pytest.mark.slow
def test_an_image_of_fedavg_with_a_perceptron_is_found_and_noise_hides_it():
    dataset = load_dataset("fashion_mnist_10k", "data")
    federation = make_federation({"mlp": mlp(10, (32, 32))}, dataset.input_shape, 10, num_clients=1)
    victim, state = victim_of("fedavg", federation)
    victim = victim._replace(data=victim.data._replace(preprocess=dataset.preprocess))
    images, labels = jnp.asarray(dataset.inputs[:1] / np.float32(255)), jnp.asarray(dataset.labels[:1])
    attacked = attack_on(victim, state, images, labels)
    noisy = attack_on(victim, state, images, labels, gaussian_noise(0.05, 0.0))
    for search in (inversion.DLG, inversion.GEIPING._replace(tv=0.001)):
        seen = {"clear": attacked.seen, "noisy": noisy.seen}
        got = {
            k: psnr(invert(attacked.simulate, state, s, images.shape, ROOT, search).images, images)
            for k, s in seen.items()
        }
        assert got["clear"] > 25 > got["noisy"] + 5, got
