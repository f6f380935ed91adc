import jax
import numpy as np

from fedjax_ht.methods.fedgh import fedgh
from tests import tiny
from tests.alignment_steps import epoch_orders, valid_rows
from tests.reference import fedgh as reference
from tests.reference import linear_client
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, FEDERATION, LABELS, LR, TRAINING

# seven rows: the last batch is masked
UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2, 3], 2: [0, 2]}, seed=4)
SERVER = {"server_epochs": 2, "server_lr": 0.3, "server_batch_size": 3}


def test_server_update_equals_the_reference():
    """Without any prototype the head stays."""
    method, ctx = fedgh(TRAINING, **SERVER), tiny.context(seed=2)
    head = method.init_server(FEDERATION, jax.random.key(1))
    received = tiny.receive_prototypes(UPLOADS)
    got, metrics = served(method, FEDERATION, head, received, ctx)
    start = {name: np.asarray(value, np.float64) for name, value in head.items()}
    valid = valid_rows(UPLOADS, tiny.OTHER_ORDER)
    orders = list(epoch_orders(jax.random.split(ctx.key)[0], valid, SERVER["server_epochs"]))
    rows = [UPLOADS[i] for i in range(3)]
    want, loss = reference.server_update(start, rows, orders, 3, 0.3)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)
        assert np.abs(want[name] - start[name]).max() > 1e-3  # the head is trained
    np.testing.assert_allclose(metrics["server_loss"], loss, rtol=1e-5)
    nothing = tiny.receive_prototypes({0: {}, 2: {}})  # clients without samples
    idle, metrics = served(method, FEDERATION, head, nothing, ctx)
    tiny.check_equal(idle, head)
    assert metrics["server_loss"] == 0


def test_client_update_equals_the_reference():
    method, ctx = fedgh(TRAINING), tiny.context(0)
    head = method.init_server(FEDERATION, jax.random.key(5))
    state = method.init_client(BUCKET, ctx)
    downlink = method.broadcast(FEDERATION, BUCKET, head, ctx)
    _, trained, uplink, metrics = tiny.play(method, state, downlink)
    start = tiny.flat_params(state["params"] | {"head": head})
    want, loss, _ = linear_client.train(start, BATCHES, LR)
    tiny.check_model(trained["params"], want)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    np.testing.assert_array_equal(uplink.prototypes.mask, [True, False, True, True])
    rows = linear_client.features(want, tiny.pixels(tiny.DATA))
    for c, mean in linear_client.class_means(rows, LABELS).items():
        np.testing.assert_allclose(uplink.prototypes.values[c], mean, rtol=1e-5, atol=1e-6)
