"""Faults put into single stages of a round, found by stage, client and array."""

import jax
import jax.numpy as jnp

from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import federations
from tests.standard import method_of

MIXED, UNIFORM = federations.mixed_federation(), federations.uniform_federation()
BUCKET = {i: b.name for b in MIXED.buckets for i in MIXED.members(b)}


def first_fault(ids, jit=True, name="fedproto", *, uplink=(), federation=UNIFORM, **changes):
    """The fault of the first round, of these participants, with some functions replaced."""
    method, data = method_of(name)._replace(**changes), federations.federation_data(federation)
    sim = make_simulation(method, federation, data, SimulationOptions(devices=1, uplink=uplink))
    state = sim.init()
    before = federations.to_host(state)
    with federations.chosen(ids):
        fault = sim.find_fault(state, jit)
    assert federations.identical(before, federations.to_host(state))
    return fault


def test_a_value_that_is_not_finite_is_named_by_stage_client_and_array():
    update = method_of("fedproto").client_update

    def spoiled(bucket, state, downlink, data, ctx):
        state, uplink, metrics = update(bucket, state, downlink, data, ctx)
        params = jax.tree.map(lambda x: jnp.where(ctx.info.id == 4, jnp.nan, x), state["params"])
        return state | {"params": params}, uplink, metrics

    fault = first_fault([0, 4], federation=MIXED, client_update=spoiled)
    assert (fault.stage, fault.bucket, fault.client) == ("client_update", BUCKET[4], 4)
    assert fault.where.startswith("[0]['params']")
    assert str(fault).startswith("client_update of client 4 in bucket")
    assert first_fault([5, 6], federation=MIXED, client_update=spoiled) is None


def test_without_jit_a_method_sees_numbers():
    def looks(bucket, client, downlink, data, ctx):
        assert int(ctx.round) == 0
        return client, (), {"loss": jnp.float32(0)}

    assert "ConcretizationTypeError" in first_fault([1], name="local", client_update=looks).where
    assert first_fault([1], jit=False, name="local", client_update=looks) is None


def test_a_function_that_raises_is_named():
    def receive(bucket, client, downlink, data, ctx):
        raise TypeError("no such thing\nand more")

    fault = first_fault([1], receive=receive)
    assert (fault.stage, fault.client, fault.where) == ("receive", 1, "TypeError: no such thing")
    assert isinstance(fault.error, TypeError)


def test_the_wire_and_the_server_are_stages():
    def broken(key, message):
        return jax.tree.map(lambda x: x / 0, message)

    fault = first_fault([0, 1], name="lg_fedavg", uplink=(broken,))
    assert fault.stage == "uplink" and fault.client == 0

    def server_update(federation, server, received, ctx):
        return jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), server), {}

    fault = first_fault([0, 1], name="lg_fedavg", server_update=server_update)
    assert (fault.stage, fault.bucket, fault.client) == ("server_update", None, None)
    assert str(fault).startswith("server_update: [0]")
