import functools

import jax
import numpy as np
import pytest

from fedjax_ht.core.wire import wire_elements
from fedjax_ht.methods.fedkd import compress, decompress, fedkd
from tests import tiny
from tests.reference import averaging, low_rank, mutual
from tests.standard import served
from tests.tiny import BATCHES, DATA, LR, TRAINING

# wide enough for one component to be smaller than all
FEDERATION = tiny.linear_federation(width=12)
BUCKET = FEDERATION.buckets[0]
SIZE = (4 * 12 + 12) + (12 * 4 + 4)
VARIANTS = ("paper", "released")


@functools.partial(jax.jit, static_argnums=0)
def update(method, client, ctx):
    """Without a receipt: what was sent is part of the client."""
    return method.client_update(BUCKET, client, (), DATA, ctx)


@functools.partial(jax.jit, static_argnums=0)
def received(method, server, client, ctx):
    """The client after receipt, and the numbers of its downlink."""
    downlink = method.broadcast(FEDERATION, BUCKET, server, ctx)
    numbers = wire_elements(downlink).payload_elements
    return method.receive(BUCKET, client, downlink, None, ctx), numbers


def check_close(a, b) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-6), a, b)


@functools.cache
def uncompressed(variant: str = "paper"):
    return fedkd(TRAINING, start=1.0, end=1.0, variant=variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_client_update_equals_the_reference(variant):
    """At threshold 1 what arrives is what was trained, or its difference to the model received."""
    method, ctx = uncompressed(variant), tiny.context(0)
    client = method.init_client(BUCKET, ctx)
    assert client["projection"].shape == (12, 12)
    client["shared"]["params"] = last = tiny.shift(client["shared"]["params"], 1)
    trained, uplink, metrics = update(method, client, ctx)
    models = tiny.flat_pair(client, {"projection": client["projection"]})
    released = variant == "released"
    losses = mutual.fedkd(1 / 4 if released else 1.0)
    want, loss = mutual.train(losses, models, BATCHES, LR, joint=released)
    tiny.check_model(trained["params"], want["own"])
    tiny.check_models({"beside": trained}, {"beside": want["beside"]})
    # what the next update changes
    tiny.check_equal(trained["shared"]["params"], last)
    sent = tiny.flat_params(decompress(uplink, variant))
    if not released:
        sent = {name: value + models["shared"][name] for name, value in sent.items()}
    tiny.check_model(sent, want["shared"])
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)


def test_a_client_sends_the_compressed_change():
    """T rises over four rounds and stays."""
    method = fedkd(TRAINING, start=0.5, end=0.9, rounds=4)
    client = method.init_client(BUCKET, tiny.context(0))
    numbers = []
    for round, energy in ((0, 0.5), (2, 0.7), (4, 0.9), (40, 0.9)):
        ctx = tiny.context(0, round=round)
        whole, uplink = (update(m, client, ctx)[1] for m in (uncompressed(), method))
        change = tiny.flat_params(decompress(whole, "paper"))
        want = {name: low_rank.compress(value, energy) for name, value in change.items()}
        sent = {name: value for name, (value, _) in want.items()}
        tiny.check_model(decompress(uplink, "paper"), sent)
        numbers.append(int(wire_elements(uplink).payload_elements))
        assert numbers[-1] == sum(count for _, count in want.values())
    assert numbers[0] < SIZE


@functools.partial(jax.jit, static_argnums=1)
def uplinks_of(params, variant: str = "paper") -> dict:
    changes = {
        i: jax.tree.map(lambda a, b: a - b, tiny.shift(params, i, 0.1), params) for i in range(3)
    }
    return {i: compress(change, 1.0, variant) for i, change in changes.items()}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("energy", [0.6, 1.0])
def test_server_update_equals_the_reference(variant, energy):
    """At threshold 1 it is the plain mean."""
    method = fedkd(TRAINING, start=energy, end=energy, variant=variant)
    old = method.init_server(FEDERATION, jax.random.key(0))
    uplinks, ctx = uplinks_of(old.params, variant), tiny.context(round=6)
    new, _ = served(method, FEDERATION, old, tiny.receive(uplinks), ctx)
    sent = [tiny.flat_params(decompress(u, variant)) for u in uplinks.values()]
    for name, value in tiny.flat_params(old.params).items():
        mean = averaging.weighted_mean([s[name] for s in sent], [1.0] * 3)
        step, _ = low_rank.compress(mean, energy, variant)
        want = step if variant == "released" else value + step
        np.testing.assert_allclose(tiny.flat_params(new.params)[name], want, rtol=1e-5, atol=2e-6)
    assert new.made == 6
    np.testing.assert_array_equal(new.answered, [True, True, True, False])
    # nobody has samples
    idle = tiny.receive(uplinks, samples=dict.fromkeys(uplinks, 0))
    tiny.check_equal(served(method, FEDERATION, old, idle, ctx)[0], old)


def test_clients_with_the_last_weights_get_the_update_and_all_others_whole_models():
    method = fedkd(TRAINING, start=0.6, end=0.6)
    first = method.init_server(FEDERATION, jax.random.key(0))
    client = method.init_client(BUCKET, tiny.context(0))
    client, cost = received(method, first, client, tiny.context(0))
    assert cost == SIZE  # in the first round nobody holds anything
    tiny.check_equal(client["shared"]["params"], first.params)
    heard = tiny.receive(uplinks_of(first.params))
    second, _ = served(method, FEDERATION, first, heard, tiny.context())
    stranger = tiny.shift(client, 9)
    cases = {
        "holds the last": (client, tiny.context(0, round=1, last_round=0), False),
        "missed the round": (stranger, tiny.context(0, round=1), True),
        "came after it, in a round": (stranger, tiny.context(0, round=2, last_round=1), True),
        "did not answer in it": (stranger, tiny.context(3, round=1, last_round=0), True),
    }
    for case, (holder, ctx, whole) in cases.items():
        got, cost = received(method, second, holder, ctx)
        assert (cost == SIZE) == whole, case
        check_close(got["shared"]["params"], second.params)
        tiny.check_equal(got["params"], holder["params"])


def test_released_clients_are_sent_compressed_weights_once_there_are_any():
    method = fedkd(TRAINING, start=0.6, end=0.6, variant="released")
    first = method.init_server(FEDERATION, jax.random.key(0))
    heard = tiny.receive(uplinks_of(first.params, "released"))
    second, _ = served(method, FEDERATION, first, heard, tiny.context())
    client = method.init_client(BUCKET, tiny.context(0))
    for server, round, whole in ((first, 0, True), (second, 3, False)):
        got, cost = received(method, server, client, tiny.context(0, round=round))
        assert (cost == SIZE) == whole
        check_close(got["shared"]["params"], server.params)


def test_thresholds_may_be_arguments_of_a_program():
    """Methods that vary have such thresholds. At threshold 1 the mean is sent whole."""
    ctx = tiny.context(round=6)
    old = uncompressed().init_server(FEDERATION, jax.random.key(0))
    heard = tiny.receive(uplinks_of(old.params))

    def step(start, end):
        method = fedkd(TRAINING, start=start, end=end)
        return decompress(method.server_update(FEDERATION, old, heard, ctx)[0].step, "paper")

    known, traced = jax.jit(lambda: step(1.0, 1.0))(), jax.jit(step)(1.0, 1.0)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), known, traced)
