"""FedORGP against NumPy: a client's training, the server's, and rounds before any prototypes."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.methods.fedorgp import fedorgp
from fedjax_ht.methods.fedtgp import Server
from fedjax_ht.methods.shared.prototypes import cosines_to
from tests import tiny
from tests.alignment_steps import epoch_orders, valid_rows
from tests.reference import fedorgp as reference
from tests.reference.fedtgp_server import global_prototypes
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, FEDERATION, LR, TRAINING, C, K

# seven rows: the last batch is masked
UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2, 3], 2: [0, 2]}, seed=4)
PROTOTYPES = np.random.default_rng(1).normal(size=(C, K)).astype(np.float32)


def test_a_client_turns_its_features_to_the_prototypes_of_their_classes():
    """Before the server's first training there is nothing to turn to."""
    method, ctx = fedorgp(TRAINING, lambda_c=3.0), tiny.context(0)
    client = method.init_client(BUCKET, ctx)
    for ready in (True, False):
        server = Server({}, jnp.asarray(PROTOTYPES), jnp.array(ready))
        downlink = method.broadcast(FEDERATION, BUCKET, server, ctx)
        _, trained, uplink, metrics = tiny.play(method, client, downlink)
        params = tiny.flat_params(client["params"])
        targets = PROTOTYPES if ready else None
        want, loss = reference.train(params, BATCHES, LR, 3.0, targets)
        tiny.check_model(trained["params"], want)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])


def test_the_server_trains_prototypes_that_are_orthogonal_to_other_classes():
    method = fedorgp(
        TRAINING, lambda_s=0.7, gamma=2.0, server_epochs=3, server_lr=0.3, server_batch_size=3
    )
    start = method.init_server(FEDERATION, jax.random.key(1))
    received = tiny.receive_prototypes(UPLOADS, tiny.ORDER)
    server, metrics = served(method, FEDERATION, start, received, tiny.context(seed=2))
    trained = {name: np.asarray(value, np.float64) for name, value in start.trained.items()}
    shuffle_key, _ = jax.random.split(tiny.context(seed=2).key)
    orders = list(epoch_orders(shuffle_key, valid_rows(UPLOADS, tiny.ORDER), 3))
    rows = [UPLOADS[i] for i in range(3)]
    want, loss = reference.server_update(trained, rows, orders, 3, 0.3, 0.7, 2.0)
    for name in want:
        np.testing.assert_allclose(server.trained[name], want[name], rtol=1e-4, atol=2e-6)
        assert np.abs(want[name] - trained[name]).max() > 1e-3  # every part was trained
    expected = global_prototypes(want)
    np.testing.assert_allclose(server.prototypes, expected, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(metrics["server_loss"], loss, rtol=1e-5)
    assert server.ready and not start.ready


def test_rows_without_a_direction_have_cosine_0_and_a_slope():
    zero = jnp.zeros((1, 3))
    assert (cosines_to(zero, jnp.ones((2, 3))) == 0).all()
    assert (cosines_to(jnp.ones((1, 3)), zero) == 0).all()
    slopes = jax.grad(lambda rows, targets: cosines_to(rows, targets).sum(), (0, 1))(zero, zero)
    assert np.isfinite(slopes).all()
