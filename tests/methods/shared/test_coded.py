"""Codes of uplinks for any method, beside NumPy and in rounds of a method without training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.context import ClientInfo, Context
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.message_forms import result_form
from fedjax_ht.core.method import Method, Wire, varied
from fedjax_ht.core.round import Channel
from fedjax_ht.core.wire import Masked, Metadata, chain, payload_leaves, wire_elements
from fedjax_ht.deploy.messages import Envelope, from_bytes, pack, to_bytes, unpack
from fedjax_ht.lab.config.base import base_config
from fedjax_ht.lab.runs.plan import settle
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.shared.averaging import client_weights, weighted_mean
from fedjax_ht.methods.shared.checking import check_method
from fedjax_ht.methods.shared.coded import quantised, top_k, untrained
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from fedjax_ht.trust.attacks import attackers
from fedjax_ht.trust.disclosure import check_samples, check_uploads
from fedjax_ht.trust.options import Attack
from tests import federations
from tests.federations import NUM_CLIENTS, federation_data, play, to_host, uniform_federation
from tests.reference import codes

FEDERATION = uniform_federation()
BUCKET = FEDERATION.buckets[0]
CHANNEL = Channel(chain(()), chain(()))
ROWS = np.array([True, False, True])
SEED = 5  # clients 1 and 6 attack
HONEST = Attack()


def drawn(seed: int) -> dict:
    """Returns a message of a matrix, a vector, rows of which two are sent, and a count."""
    rng = np.random.default_rng(seed)
    matrix, vector, rows = (jnp.float32(rng.normal(size=s)) for s in ((3, 5), (2,), (3, 2, 3)))
    return {"a": matrix, "b": vector, "c": Masked(rows, jnp.asarray(ROWS)), "d": Metadata(7)}


def walk(rate: float = 1.0) -> Method:
    """Returns a method whose clients add what they draw by key to the server's message."""

    def init_server(federation, key):
        return jax.tree.map(jnp.zeros_like, (drawn(0)["a"], drawn(0)["b"]))

    def client_update(bucket, client, downlink, data, ctx):
        trains = data.splits["train"].count > 0
        step = jax.random.normal(ctx.key, (3, 5)), 0.1 * jax.random.normal(ctx.key, (2,))
        return client, jax.tree.map(lambda x, y: x + trains * rate * y, downlink, step), {}

    def server_update(federation, server, received, ctx):
        (uploads,) = received.values()
        return weighted_mean(uploads.uplink, client_weights(uploads)), {}

    functions = {"init_server": init_server, "client_update": client_update}
    functions |= {"server_update": server_update, "wire": Wire(server_reads="sums")}
    return Method(name="walk", training=LocalTraining(optax.sgd(0.1)), **functions)


def resting() -> Method:
    """Returns a method that sends whatever its downlink is."""

    def client_update(bucket, client, downlink, data, ctx):
        return client, downlink, {}

    return walk()._replace(name="resting", client_update=client_update)


def read(method: Method, upload, start) -> dict:
    """Returns what a server reads of an upload, where an untrained client sends `start`."""
    code = method.wire.code
    assert code is not None

    @jax.jit
    def crossed(upload, start):
        info = ClientInfo(jnp.int32(0), jnp.int32(5), last_round=jnp.int32(-1))
        ctx = Context(jax.random.key(0), jnp.int32(0), info)
        message = code.encode(BUCKET, upload, start, ctx)
        return code.decode(BUCKET, message, start, ctx)

    return crossed(upload, start)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_integers_are_those_of_the_reference(bits):
    start, upload = drawn(0), drawn(1)
    got = read(quantised(resting(), bits), upload, start)
    for name in "ab":
        change = np.asarray(upload[name]) - np.asarray(start[name])
        expected = codes.read_rounded(start[name], *codes.rounded(change, bits))
        np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-6)
    change = np.asarray(upload["c"].values - start["c"].values)[ROWS]
    expected = codes.read_rounded(start["c"].values[ROWS], *codes.rounded(change, bits))
    np.testing.assert_allclose(got["c"].values[ROWS], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got["c"].mask, ROWS)
    assert got["d"].value == 7


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_entries_are_those_of_the_reference(share):
    start, upload = drawn(0), drawn(1)
    got = read(top_k(resting(), share), upload, start)

    def flat(message):
        return np.concatenate([np.ravel(message["a"]), message["b"]])

    expected = codes.read_largest(flat(start), flat(upload), share)
    np.testing.assert_array_equal(flat(got), expected)
    np.testing.assert_array_equal(got["c"].values, upload["c"].values)
    assert got["d"].value == 7


@pytest.mark.parametrize(
    ("transform", "payload", "metadata"),
    [
        (quantised, (15 + 4) + (2 + 4), 0),
        (functools.partial(quantised, bits=4), (8 + 4) + (1 + 4), 0),
        (functools.partial(quantised, bits=2), (4 + 4) + (1 + 4), 0),
        (functools.partial(top_k, share=0.2), 4 * 4, 4 * 4),
        (functools.partial(top_k, share=0.01), 4, 4),
    ],
)
def test_bytes_are_those_of_the_coded_form_on_the_wire(transform, payload, metadata):
    form = result_form(transform(walk()), FEDERATION, BUCKET, CHANNEL)
    cost = wire_elements(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), form.coded))
    assert (cost.payload_bytes, cost.metadata_bytes) == (payload, metadata)
    # A deployment carries it so, and puts it together again.
    sent = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), form.coded)
    arrays = from_bytes(to_bytes(Envelope({}, pack(sent)))).arrays
    assert sum(array.nbytes for array in arrays.values()) == payload + metadata
    jax.tree.map(np.testing.assert_array_equal, unpack(form.coded, arrays, "the uplink"), sent)


def same(method: Method) -> Method:
    return method


eight_bits = functools.partial(quantised, bits=8)
all_entries = functools.partial(top_k, share=1.0)
tenth = functools.partial(top_k, share=0.1)


@functools.cache
def rounds(transform, attack=HONEST, number: int = 2):
    """Returns the states before and after each round of all clients, and the last report."""
    data, options = federation_data(FEDERATION), SimulationOptions(attack=attack)
    run = make_simulation(transform(walk()), FEDERATION, data, options)
    states, reports = [to_host(run.init())], []
    for _ in range(number):
        state, report = play(run, states[-1], range(NUM_CLIENTS))
        states.append(state)
        reports.append(report)
    return states, reports[-1]


def test_without_anything_left_out_it_is_the_method_itself():
    plain, _ = rounds(same)
    coded, _ = rounds(all_entries)
    jax.tree.map(np.testing.assert_array_equal, coded[-1].server, plain[-1].server)
    (clients,) = coded[-1].clients.values()
    assert not any(np.any(x) for x in clients.left_out)


@pytest.mark.parametrize("transform", [eight_bits, tenth])
def test_what_is_left_out_is_sent_later(transform):
    states, _ = rounds(transform)
    after, last = states[1:]
    (clients,), (later,) = after.clients.values(), last.clients.values()
    assert any(np.any(x) for x in clients.left_out)
    # client 3 has no samples; of the others' moves nothing is lost: those that the server has not
    # read stand in their memories
    trained = [i for i in range(NUM_CLIENTS) if i != 3]
    servers = rounds(same)[0][-1].server, last.server
    for plain, coded, memory in zip(*servers, later.left_out, strict=True):
        rest = np.asarray(memory)[trained].mean(0)
        np.testing.assert_allclose(coded + rest, plain, rtol=1e-5, atol=1e-5)


def test_attacks_are_seen_through_the_code():
    attack = Attack("sign_flip", 0.25, 1000.0, seed=SEED)
    _, honest = rounds(tenth)
    _, report = rounds(tenth, attack, number=1)
    bad = set(np.flatnonzero(attackers(attack, NUM_CLIENTS)))
    assert {int(client) for client, *_ in report.far_off} == bad
    assert honest.uplink.bytes == report.uplink.bytes
    assert not honest.far_off


def test_a_method_of_several_numbers_stays_one():
    method = quantised(varied(lambda settings: walk(settings["rate"]), {"rate": 1.0}))
    assert method.at({"rate": 2.0}).name == "quantised(walk)"


def named(name: str) -> Method:
    return METHODS[name](federations.TRAINING)


@pytest.mark.parametrize(
    ("transform", "name", "line"),
    [
        (quantised, "local", "clients of local send no whole arrays that it could code"),
        (top_k, "fedproto", "clients of fedproto send no whole arrays that it could code"),
        (quantised, "heterofl", None),
        (quantised, "fedrolex", "has a different meaning in another round or client"),
        (quantised, "fedkd", "has a different meaning in another round or client"),
        (lambda method: top_k(quantised(method)), "lg_fedavg", "are already coded; use one code"),
    ],
)
def test_where_a_memory_makes_no_sense_it_is_refused(transform, name, line):
    method, federation = transform(named(name)), federations.federation_for(name)
    if line is None:
        method.check(federation)
        return
    with pytest.raises(ValueError, match=line):
        method.check(federation)


@pytest.mark.parametrize("name", ["fedala", "fedamp", "fedclassavg", "fedcp", "fedrod", "moon"])
def test_the_reference_of_a_returning_client_is_its_downlink(name):
    """These clients keep parts of their own model when they return."""
    method, federation = named(name), federations.federation_for(name)
    bucket, key = federation.buckets[0], jax.random.key(0)
    info = ClientInfo(jnp.int32(0), jnp.int32(5), last_round=jnp.int32(2))
    ctx = Context(key, jnp.int32(4), info, shared_key=key)
    downlink = method.broadcast(federation, bucket, method.init_server(federation, key), ctx)
    sent = payload_leaves(untrained(method, bucket, downlink, ctx)).values()
    for received, known in zip(payload_leaves(downlink).values(), sent, strict=True):
        np.testing.assert_array_equal(received, known)


def test_a_share_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"share is 0\.0; it must be"):
        top_k(walk(), 0.0)
    with pytest.raises(ValueError, match="bits is 3"):
        quantised(walk(), 3)  # pyright: ignore[reportArgumentType]


def test_noise_on_gradients_takes_a_code():
    method, federation = quantised(named("lg_fedavg")), federations.mixed_federation()
    check_samples(method, federation)
    for sums, line in ((True, "coded after clipping"), (False, "remember the coding error")):
        with pytest.raises(ValueError, match=line):
            check_uploads(method, federation, sums)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [quantised, top_k])
@pytest.mark.parametrize("name", ["lg_fedavg", "scaffold", "fedper", "fml"])
def test_methods_keep_the_contract(transform, name):
    check_method(transform(named(name)))


def test_a_config_puts_a_code_around_every_method():
    config = base_config()
    config.uplink = (("gaussian_noise", 0.1, 0.0), ("quantise", 4))
    config.entries = ("local",)
    settled = settle(config)
    expected = ["quantised(fedtgp)", "quantised(local)"]
    assert [run.method.name for run in settled.runs.values()] == expected
    assert {len(run.options.uplink) for run in settled.runs.values()} == {1}
