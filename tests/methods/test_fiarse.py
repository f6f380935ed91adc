"""FIARSE against NumPy: what a client holds and how it trains, and the server's means."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.wire import FIRST_ROWS, SHORTEST, Masked
from fedjax_ht.methods.fiarse import Message, Server, fiarse, held_entries, masked
from fedjax_ht.methods.shared.norms import entries_of
from fedjax_ht.models.sliced import ConvNet, sliced_model
from tests import tiny
from tests.reference import fiarse as reference
from tests.tiny import BUCKET, LR, check_equal, check_model, model
from tests.tiny import ONE_BUCKET as FEDERATION
from tests.tiny import SHORT_BATCHES as BATCHES
from tests.tiny import SHORT_TRAINING as TRAINING

play = functools.partial(tiny.play, data=tiny.SHORT_DATA)

W = model(0)
W_ENTRIES = entries_of(BUCKET, W).weights
FLAT = tiny.flat_params(W)
SHARES = (1.0, 0.6, 0.3)


@functools.cache
def served(method) -> list[Server]:
    """The server's state with the model W after a round in which nobody changed it."""
    start = [method.init_server(FEDERATION, jax.random.key(0))[0]._replace(params=W)]
    still = W_ENTRIES * 0
    received = tiny.receive({0: Message(Masked(still, still == 0, SHORTEST), (), {})}, [[0]])
    server, _ = method.server_update(FEDERATION, start, received, None)
    return server


def flat(entries) -> dict[str, np.ndarray]:
    """A vector of entries as the reference names them."""
    return tiny.flat_params(entries_of(BUCKET, W).model(jnp.asarray(entries), jnp.zeros(0)))


def sent_to(method, i: int) -> Message:
    return method.broadcast(FEDERATION, BUCKET, served(method), tiny.context(i))


@pytest.mark.parametrize(
    ("variant", "i", "masks"),
    [
        ("paper", 0, "model"),
        ("paper", 1, "model"),
        ("released", 0, "model"),
        ("released", 1, "model"),
        ("paper", 1, "layer"),
    ],
)
def test_a_client_trains_its_largest_entries(variant, i, masks):
    method = fiarse(TRAINING, shares=SHARES, variant=variant, masks=masks)
    by_layer, start = masks == "layer", {"params": model(9), "stats": {}}
    received, trained, uplink, metrics = play(method, start, sent_to(method, i))
    params, held = reference.client(
        FLAT, SHARES[i], BATCHES, LR, variant == "paper", by_layer=by_layer
    )
    check_model(received["params"], {k: v * held[k] for k, v in FLAT.items()})
    change = {k: (FLAT[k] - params[k]) * held[k] for k in params}
    values = jnp.where(uplink.weights.mask, uplink.weights.values, 0)
    check_model(flat(values), change, rtol=1e-3)
    expected = held if variant == "paper" else {k: v != 0 for k, v in change.items()}
    check_equal(flat(uplink.weights.mask.astype(jnp.float32)), expected)
    # it predicts by what is still as large
    still = reference.mask(params, reference.thresholds(FLAT, SHARES[i], by_layer))
    check_model(trained["params"], {k: v * still[k] for k, v in params.items()})
    assert float(metrics["kept"]) == pytest.approx(
        np.mean(np.concatenate([v.ravel() for v in held.values()]))
    )


def test_entries_that_fall_below_the_threshold_stay_where_they_are():
    w = jnp.array([0.5, -0.2, 0.1, -0.5, 0.0])

    def loss(w, threshold, biased):
        return jnp.sum(jnp.arange(1.0, 6.0) * masked(w, threshold, biased))

    gradient = jax.grad(loss)(w, 0.2, True)
    factor = 1 + 2 * 0.2 * 0.5 / 0.7**2
    np.testing.assert_allclose(gradient, [factor, 2 * 1.5, 0, 4 * factor, 0], rtol=1e-6)
    np.testing.assert_array_equal(jax.grad(loss)(w, 0.2, False), [1, 2, 0, 4, 0])
    # share 1 of a model with zeros, such as new biases: nothing is divided by 0
    np.testing.assert_allclose(jax.grad(loss)(w, 0.0, True), [1, 2, 3, 4, 5])


def test_an_entry_is_averaged_over_its_holders():
    """Client 3 is lost, 4 is padding."""
    method = fiarse(TRAINING, shares=SHARES, server_lr=0.5)
    trained = [tiny.flat_params(model(10 + i)) for i in range(3)]
    held = [reference.mask(FLAT, reference.thresholds(FLAT, share, False)) for share in SHARES]

    uplinks = {}
    for i in range(3):
        message = sent_to(method, i)
        changes = entries_of(BUCKET, jax.tree.map(jnp.subtract, W, model(10 + i))).weights
        uplinks[i] = message._replace(weights=message.weights._replace(values=changes))
    received = tiny.receive(uplinks, tiny.IN_ONE_BUCKET)
    (new,), _ = method.server_update(FEDERATION, served(method), received, None)
    expected = reference.server(FLAT, list(zip(trained, held)), 0.5)
    check_model(new.params, expected)
    theta = [reference.threshold(tiny.flat_params(new.params), share) for share in SHARES]
    np.testing.assert_allclose(new.thresholds, theta, rtol=1e-6)


def test_thresholds_of_layers_are_those_of_their_own_entries():
    """Each layer keeps its share, by a threshold of its own."""
    method = fiarse(TRAINING, shares=SHARES, masks="layer")
    (server,) = served(method)
    assert server.thresholds.shape == (len(SHARES), 2)
    for i, share in enumerate(SHARES):
        want = reference.thresholds(FLAT, share, True)
        assert set(np.float32(list(want.values()))) == set(np.asarray(server.thresholds[i]))
        message = method.broadcast(FEDERATION, BUCKET, [server], tiny.context(i))
        held = flat(message.weights.mask.astype(jnp.float32))
        check_equal(held, reference.mask(FLAT, want))


def test_an_entry_that_nobody_holds_stays():
    method = fiarse(TRAINING, shares=(0.3,))
    message = sent_to(fiarse(TRAINING, shares=SHARES), 2)
    ones = message._replace(weights=message.weights._replace(values=jnp.ones_like(W_ENTRIES)))
    received = tiny.receive({2: ones}, [[2]])
    (new,), _ = method.server_update(FEDERATION, served(method), received, None)
    entries = entries_of(BUCKET, new.params).weights
    np.testing.assert_array_equal(entries != W_ENTRIES, message.weights.mask)


def test_norms_are_held_whole_and_their_statistics_averaged():
    """Two convolutions and a head, with norms that keep statistics; client 2 has no samples."""
    network = sliced_model(ConvNet((4, 4), norm="batch"), 3)
    federation = make_federation({"conv": network}, (16, 16, 1), 3, num_clients=3)
    (bucket,), method = federation.buckets, fiarse(TRAINING, shares=(0.5,))
    server = jax.jit(functools.partial(method.init_server, federation))(jax.random.key(0))
    send = jax.jit(functools.partial(method.broadcast, federation, bucket))
    message = jax.device_get(send(server, tiny.context(0)))
    assert message.weights.mask.shape == (40 + 148 + 15,) and message.weights.mask.sum() == 101
    assert message.norms.mask.shape == (2 * (4 + 4),) and message.norms.mask.all()
    uplinks = {}
    for i in range(3):
        norms = message.norms._replace(values=np.full(16, i, np.float32))
        stats = jax.tree.map(lambda x, i=i: x + i, message.stats)
        uplinks[i] = message._replace(norms=norms, stats=stats)
    received = tiny.receive(uplinks, {"conv": [0, 1, 2]}, {2: 0})
    serve = jax.jit(functools.partial(method.server_update, federation))
    (new,), _ = serve(server, received, None)
    before, after = (entries_of(bucket, x.params).norms for x in (server[0], new))
    np.testing.assert_allclose(after, before - 0.5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y + 0.5), new.stats, message.stats)


def test_counts_of_entries():
    assert [held_entries(share, 25) for share in (1.0, 0.36, 0.04, 1e-3)] == [25, 9, 1, 1]
    method = fiarse(TRAINING)
    assert sent_to(fiarse(TRAINING, shares=SHARES), 0).weights.pattern != FIRST_ROWS
    with pytest.raises(ValueError, match=r"^shares is"):
        fiarse(TRAINING, shares=())
    with pytest.raises(ValueError, match=r"^shares"):
        fiarse(TRAINING, shares=(0.5, 0.0))
    assert method.global_model.bucket(FEDERATION) == BUCKET
    check_equal(method.global_model.params(served(method)), W)
