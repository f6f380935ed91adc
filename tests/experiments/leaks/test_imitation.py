"""An attacker reads an upload and imitates the client's round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.leaks.imitation import (
    imitation,
    observe,
    payload,
    state_matters,
    untrained_upload,
    upload,
)
from fedjax_ht.core.bucket import features
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.methods.fedssa import rows_of
from fedjax_ht.trust.options import Privacy
from tests import tiny
from tests.experiments.leaks.victims import attacked, image_of, seen_of, victim_of


def test_the_seen_change_is_the_clients_gradient():
    victim, state = victim_of("fedavg")
    images, labels = image_of(2)
    simulate, seen = attacked(victim, state, images, labels)
    np.testing.assert_allclose(simulate(seen.known, images), seen.change, rtol=1e-4, atol=1e-7)
    sent, before = (tiny.flat_params(x) for x in (seen.known.sent.params, victim.downlink))
    change = {name: np.float32(sent[name] - before[name]) for name in sent}
    image = change["base_kernel"] / change["base_bias"]  # closed form, once for every feature
    real = np.ravel(victim.data.preprocess(images))
    np.testing.assert_allclose(image, np.repeat(real[:, None], 3, 1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        np.linalg.norm(seen.change), np.sqrt(sum((x**2).sum() for x in change.values())), 1e-4
    )


@pytest.mark.parametrize("name", ["lg_fedavg", "fedssa"])
def test_a_head_says_the_features_exactly(name):
    """The change of a class's weights in a linear layer, over its bias's, is the input."""
    victim, state = victim_of(name)
    images, labels = image_of(2)
    change = np.asarray(seen_of(victim, state, images, labels).change)
    if name == "fedssa":
        weights, bias = change.reshape(4, 4)[2, :-1], change.reshape(4, 4)[2, -1]
    else:
        bias, weights = change[:4][2], change[4:].reshape(3, 4)[:, 2]  # leaves by name

    @jax.jit
    def features_of(state, images):
        x, real = victim.data.preprocess(images), jnp.ones(1, bool)
        return features(victim.bucket, state["params"], state["stats"], x, real, train=True)[0][0]

    expected = features_of(state, images)
    np.testing.assert_allclose(weights / bias, expected, rtol=1e-3, atol=1e-4)


def test_the_change_is_to_what_the_client_has_made_of_the_downlink():
    """FedSSA's client fuses its own classes' rows before it trains: that is no training."""
    victim, state = victim_of("fedssa")
    images, labels = image_of(2)
    info = victim.turn.info._replace(num_samples=jnp.int32(1))
    victim_data = tiny.client_data([2])

    @jax.jit
    def play(state):
        ctx = victim.turn._replace(info=info).context(Purpose.RECEIVE)
        bucket, downlink = victim.bucket, victim.downlink
        taken = victim.method.receive(bucket, state, downlink, victim_data, ctx)
        rows = rows_of(taken["params"]["head"]), rows_of(state["params"]["head"])
        return untrained_upload(victim, state, images, labels).values, *rows

    sent, taken, before = map(np.asarray, play(state))
    np.testing.assert_array_equal(sent, taken)
    assert not np.allclose(sent[2], before[2])


@pytest.mark.parametrize("name", [pytest.param("fedproto", marks=pytest.mark.slow), "fedssa"])
def test_one_imitation_serves_images_of_any_label(name):
    victim, state = victim_of(name)
    simulate, _ = attacked(victim, state, *image_of(2))
    images, labels = image_of(1, seed=5)
    seen = seen_of(victim, state, images, labels)
    np.testing.assert_allclose(simulate(seen.known, images), seen.change, rtol=1e-4, atol=1e-6)
    assert np.abs(seen.change).max() > 0


def test_whether_the_clients_state_matters():
    for name, matters in (("fedavg", False), ("lg_fedavg", True)):
        victim, state = victim_of(name)
        images, labels = image_of(2)

        @jax.jit
        def look(state, victim=victim, images=images, labels=labels):
            other = victim.method.init_client(victim.bucket, tiny.context(0, seed=9))
            sent = upload(victim, state, images, labels)
            return [observe(victim, sent, s, images.shape, labels).known for s in (state, other)]

        a, b = look(state)
        simulate = jax.jit(imitation(victim, a, images.shape))
        assert state_matters(simulate, a, b, images) == matters


@pytest.mark.parametrize(
    "unit, scale", [("upload", 0.05 * 3), ("client", 0.0), ("sample", 0.1 * 0.05 * 3)]
)
def test_an_attacker_imitates_clipping_and_no_noise(unit, scale):
    """Noise is on the upload, out of the server's sight, or on the gradient."""
    victim, state = victim_of("fedavg", width=300)
    victim = victim._replace(privacy=Privacy(unit, clip=0.05, noise=3.0))
    images, labels = image_of(2)
    simulate, seen = attacked(victim, state, images, labels)
    clear = simulate(seen.known, images)
    np.testing.assert_allclose(
        np.linalg.norm(clear), 0.1 * 0.05 if unit == "sample" else 0.05, rtol=1e-3
    )
    noise = np.asarray(seen.change) - clear
    np.testing.assert_allclose(noise.std(), scale, rtol=5 / np.sqrt(2 * noise.size), atol=1e-7)
    if unit == "sample":
        return
    secret = victim._replace(privacy=victim.privacy._replace(secret=(1,)))
    again = seen_of(secret, state, images, labels).change
    assert (unit == "client") == np.allclose(again, seen.change, atol=1e-6)


def test_a_payload_is_what_is_sent():
    message = (
        Masked(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([False, True])),
        Metadata(jnp.ones(3)),
        jnp.ones(1),
    )
    np.testing.assert_array_equal(payload(message), [0, 0, 3, 4, 1])
    other = (message[0]._replace(mask=jnp.array([True, False])), *message[1:])
    np.testing.assert_array_equal(payload(message, like=other), [1, 2, 0, 0, 1])


def test_methods_that_send_nothing_are_refused():
    victim, state = victim_of("local")
    with pytest.raises(ValueError, match="clients of local send no numbers, so"):
        observe(victim, upload(victim, state, *image_of(1)), state, (1, 2, 2, 1), jnp.array([1]))
