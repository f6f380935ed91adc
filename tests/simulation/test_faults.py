"""Faults put into single stages of a round, found by stage, client and array."""

import jax
import jax.numpy as jnp

from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import federations

MIXED, UNIFORM = federations.mixed_federation(), federations.uniform_federation()
BUCKET = {i: b.name for b in MIXED.buckets for i in MIXED.members(b)}


def first_fault(ids, jit=True, name="fedproto", *, uplink=(), federation=UNIFORM, **changes):
    """The fault of the first round, of these participants, with some functions changed."""
    method, data = METHODS[name](federations.TRAINING), federations.federation_data(federation)
    fields = {field: change(getattr(method, field)) for field, change in changes.items()}
    method = method._replace(**fields)
    sim = make_simulation(method, federation, data, SimulationOptions(devices=1, uplink=uplink))
    state = sim.init()
    before = federations.to_host(state)
    with federations.chosen(ids):
        fault = sim.find_fault(state, jit)
    assert federations.identical(before, federations.to_host(state))
    return fault


def nan_for(client: int, tree, ctx):
    return jax.tree.map(lambda x: jnp.where(ctx.info.id == client, jnp.nan, x), tree)


def spoiled_update(client: int):
    def change(update):
        def spoiled(bucket, state, downlink, data, ctx):
            state, uplink, metrics = update(bucket, state, downlink, data, ctx)
            return state | {"params": nan_for(client, state["params"], ctx)}, uplink, metrics

        return spoiled

    return change


def test_a_value_that_is_not_finite_is_named_by_stage_client_and_array():
    fault = first_fault([0, 4], federation=MIXED, client_update=spoiled_update(4))
    assert (fault.stage, fault.bucket, fault.client) == ("client_update", BUCKET[4], 4)
    assert fault.where.startswith("[0]['params']")
    assert str(fault).startswith("client_update of client 4 in bucket")
    assert first_fault([5, 6], federation=MIXED, client_update=spoiled_update(4)) is None


def test_without_jit_a_method_sees_numbers():
    def change(update):
        def looks(bucket, client, downlink, data, ctx):
            assert int(ctx.round) == 0
            return client, (), {"loss": jnp.float32(0)}

        return looks

    assert "ConcretizationTypeError" in first_fault([1], name="local", client_update=change).where
    assert first_fault([1], jit=False, name="local", client_update=change) is None


def test_a_function_that_raises_is_named():
    def change(_):
        def receive(bucket, client, downlink, data, ctx):
            raise TypeError("no such thing\nand more")

        return receive

    fault = first_fault([1], receive=change)
    assert (fault.stage, fault.client, fault.where) == ("receive", 1, "TypeError: no such thing")
    assert isinstance(fault.error, TypeError)


def test_the_wire_and_the_server_are_stages():
    def broken(key, message):
        return jax.tree.map(lambda x: x / 0, message)

    fault = first_fault([0, 1], name="lg_fedavg", uplink=(broken,))
    assert fault.stage == "uplink" and fault.client == 0

    def change(update):
        def server_update(federation, server, received, ctx):
            new, metrics = update(federation, server, received, ctx)
            return jax.tree.map(
                lambda x: jnp.where(jnp.issubdtype(x.dtype, jnp.floating), jnp.nan, x), new
            ), metrics

        return server_update

    fault = first_fault([0, 1], name="lg_fedavg", server_update=change)
    assert (fault.stage, fault.bucket, fault.client) == ("server_update", None, None)
    assert str(fault).startswith("server_update: [0]")
