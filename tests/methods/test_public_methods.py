"""Methods on a public set against NumPy: a client's phases, and what the server makes of uploads."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.context import Received
from fedjax_ht.core.federation import PublicSet
from fedjax_ht.core.samples import PUBLIC, Split
from fedjax_ht.core.wire import FIRST_ROWS, Masked, Metadata, wire_elements
from fedjax_ht.methods.dsfl import dsfl
from fedjax_ht.methods.fedhenn import alignment, fedhenn
from fedjax_ht.methods.fedmd import fedmd
from fedjax_ht.methods.ktpfl import ktpfl
from fedjax_ht.methods.shared import public
from tests import tiny
from tests.reference import gradients, linear_client
from tests.reference import public as reference
from tests.standard import served
from tests.tiny import BUCKET, LR, check_model, model
from tests.tiny import ONE_BUCKET as FEDERATION
from tests.tiny import SHORT_TRAINING as TRAINING

C, P = 4, 3  # classes, and public samples of a round
LABELS = np.array([0, 2, 2, 0, 3, 1, 3, 0, 2])  # five samples of the client, and four public ones
DATA = tiny.client_data(LABELS, indices=range(5), padding=2)
DATA = DATA._replace(
    splits=DATA.splits | {PUBLIC: Split(jnp.arange(5, 9, dtype=jnp.int32), jnp.int32(4))}
)
X = tiny.pixels(DATA)
OWN = [(X[:3], LABELS[:3]), (X[3:5], LABELS[3:5])]  # the batches of an epoch
IN_PUBLIC = dataclasses.replace(FEDERATION, public=PublicSet(4))
PLACES, ASKED = np.array([2, 0, 3]), np.array([1, 3, 2])
SETTINGS = {"public_per_round": P, "digest_batch_size": 2}


def downlink(targets: np.ndarray, is_sent: bool = True) -> public.Downlink:
    mask = jnp.full(P, is_sent)
    return public.Downlink(
        Masked(jnp.asarray(targets, jnp.float32), mask, FIRST_ROWS),
        Metadata(Masked(jnp.asarray(PLACES, jnp.int32), mask, FIRST_ROWS)),
        Metadata(jnp.asarray(ASKED, jnp.int32)),
    )


def update(method, client, sent, round=0, adapt_epochs=None):
    ctx = tiny.context(0, round=round)._replace(adapt_epochs=adapt_epochs)
    return tiny.play(method, client, sent, data=DATA, ctx=ctx)[1:]


def halved(scores, targets):
    """KT-pFL's distance at temperature 2."""
    return reference.divergence(scores / 2, reference.softmax(targets / 2))


NEW = {"is_pretrained": jnp.zeros((), bool)}
ABSOLUTE = fedmd(TRAINING, digest_loss="mae", pretrain_epochs=0, **SETTINGS)
SQUARED = fedmd(TRAINING, digest_loss="mse", pretrain_epochs=0, **SETTINGS)
CLIENTS = {  # the method, its own state, its distance, and what it sends of logits
    "fedmd, absolute": (ABSOLUTE, NEW, reference.absolute_error, np.asarray),
    "fedmd, squared": (SQUARED, NEW, reference.squared_error, np.asarray),
    "dsfl": (dsfl(TRAINING, **SETTINGS), {}, reference.divergence, reference.softmax),
    "ktpfl": (ktpfl(TRAINING, temperature=2.0, **SETTINGS), {}, halved, np.asarray),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_digests_what_it_receives_and_revisits_its_own_samples(name):
    method, state, distance, made = CLIENTS[name]
    targets = made(np.random.default_rng(1).normal(size=(P, C)))
    start = {"params": model(3), "stats": {}} | state
    client, uplink, metrics = update(method, start, downlink(targets))
    before = tiny.flat_params(start["params"])
    params = reference.digest(before, X[5 + PLACES], targets, distance, LR, 2)
    params, value, _ = linear_client.train(params, OWN, LR)
    check_model(client["params"], params)
    expected = made(linear_client.logits(params, X[5 + ASKED]))
    np.testing.assert_allclose(uplink, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-4)


def test_the_first_round_of_fedmd_trains_on_public_labels_once():
    method = fedmd(TRAINING, pretrain_epochs=2, **SETTINGS)
    start = {"params": model(3), "stats": {}, "is_pretrained": jnp.zeros((), bool)}
    nothing = downlink(np.full((P, C), np.nan), is_sent=False)
    client, _, metrics = update(method, start, nothing)
    of_public = [(X[5:7], LABELS[5:7]), (X[7:9], LABELS[7:9])] * 2
    params, _, _ = linear_client.train(tiny.flat_params(start["params"]), of_public, LR)
    params, _, _ = linear_client.train(params, OWN, LR)
    check_model(client["params"], params)
    assert client["is_pretrained"] and metrics["digest_loss"] == 0
    again, _, _ = update(method, client, nothing)
    params, _, _ = linear_client.train(tiny.flat_params(client["params"]), OWN, LR)
    check_model(again["params"], params)


@pytest.mark.parametrize("make", [dsfl, fedmd, ktpfl])
def test_tuning_before_an_evaluation_is_on_the_clients_own_samples(make):
    method, start = make(TRAINING, **SETTINGS), {"params": model(3), "stats": {}}
    client, _, _ = update(
        method,
        start | {"is_pretrained": jnp.zeros((), bool)},
        downlink(np.full((P, C), 9.0)),
        adapt_epochs=1,
    )
    params, _, _ = linear_client.train(tiny.flat_params(start["params"]), OWN, LR)
    check_model(client["params"], params)


def test_without_a_digest_fedmd_is_local_training():
    targets = np.random.default_rng(1).normal(size=(P, C))
    start = {"params": model(3), "stats": {}, "is_pretrained": jnp.ones((), bool)}
    client, _, metrics = update(
        fedmd(TRAINING, digest_epochs=0, **SETTINGS), start, downlink(targets)
    )
    params, _, _ = linear_client.train(tiny.flat_params(start["params"]), OWN, LR)
    check_model(client["params"], params)
    assert metrics["digest_loss"] == 0


SENT = reference.softmax(np.random.default_rng(2).normal(size=(2, P, C))).astype(np.float32)


def uploads(sent: np.ndarray) -> dict[str, Received]:
    """Uploads of clients 0 and 1, beside others that must not count: 2 has no samples, 3 is lost."""
    uplinks = {0: sent[0], 1: sent[1], 2: np.full_like(sent[0], 9.0)}
    return tiny.receive(uplinks, tiny.IN_ONE_BUCKET, {2: 0})


def server_context():
    shared = jax.random.key(5)
    return tiny.context()._replace(shared_key=shared, data=DATA._replace(splits=ON_SERVER))


ON_SERVER = {PUBLIC: DATA.splits[PUBLIC]}


KERNELS = np.random.default_rng(4).normal(size=(2, P, 2)).astype(np.float32)
KERNELS = KERNELS @ KERNELS.transpose(0, 2, 1)


@pytest.mark.parametrize("make, sent", [(fedmd, SENT), (fedhenn, KERNELS)])
def test_a_server_averages_what_it_is_sent_of_the_samples_it_asked_for(make, sent):
    """Logits of FedMD, kernels of FedHeNN."""
    method, ctx = make(TRAINING, public_per_round=P), server_context()
    server = method.init_server(IN_PUBLIC, jax.random.key(0))
    first = method.broadcast(IN_PUBLIC, BUCKET, server, ctx)
    cost = wire_elements(first)
    assert (cost.payload_elements, cost.metadata_bytes) == (0, 4 * P)
    new, metrics = served(method, IN_PUBLIC, server, uploads(sent), ctx)
    np.testing.assert_allclose(new.rows.values, sent.mean(0), rtol=1e-6)
    np.testing.assert_array_equal(new.positions, first.requested.value)
    assert len(set(new.positions.tolist())) == P and metrics["senders"] == 2
    later = ctx._replace(shared_key=jax.random.key(6))
    second = method.broadcast(IN_PUBLIC, BUCKET, new, later)
    np.testing.assert_array_equal(second.positions.value.values, first.requested.value)
    cost = wire_elements(second)
    assert (cost.payload_elements, cost.metadata_bytes) == (sent[0].size, 2 * 4 * P)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_the_server_of_dsfl_sharpens_the_mean_and_learns_from_it(temperature):
    method, ctx = dsfl(TRAINING, temperature=temperature, **SETTINGS), server_context()
    server = method.init_server(IN_PUBLIC, jax.random.key(0))
    new, metrics = served(method, IN_PUBLIC, server, uploads(SENT), ctx)
    targets = reference.sharpened(SENT.astype(float), temperature)
    np.testing.assert_allclose(new.targets.rows.values, targets, rtol=1e-5, atol=1e-6)
    before = tiny.flat_params(method.global_model.params(server))
    x = X[5 + np.asarray(new.targets.positions)]
    params = reference.digest(before, x, targets, reference.divergence, LR, 2)
    check_model(method.global_model.params(new), params)
    entropy = -(targets * np.log(targets)).sum(-1).mean()
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-4)


def test_the_server_of_ktpfl_learns_who_teaches_whom():
    """Rows and columns of clients 2 and 3, which do not count, stay."""
    settings = {"temperature": 0.5, "coefficient_lr": 0.5, "rho": 0.7}
    method, ctx = ktpfl(TRAINING, **settings, **SETTINGS), server_context()
    server = method.init_server(IN_PUBLIC, jax.random.key(0))
    rng, scores, present = np.random.default_rng(3), np.zeros((4, P, C)), [0, 1]
    start = 0.25 + 0.05 * rng.normal(size=(4, 4))
    start[0, 1] = -0.27  # coefficients are not bound; those of row 0 that count have a sum near 0
    scores[:2] = SENT
    server = server._replace(coefficients=jnp.asarray(start, jnp.float32))
    new, metrics = served(method, IN_PUBLIC, server, uploads(SENT), ctx)

    def loss(coefficients):
        return reference.knowledge_loss(coefficients, scores, present, 0.5, 0.7)

    expected = start.copy()
    step = gradients.numerical_gradient(loss, start)
    expected[:2, :2] -= 0.5 * step[:2, :2]
    assert abs(step[:2, :2]).max() > 1e-3
    np.testing.assert_allclose(new.coefficients, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["knowledge_loss"], loss(start), rtol=1e-4)
    targets = reference.mixed(expected, scores, present)
    np.testing.assert_allclose(new.targets, targets, rtol=1e-4, atol=1e-5)
    for client in range(2):
        sent = method.broadcast(
            IN_PUBLIC, BUCKET, new, ctx._replace(info=tiny.context(client).info)
        )
        np.testing.assert_allclose(sent.targets.values, targets[client], rtol=1e-4, atol=1e-5)


def test_a_client_of_fedhenn_is_pulled_to_the_mean_kernel():
    method = fedhenn(TRAINING, eta=0.3, public_per_round=P)
    rows = np.random.default_rng(1).normal(size=(P, 2))
    kernel, start = rows @ rows.T, {"params": model(3), "stats": {}}
    client, uplink, _ = update(method, start, downlink(kernel), round=2)
    params = tiny.flat_params(start["params"])
    for batch in OWN:
        params = reference.aligned_step(params, batch, X[5 + PLACES], kernel, 0.6, LR)
    check_model(client["params"], params)
    features = linear_client.features(params, X[5 + ASKED])
    np.testing.assert_allclose(uplink, features @ features.T, rtol=1e-4, atol=1e-5)


def test_kernels_are_aligned_whatever_their_scale_and_middle():
    rows = np.random.default_rng(1).normal(size=(5, 3))
    moved = 3 * rows + 7
    value_and_slope = jax.jit(jax.value_and_grad(alignment))
    value, _ = value_and_slope(rows @ rows.T, moved @ moved.T)
    assert value == pytest.approx(1, abs=1e-4)
    value, slope = value_and_slope(np.zeros((5, 5)), rows @ rows.T)
    assert value == 0 and np.isfinite(slope).all()


def test_fedmd_is_refused_a_first_phase_without_labels():
    hidden = dataclasses.replace(FEDERATION, public=PublicSet(4, is_labelled=False))
    with pytest.raises(ValueError, match="whose classes are not those of the clients' data; set"):
        fedmd(TRAINING, **SETTINGS).check(hidden)
    fedmd(TRAINING, pretrain_epochs=0, **SETTINGS).check(hidden)
