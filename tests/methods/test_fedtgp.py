"""FedTGP and FedORGP, whose servers train prototypes, against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods.fedorgp import fedorgp
from fedjax_ht.methods.fedtgp import Server, fedtgp
from fedjax_ht.methods.shared.prototypes import cosines_to
from tests import tiny
from tests.alignment_steps import epoch_orders, valid_rows
from tests.methods.test_fedproto import check_means
from tests.reference import fedorgp as orgp_reference
from tests.reference import fedtgp_server, linear_client
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, FEDERATION, LR, TRAINING, C, K

# seven rows: the last batch is masked
UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2, 3], 2: [0, 2]}, seed=4)
ROWS = [UPLOADS[i] for i in range(3)]
SERVER = {"server_epochs": 3, "server_lr": 0.3, "server_batch_size": 3}
PROTOTYPES = 3 * np.random.default_rng(1).normal(size=(C, K)).astype(np.float32)


def serve(method, server, uploads, order=tiny.OTHER_ORDER):
    received = tiny.receive_prototypes(uploads, order)
    return served(method, FEDERATION, server, received, tiny.context(seed=2))


def start_of(method) -> Server:
    return method.init_server(FEDERATION, jax.random.key(1))


def check_server(method, train) -> dict:
    """Asserts that the server's first step equals `train` of the reference; returns its metrics."""
    start = start_of(method)
    server, metrics = serve(method, start, UPLOADS, tiny.ORDER)
    trained = {name: np.asarray(value, np.float64) for name, value in start.trained.items()}
    shuffle_key, _ = jax.random.split(tiny.context(seed=2).key)
    orders = list(epoch_orders(shuffle_key, valid_rows(UPLOADS, tiny.ORDER), 3))
    want, loss = train(trained, ROWS, orders, 3, 0.3)
    assert server.trained.keys() == want.keys()
    tiny.check_model(server.trained, want, atol=2e-6)
    for name in want:
        assert np.abs(want[name] - trained[name]).max() > 1e-3  # every part was trained
    expected = fedtgp_server.global_prototypes(want)
    np.testing.assert_allclose(server.prototypes, expected, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(metrics["server_loss"], loss, rtol=1e-5)
    assert server.ready and not start.ready
    return metrics


@pytest.mark.parametrize(
    ("options", "rule", "fixed"),
    [
        ({}, "paper", None),
        ({"variant": "released", "use_f": False}, "released", None),
        ({"margin": 0.0, "use_f": False}, None, 0.0),
    ],
    ids=str,
)
def test_server_update_equals_the_reference(options, rule, fixed):
    method = fedtgp(TRAINING, **(SERVER | options))
    assert ("w1" in start_of(method).trained) == options.get("use_f", True)
    margin = fixed if rule is None else fedtgp_server.margin_of(ROWS, C, 100.0, rule)
    metrics = check_server(method, functools.partial(fedtgp_server.server_update, margin=margin))
    np.testing.assert_allclose(metrics["margin"], margin, rtol=1e-5)


def test_the_server_of_fedorgp_trains_prototypes_that_are_orthogonal_to_other_classes():
    method = fedorgp(TRAINING, lambda_s=0.7, gamma=2.0, **SERVER)
    check_server(method, lambda *args: orgp_reference.server_update(*args, 0.7, 2.0))


@pytest.fixture(scope="module", params=["paper", "released"])
def ablated(request):
    """(method without F, server before its first round)."""
    method = fedtgp(TRAINING, **SERVER, variant=request.param, use_f=False, tau=7.0)
    return method, start_of(method)


def test_the_margin_is_at_most_tau_and_tau_of_fewer_than_two_classes(ablated):
    def at(position):
        return np.full(K, position, np.float32) / K**0.5

    one_class = {0: {2: UPLOADS[0][2]}, 1: {2: UPLOADS[1][2]}}
    for uploads in ({0: {0: at(-10.0), 1: at(10.0)}}, one_class):
        assert serve(*ablated, uploads)[1]["margin"] == 7


def test_nothing_is_published_before_there_was_a_prototype(ablated):
    method, start = ablated
    waiting, _ = serve(method, start, {0: {}, 1: {}})  # clients without samples
    assert not waiting.ready
    ready, _ = serve(method, waiting, UPLOADS)
    assert ready.ready
    tiny.check_equal(serve(method, ready, {0: {}})[0], ready)


def test_training_stays_finite_where_points_coincide(ablated):
    same = np.asarray(ablated[1].trained["embeddings"])
    uploads = {0: dict(enumerate(same)), 1: dict(enumerate(same)), 2: {0: same[0], 1: same[0]}}
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(serve(*ablated, uploads)))


def pulled(params, ready: bool, weight: float, variant: str = "paper") -> tuple:
    """FedTGP's client: its parameters and its loss."""
    sent = {"prototypes": PROTOTYPES, "available": np.full(C, ready)}
    return linear_client.train(params, BATCHES, LR, **sent, weight=weight, variant=variant)[:2]


def turned(params, ready: bool) -> tuple:
    """FedORGP's client."""
    return orgp_reference.train(params, BATCHES, LR, 3.0, PROTOTYPES if ready else None)


CLIENTS = {
    "fedtgp": (fedtgp(TRAINING), functools.partial(pulled, weight=0.1)),
    "fedtgp, released": (
        fedtgp(TRAINING, variant="released"),
        functools.partial(pulled, weight=10.0, variant="released"),
    ),
    "fedtgp, weight 2": (fedtgp(TRAINING, weight=2.0), functools.partial(pulled, weight=2.0)),
    "fedorgp": (fedorgp(TRAINING, lambda_c=3.0), turned),
}


@pytest.mark.parametrize("case", CLIENTS)
def test_client_update_equals_the_reference(case):
    (method, train), ctx = CLIENTS[case], tiny.context(0)
    if method.name == "fedtgp":  # the rules are FedProto's, which test_fedproto has
        assert method.rules == ("prototype", "own_prototype", "head")
    client = method.init_client(BUCKET, ctx)
    # before the server's first training there is nothing to pull towards
    for ready in (True, False):
        server = Server({}, jnp.asarray(PROTOTYPES), jnp.array(ready))
        downlink = method.broadcast(FEDERATION, BUCKET, server, ctx)
        _, trained, uplink, metrics = tiny.play(method, client, downlink)
        want, loss = train(tiny.flat_params(client["params"]), ready)
        tiny.check_model(trained["params"], want)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        check_means(uplink, want)  # of the trained model in all variants
        assert uplink.counts == ()


def test_rows_without_a_direction_have_cosine_0_and_a_slope():
    zero = jnp.zeros((1, 3))
    assert (cosines_to(zero, jnp.ones((2, 3))) == 0).all()
    assert (cosines_to(jnp.ones((1, 3)), zero) == 0).all()
    slopes = jax.grad(lambda rows, targets: cosines_to(rows, targets).sum(), (0, 1))(zero, zero)
    assert np.isfinite(slopes).all()
