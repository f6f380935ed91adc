"""Codes of uplinks: what crosses the wire is counted, and what stands behind it reads floats."""

import functools

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.codes import Code
from fedjax_ht.core.contract import guarded
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.message_forms import uplink_form
from fedjax_ht.core.method import Method, Wire
from fedjax_ht.core.round import Channel
from fedjax_ht.core.wire import Masked, Metadata, chain
from fedjax_ht.methods.shared.averaging import client_weights, weighted_mean
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from fedjax_ht.trust.disclosure import check_uploads
from fedjax_ht.trust.options import Attack
from tests.federations import NUM_CLIENTS, federation_data, play, to_host, uniform_federation

SIZE = 20
BYTES = SIZE + 4  # integers, and their unit
FEDERATION = uniform_federation()
BUCKET = FEDERATION.buckets[0]
CHANNEL = Channel(chain(()), chain(()))


def encode(bucket, uplink, downlink, ctx):
    unit = jnp.maximum(jnp.max(jnp.abs(uplink - downlink)) / 127, 1e-30)
    return jnp.int8(jnp.round((uplink - downlink) / unit)), unit


def decode(bucket, message, downlink, ctx):
    integers, unit = message
    return downlink + integers * unit


CODE = Code(encode, decode)


def wanderer(code: Code | None = CODE, sent=lambda uplink: uplink) -> Method:
    """Returns a method whose server is a vector that every client moves by 0.01 and a little."""

    def client_update(bucket, client, downlink, data, ctx):
        moved = jnp.where(data.splits["train"].count > 0, 0.01 + 0.001 * ctx.info.id, 0.0)
        return client, sent(downlink + moved), {}

    def server_update(federation, server, received, ctx):
        (uploads,) = received.values()
        weights = client_weights(uploads)
        mean = weighted_mean(uploads.uplink, weights)
        return jnp.where(weights.any(), mean, server), {}

    return Method(
        name="wanderer",
        training=LocalTraining(optax.sgd(0.1)),
        init_server=lambda federation, key: jnp.zeros(SIZE),
        client_update=client_update,
        server_update=server_update,
        wire=Wire(server_reads="sums", code=code),
    )


@functools.cache
def round_of(attack: Attack):
    options = SimulationOptions(attack=attack)
    simulation = make_simulation(wanderer(), FEDERATION, federation_data(FEDERATION), options)
    return play(simulation, to_host(simulation.init()), range(NUM_CLIENTS))


def test_the_coded_form_is_counted_and_the_server_reads_floats():
    state, report = round_of(Attack())
    assert report.uplink.payload_bytes == NUM_CLIENTS * BYTES
    assert report.uplink.payload_elements == NUM_CLIENTS * (SIZE + 1)
    trained = [i for i in range(NUM_CLIENTS) if i != 3]  # client 3 has no samples
    np.testing.assert_allclose(state.server, 0.01 + 0.001 * np.mean(trained), rtol=1e-5)


UNREADABLE = {
    "int8": jnp.int8,
    "bits": lambda uplink: (uplink, jnp.packbits(uplink > 0)),
    "rows": lambda uplink: Masked(jnp.int8(uplink), uplink > 0),
    "flags": lambda uplink: uplink > 0,
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_numbers_that_nobody_could_read_are_refused(kind):
    method = guarded(wanderer(None, UNREADABLE[kind]))
    line = r"client_update of 'wanderer' sends \w+ outside Metadata, which attacks, defences and"
    with pytest.raises(ValueError, match=line):
        uplink_form(method, FEDERATION, BUCKET, CHANNEL)


def test_counts_may_be_integers():
    method = guarded(wanderer(None, lambda uplink: (uplink, Metadata(jnp.int32(1)))))
    assert uplink_form(method, FEDERATION, BUCKET, CHANNEL)[1].value.dtype == jnp.int32


def test_noise_on_sums_takes_no_code_and_noise_on_uploads_none_that_remembers():
    with pytest.raises(ValueError, match=r"coded after they are clipped, and rounding may make"):
        check_uploads(wanderer(), FEDERATION, sums=True)
    check_uploads(wanderer(), FEDERATION, sums=False)
    with pytest.raises(ValueError, match="remember what their code leaves out"):
        check_uploads(wanderer(CODE._replace(remembers=True)), FEDERATION, sums=False)
