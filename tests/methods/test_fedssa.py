import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.fedssa import Server, fedssa, most_growth, rows_of, stabilisation
from tests import tiny
from tests.reference import averaging, linear_client
from tests.reference import fedssa as reference
from tests.standard import served
from tests.tiny import BATCHES, BUCKET, DATA, FEDERATION, LR, TRAINING, C, K

UPLOADS = tiny.prototypes_of({0: [0, 2], 1: [1, 2], 2: [2]}, K + 1)  # nobody has class 3
OLD = np.random.default_rng(9).normal(size=(C, K + 1)).astype(np.float32)
OWN = {0, 2, 3}

modes = pytest.mark.parametrize("hide", [False, True], ids=["own rows", "hidden classes"])


def receive(uploads, order, hide: bool):
    """A round's uplinks; with hidden classes, zeros stand in for the rows of others."""
    uplinks = {}
    for i, rows in uploads.items():
        sent = tiny.by_class(rows, C, (K + 1,))
        uplinks[i] = np.where(sent.mask[:, None], sent.values, 0) if hide else sent
    return tiny.receive(uplinks, order)


def first_server(method) -> Server:
    return method.init_server(FEDERATION, jax.random.key(0))._replace(rows=jnp.asarray(OLD))


FORMS = {
    "stored": {},
    "stored, hidden classes": {"hide_classes": True},
    "uploaded": {"owners": "uploaded", "clock": "round"},
    "uploaded, hidden classes": {"owners": "uploaded", "clock": "round", "hide_classes": True},
    "summed": {"owners": "summed", "clock": "round"},
}


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    """(the options, the method, (server, uploads, order) -> its next state and metrics)."""
    options = FORMS[request.param]
    method, hide = fedssa(TRAINING, **options), "hide_classes" in options

    def serve(server, uploads, order=tiny.ORDER):
        return served(method, FEDERATION, server, receive(uploads, order, hide))

    return options, method, serve


def test_server_update_equals_the_reference(form):
    """Eq. 3 is over all clients that hold a class, those that stay away with their newest rows;
    those that never took part have none. The class that nobody uploads keeps its row."""
    options, method, serve = form
    later = {0: [0, 2]}, {1: [1], 2: [2]}
    rounds = [UPLOADS, *(tiny.prototypes_of(x, K + 1, i) for i, x in enumerate(later, 1))]
    server = first_server(method)
    for number, uploads in enumerate(rounds, 1):
        before, (server, metrics) = server, serve(server, uploads)
        stored = reference.stored_mean(rounds[:number])
        now = stored if "owners" not in options else averaging.mean_by_class(list(uploads.values()))
        assert metrics["classes"] == len(now)
        for c in range(C):
            want = now.get(c, np.asarray(before.rows[c]))
            np.testing.assert_allclose(server.rows[c], want, rtol=1e-5, atol=1e-6)
        tiny.check_equal(server, serve(before, uploads, tiny.OTHER_ORDER)[0])
    np.testing.assert_array_equal(server.rows[3], OLD[3])
    if options.get("owners") == "summed":
        return
    # What client 1 said of class 2 in the first round is gone: it no longer holds it.
    np.testing.assert_array_equal(server.held[1], [False, True, False, False])


def test_the_server_learns_whose_rows_to_send(form):
    options, method, serve = form
    server, _ = serve(first_server(method), {0: UPLOADS[0], 2: {}})
    for client, classes in enumerate([{0, 2}, {0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}]):
        downlink = method.broadcast(FEDERATION, BUCKET, server, tiny.context(client))
        if "hide_classes" in options or options.get("owners") == "summed":
            np.testing.assert_array_equal(downlink, server.rows)
            continue
        assert set(np.flatnonzero(downlink.mask)) == classes
        np.testing.assert_array_equal(downlink.values, server.rows)


def test_without_semantics_everybody_owns_every_class():
    method, everybody = fedssa(TRAINING, semantic=False), np.ones(C, bool)
    client = method.init_client(BUCKET, tiny.context(0))
    downlink = Masked(jnp.asarray(OLD), jnp.asarray(everybody))
    received, trained, uplink, _ = tiny.play(method, client, downlink)
    np.testing.assert_array_equal(uplink.mask, everybody)
    np.testing.assert_array_equal(uplink.values, rows_of(trained["params"]["head"]))
    theta, mu = rows_of(client["params"]["head"]), stabilisation(1, 0.5, 5)
    got = rows_of(received["params"]["head"])
    np.testing.assert_allclose(got, OLD + mu * theta, rtol=1e-5, atol=1e-6)


def test_without_semantics_a_client_without_samples_owns_no_class():
    method, everybody = fedssa(TRAINING, semantic=False), np.ones(C, bool)
    rows = np.random.default_rng(0).normal(size=(2, *OLD.shape)).astype(np.float32)
    uplinks = {i: Masked(rows[i], everybody) for i in (0, 1)}
    received = tiny.receive(uplinks, tiny.ORDER, samples={1: 0})
    new, _ = served(method, FEDERATION, first_server(method), received)
    np.testing.assert_allclose(new.rows, rows[0], rtol=1e-6)


@pytest.mark.parametrize("decay", ["cosine", "linear", "step"])
def test_stabilisation_and_its_growth(decay):
    if decay == "cosine":
        shares = [stabilisation(t, 0.5, 2) for t in range(4)]
        np.testing.assert_allclose(shares, [0.5, 0.3536, 0, 0], atol=1e-4)
    for t in range(9):
        want = reference.stabilisation(t, 0.7, 5, decay)
        np.testing.assert_allclose(stabilisation(t, 0.7, 5, decay), want, atol=1e-7)
    assert stabilisation(2, 0.5, 2, decay) == 0
    growth = reference.growth(0.7, 5, decay)
    np.testing.assert_allclose(most_growth(0.7, 5, decay), growth, rtol=1e-5)


@pytest.mark.parametrize("clock", ["client", "round"])
@modes
def test_a_client_fuses_the_rows_of_its_own_classes(hide, clock):
    """t counts from 1: in the first round mu is cos(pi / 6) of its start, where T is 3. It is the
    client's own first round, whatever the federation's, or that of all."""
    options = {"mu": 0.8, "stable_rounds": 3, "clock": clock, "hide_classes": hide}
    method = fedssa(TRAINING, **options)
    state = method.init_client(BUCKET, tiny.context(0))
    theta = np.asarray(rows_of(state["params"]["head"]), np.float64)
    sent = np.arange(C) != 1
    masked = Masked(jnp.where(sent[:, None], OLD, jnp.nan), jnp.asarray(sent))
    downlink = jnp.asarray(OLD) if hide else masked
    receive = jax.jit(lambda client, ctx: method.receive(BUCKET, client, downlink, DATA, ctx))
    for number, mu in enumerate([0.8 * np.cos(np.pi / 6), 0.8 * np.cos(np.pi / 3), 0, 0]):
        taken_part, round = (number, 40) if clock == "client" else (7, number)
        now = state | {"rounds": jnp.int32(taken_part)}
        client = receive(now, tiny.context(0, round=round))
        got = rows_of(client["params"]["head"])
        np.testing.assert_allclose(got, reference.fuse(theta, OLD, OWN, mu), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got[1], theta[1].astype(np.float32))  # its history
        tiny.check_equal(client["params"]["base"], state["params"]["base"])


def test_rows_that_were_not_sent_are_not_fused():
    method = fedssa(TRAINING)
    state = method.init_client(BUCKET, tiny.context(0))
    nothing = Masked(jnp.full((C, K + 1), jnp.nan), jnp.zeros(C, bool))
    client = method.receive(BUCKET, state, nothing, DATA, tiny.context(0))
    tiny.check_equal(client, state)


@modes
def test_client_update_equals_the_reference(hide):
    method = fedssa(TRAINING, hide_classes=hide)
    client = method.init_client(BUCKET, tiny.context(0))
    downlink = jnp.asarray(OLD) if hide else Masked(jnp.asarray(OLD), jnp.ones(C, bool))
    received, trained, uplink, metrics = tiny.play(method, client, downlink)
    want, loss, _ = linear_client.train(tiny.flat_params(received["params"]), BATCHES, LR)
    tiny.check_model(trained["params"], want)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    rows = np.concatenate([want["head_kernel"].T, want["head_bias"][:, None]], axis=1)
    sent = uplink if hide else uplink.values
    np.testing.assert_allclose(sent[np.array(sorted(OWN))], rows[sorted(OWN)], rtol=1e-5, atol=1e-6)
    if hide:
        np.testing.assert_array_equal(sent[1], 0)
    else:
        np.testing.assert_array_equal(uplink.mask, [True, False, True, True])


def test_fusing_that_compounds_is_refused_or_warned_of():
    for form in ({}, FORMS["uploaded"], FORMS["summed"]):
        line = r"stable_rounds is 50 with mu 0\.5: .* lengthen rows \d+ times"
        with pytest.raises(ValueError, match=line):
            fedssa(TRAINING, stable_rounds=50, **form)
    message = "rows compound in every round; use clock='round', mu=0 or owners='stored'"
    with pytest.raises(ValueError, match=message):
        fedssa(TRAINING, owners="uploaded")
    with pytest.raises(ValueError, match="owners='summed' fuses as long as new clients appear"):
        fedssa(TRAINING, owners="summed")
    fedssa(TRAINING, owners="uploaded", mu=0.0)
    method = fedssa(TRAINING, stable_rounds=50, clock="round")
    assert method.view.warn({"longest_row": 2.0}) is None
    for length in (1e4, float("nan"), float("inf")):
        assert "mu compounds" in method.view.warn({"longest_row": length})
