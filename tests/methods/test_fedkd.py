import functools

import jax
import numpy as np
import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import wire_elements
from fedjax_ht.methods.fedkd import compress, decompress, fedkd
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import tiny
from tests.federations import TRAINING as FEDERATION_TRAINING
from tests.federations import federation_data, play, to_host, uniform_federation
from tests.methods import pairs
from tests.reference import averaging, low_rank, mutual

TRAINING = LocalTraining(optax.sgd(pairs.LR), batch_size=3, shuffle=False)
# wide enough for one component to be smaller than all
FEDERATION = tiny.linear_federation(num_classes=4, width=12)
BUCKET = FEDERATION.buckets[0]
SIZE = (4 * 12 + 12) + (12 * 4 + 4)
VARIANTS = ("paper", "released")


@functools.cache
def uncompressed(variant: str = "paper"):
    return fedkd(TRAINING, start=1.0, end=1.0, variant=variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_client_update_equals_the_reference(variant):
    """At threshold 1 what arrives is what was trained, or its difference to the model received."""
    method, ctx, data = (
        uncompressed(variant),
        pairs.context(),
        tiny.client_data(pairs.LABELS, padding=2),
    )
    client = method.init_client(BUCKET, ctx)
    assert client["projection"].shape == (12, 12)
    client["shared"]["params"] = last = pairs.shift(client["shared"]["params"], 1)
    trained, uplink, metrics = jax.jit(lambda c: method.client_update(BUCKET, c, (), data, ctx))(
        client
    )
    models = pairs.flat_pair(client, {"projection": client["projection"]})
    released = variant == "released"
    losses = mutual.fedkd(1 / 4 if released else 1.0)
    want, loss = mutual.train(losses, models, pairs.batches(data), pairs.LR, joint=released)
    pairs.assert_models_close(
        {"own": tiny.flat_params(trained["params"]), "beside": trained},
        {"own": want["own"], "beside": want["beside"]},
    )
    # what the next update changes
    jax.tree.map(np.testing.assert_array_equal, trained["shared"]["params"], last)
    sent = tiny.flat_params(decompress(uplink, variant))
    if not released:
        sent = {name: value + models["shared"][name] for name, value in sent.items()}
    pairs.assert_models_close({"shared": sent}, {"shared": want["shared"]})
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)


def test_a_client_sends_the_compressed_change():
    """T rises over four rounds and stays."""
    method, data = fedkd(TRAINING, start=0.5, end=0.9, rounds=4), tiny.client_data(pairs.LABELS)
    client = method.init_client(BUCKET, pairs.context())
    update = jax.jit(
        lambda method, ctx: method.client_update(BUCKET, client, (), data, ctx)[1], static_argnums=0
    )
    numbers = []
    for round, energy in ((0, 0.5), (2, 0.7), (4, 0.9), (40, 0.9)):
        change = tiny.flat_params(decompress(update(uncompressed(), pairs.context(round))))
        uplink = update(method, pairs.context(round))
        want = {name: low_rank.compress(value, energy) for name, value in change.items()}
        sent = tiny.flat_params(decompress(uplink))
        pairs.assert_models_close(
            {"sent": sent}, {"sent": {n: value for n, (value, _) in want.items()}}
        )
        numbers.append(int(wire_elements(uplink).payload_elements))
        assert numbers[-1] == sum(count for _, count in want.values())
    assert numbers[0] < SIZE


@functools.partial(jax.jit, static_argnums=1)
def uplinks_of(params, variant: str = "paper") -> dict:
    changes = {
        i: jax.tree.map(lambda a, b: a - b, pairs.shift(params, i, 0.1), params) for i in range(3)
    }
    return {i: compress(change, 1.0, variant) for i, change in changes.items()}


def served(method, server, received):
    """The server after the first round."""
    ctx = pairs.context(0, client_id=None)
    serve = jax.jit(lambda *args: method.server_update(FEDERATION, *args, ctx)[0])
    return serve(server, received)


@pytest.mark.parametrize("order", [tiny.ORDER, tiny.OTHER_ORDER], ids=["order", "other order"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("energy", [0.6, 1.0])
def test_server_update_equals_the_reference(order, variant, energy):
    """At threshold 1 it is the plain mean."""
    method = fedkd(TRAINING, start=energy, end=energy, variant=variant)
    old = method.init_server(FEDERATION, jax.random.key(0))
    uplinks = uplinks_of(old.params, variant)
    ctx = pairs.context(6, client_id=None)
    serve = jax.jit(lambda received: method.server_update(FEDERATION, old, received, ctx)[0])
    new = serve(pairs.receive_uplinks(uplinks, order))
    sent = [tiny.flat_params(decompress(u, variant)) for u in uplinks.values()]
    for name, value in tiny.flat_params(old.params).items():
        mean = averaging.weighted_mean([s[name] for s in sent], [1.0] * 3)
        step, _ = low_rank.compress(mean, energy, variant)
        want = step if variant == "released" else value + step
        np.testing.assert_allclose(tiny.flat_params(new.params)[name], want, rtol=1e-5, atol=2e-6)
    assert new.made == 6
    np.testing.assert_array_equal(new.answered, [True, True, True, False])
    # nobody has samples
    idle = serve(pairs.receive_uplinks(uplinks, order, dict.fromkeys(uplinks, 0)))
    jax.tree.map(np.testing.assert_array_equal, idle, old)


def test_clients_with_the_last_weights_get_the_update_and_all_others_whole_models():
    method = fedkd(TRAINING, start=0.6, end=0.6)
    first = method.init_server(FEDERATION, jax.random.key(0))
    uplinks = uplinks_of(first.params)
    client = method.init_client(BUCKET, pairs.context())

    @jax.jit
    def receive(server, client, ctx):
        downlink = method.broadcast(FEDERATION, BUCKET, server, ctx)
        return method.receive(BUCKET, client, downlink, None, ctx), wire_elements(
            downlink
        ).payload_elements

    client, cost = receive(first, client, pairs.context(0))
    assert cost == SIZE  # in the first round nobody holds anything
    jax.tree.map(np.testing.assert_array_equal, client["shared"]["params"], first.params)
    heard = pairs.receive_uplinks(uplinks, tiny.ORDER)
    second = served(method, first, heard)
    stranger = pairs.shift(client, 9)
    cases = {
        "holds the last": (client, pairs.context(1, last_round=0), False),
        "missed the round": (stranger, pairs.context(1, last_round=-1), True),
        "came after it, in a round that changed nothing": (
            stranger,
            pairs.context(2, last_round=1),
            True,
        ),
        "did not answer in it": (stranger, pairs.context(1, last_round=0, client_id=3), True),
    }
    for case, (holder, ctx, whole) in cases.items():
        got, cost = receive(second, holder, ctx)
        assert (cost == SIZE) == whole, case
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6),
            got["shared"]["params"],
            second.params,
        )
        jax.tree.map(np.testing.assert_array_equal, got["params"], holder["params"])


def test_released_clients_are_sent_compressed_weights_once_there_are_any():
    method = fedkd(TRAINING, start=0.6, end=0.6, variant="released")
    first = method.init_server(FEDERATION, jax.random.key(0))
    heard = pairs.receive_uplinks(uplinks_of(first.params, "released"), tiny.ORDER)
    second = served(method, first, heard)
    client = method.init_client(BUCKET, pairs.context())

    @jax.jit
    def receive(server, ctx):
        downlink = method.broadcast(FEDERATION, BUCKET, server, ctx)
        got = method.receive(BUCKET, client, downlink, None, ctx)["shared"]["params"]
        return got, wire_elements(downlink).payload_elements

    for server, ctx, whole in ((first, pairs.context(0), True), (second, pairs.context(3), False)):
        got, cost = receive(server, ctx)
        assert (cost == SIZE) == whole
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), got, server.params
        )


def test_a_simulation_counts_whole_models_for_clients_that_missed_a_round():
    """Rounds of the test federation with compression: newcomers, the dropped and the left-out pay
    |g|, others less."""
    # clients of one architecture, since only the shared model crosses the wire
    federation = uniform_federation()
    method = fedkd(FEDERATION_TRAINING, start=0.3, end=0.3)
    size = 16 * 8 + 8 + 8 * 5 + 5
    sim = make_simulation(
        method, federation, federation_data(federation), SimulationOptions(lanes=1)
    )

    def down(state, ids, dropped=()):
        state, report = play(sim, state, ids, dropped)
        return state, report.downlink.payload_elements

    state, cost = down(to_host(sim.init()), [0, 1, 4, 5])
    assert cost == 4 * size
    state, sent = down(state, [0])
    assert 0 < sent < size
    state, cost = down(state, [0, 1])  # 1 missed a round
    assert size < cost < 2 * size
    state, cost = down(state, [0, 1], dropped=[0])
    assert cost < 2 * size
    state, cost = down(state, [0, 1])  # 0 did not answer
    assert size < cost < 2 * size


def test_the_first_downlink_of_the_cifar100_setting():
    federation = pairs.cifar100_federation()
    method = fedkd(TRAINING)
    server = jax.eval_shape(lambda: method.init_server(federation, jax.random.key(0)))
    empty = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), server)._replace(made=np.int32(-1))
    ctx = pairs.context()

    @jax.jit
    def costs(server):
        downlinks = [method.broadcast(federation, b, server, ctx) for b in federation.buckets]
        return [wire_elements(downlink).payload_elements for downlink in downlinks]

    assert costs(empty) == [924_708, 924_708]


def test_thresholds_may_be_arguments_of_a_program():
    """Methods that vary have such thresholds. At threshold 1 the mean is sent whole."""

    def step(start, end):
        method = fedkd(TRAINING, start=start, end=end)
        old = method.init_server(FEDERATION, jax.random.key(0))
        received = pairs.receive_uplinks(uplinks_of(old.params), tiny.ORDER)
        context = pairs.context(6, client_id=None)
        return decompress(method.server_update(FEDERATION, old, received, context)[0].step, "paper")

    known, traced = jax.jit(lambda: step(1.0, 1.0))(), jax.jit(step)(1.0, 1.0)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), known, traced)
