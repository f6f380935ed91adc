"""HeteroFL, Federated Dropout and FedRolex as methods: what is sent, kept, averaged and left
alone."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from fedjax_ht.core.context import Context, Received
from fedjax_ht.core.federation import make_sliced_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import Masked, wire_elements
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.fedavg import fedavg
from fedjax_ht.methods.feddropout import feddropout
from fedjax_ht.methods.fedrolex import fedrolex
from fedjax_ht.methods.fedssa import rows_of
from fedjax_ht.methods.heterofl import heterofl
from fedjax_ht.methods.shared.partial_training import slice_plan, uploaded_params
from fedjax_ht.methods.shared.slicing import extract
from fedjax_ht.models import sliced_network
from fedjax_ht.models.sliced import RATES, PreActResNet, parameter_axes, sliced_model
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.serving import server_round
from fedjax_ht.simulation.simulation import make_simulation
from tests import tiny
from tests.federations import SlicedDense, federation_data, sliced_federation
from tests.models.test_sliced import PARAMETERS
from tests.reference import slicing as ref

CLASSES, SHAPE, LR = 4, (2, 2, 1), 0.1
TRAINING = LocalTraining(optax.sgd(LR), batch_size=4, shuffle=False)
SLICED = {"heterofl": "static", "feddropout": "random", "fedrolex": "rolling"}
LABELS = np.array([0, 2, 2, 0, 3, 0, 1, 1])
ROUND, SEED = 3, jax.random.key(11)

every_method = pytest.mark.parametrize("name", SLICED)


def federation(rates):
    def network(rate):
        return sliced_model(SlicedDense((8, 6), rate), CLASSES)

    return make_sliced_federation(network, rates, SHAPE, CLASSES)


def context(client_id=None, num_samples=10, round=ROUND):
    info = (
        None
        if client_id is None
        else jax.tree.map(lambda x: x[0], tiny.infos([client_id], num_samples))
    )
    return Context(jax.random.key(client_id or 0), jnp.int32(round), info, shared_key=SEED)


def first_model(method, fed):
    """With a bias in the head, so that every row tells."""
    server = jax.jit(lambda key: method.init_server(fed, key))(jax.random.key(1))
    return server | {"head": server["head"] | {"bias": jnp.arange(1.0, CLASSES + 1)}}


def one_round(method, fed, server, labels):
    """Every client's uplink in one round, {bucket: Received}; client i trains on labels[i]."""
    received = {}
    for bucket in fed.buckets:

        @jax.jit
        def client_round(ctx, data, bucket=bucket):
            downlink = method.broadcast(fed, bucket, server, ctx)
            client = method.receive(bucket, {"params": (), "stats": {}}, downlink, data, ctx)
            return method.client_update(bucket, client, downlink, data, ctx)[1]

        members = fed.members(bucket)
        uplinks = [
            client_round(context(i, len(labels[i])), own_data(labels[i], i)) for i in members
        ]
        infos = tiny.infos(members, [len(labels[i]) for i in members])
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *uplinks)
        received[bucket.name] = Received(stacked, infos, jnp.ones(len(members), bool))
    return received


def own_data(labels, seed):
    """Images with these labels, in arrays of one size for all clients."""
    count, size = len(labels), len(LABELS)
    return tiny.client_data(
        np.resize(labels, size), np.arange(count), seed=seed, padding=size - count
    )


def serve(method, fed, server, received):
    return jax.jit(lambda received: method.server_update(fed, server, received, context())[0])(
        received
    )


@every_method
def test_the_server_puts_back_what_it_cut_out(name):
    """Clients that learn nothing leave the model as it is, whatever they were sent."""
    fed, method = (
        federation((1 / 2, 1 / 4, 1 / 4)),
        METHODS[name](LocalTraining(optax.sgd(0.0), batch_size=4)),
    )
    server = first_model(method, fed)
    received = one_round(method, fed, server, [LABELS] * 3)
    chex.assert_trees_all_close(serve(method, fed, server, received), server, rtol=1e-6)


def test_a_simulation_draws_the_same_on_both_sides():
    """Client and server draw equal slices from a round's own keys, one key after the other."""
    fed, training = sliced_federation(), LocalTraining(optax.sgd(0.0), batch_size=4, steps=1)
    sim = make_simulation(
        feddropout(training), fed, federation_data(fed), SimulationOptions(lanes=1)
    )
    state = sim.init()
    first = jax.device_get(state.server)
    for _ in range(2):
        state, _ = sim.run_round(state)
    chex.assert_trees_all_close(jax.device_get(state.server), first, rtol=1e-6)


@functools.cache
def trained(name, **options):
    """A round of five clients; two have few classes, one no sample."""
    fed, method = (
        federation((1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 2)),
        METHODS[name](TRAINING, **options),
    )
    server = first_model(method, fed)
    labels = [LABELS, LABELS[:3], LABELS[:4], LABELS, LABELS[:0]]
    return fed, method, server, one_round(method, fed, server, labels), labels


@pytest.mark.parametrize(
    ("name", "weighting"), [*((name, "uniform") for name in SLICED), ("fedrolex", "samples")]
)
def test_a_round_equals_the_reference(name, weighting):
    """Each upload goes back to the channels that this client was sent; class 1 is in two clients,
    class 3 too."""
    fed, method, server, received, labels = trained(name, weighting=weighting)

    def flat(tree):
        return {k: np.asarray(x) for k, x in flatten_dict(tree, sep="/").items()}

    axes = flatten_dict(parameter_axes(fed.global_model.module, server), sep="/")
    uploads = []
    for bucket in fed.buckets:
        for row, i in enumerate(fed.members(bucket)):
            plan = slice_plan(fed, bucket.width, SLICED[name], ctx=context(), client_id=i)
            plan = {group: np.asarray(indices).tolist() for group, indices in plan.items()}
            if SLICED[name] != "random":
                assert plan == ref.plan({"fc1": 8, "fc2": 6}, bucket.width, SLICED[name], ROUND)
            params = uploaded_params(
                jax.tree.map(lambda x, row=row: x[row], received[bucket.name].uplink)
            )
            weight = len(labels[i]) if weighting == "samples" else len(labels[i]) > 0
            uploads.append((flat(params), weight, np.isin(np.arange(CLASSES), labels[i]), plan))
    expected = ref.scatter_mean(flat(server), axes, uploads)
    got = flat(serve(method, fed, server, received))
    for path, value in got.items():
        np.testing.assert_allclose(value, expected[path], rtol=1e-5, atol=1e-6, err_msg=path)
    assert not np.allclose(got["base/fc1/kernel"], server["base"]["fc1"]["kernel"], atol=1e-4)


@every_method
def test_order_and_padding_change_nothing(name):
    fed, method, server, received, _ = trained(name)

    def shuffled(part, order):
        """Rows in another order; the last one has not arrived and must not be read."""
        part = jax.tree.map(lambda x: x[np.array(order)], part)

        def spoil(x):
            return x.at[-1].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x

        return part._replace(
            uplink=jax.tree.map(spoil, part.uplink), arrived=part.arrived.at[-1].set(False)
        )

    orders = {"rate0.5": [2, 1, 0, 0], "rate0.25": [1, 0, 1]}
    reordered = {bucket: shuffled(received[bucket], order) for bucket, order in orders.items()}
    models = serve(method, fed, server, reordered), serve(method, fed, server, received)
    # a simulation's rows come by client id: no bit is another one there
    chex.assert_trees_all_close(*models, rtol=1e-6)


@pytest.mark.slow
def test_a_round_without_samples_or_arrivals_changes_nothing():
    fed, method, server, received, _ = trained("heterofl")
    nobody = {k: r._replace(arrived=jnp.zeros_like(r.arrived)) for k, r in received.items()}
    # client 4 has no sample
    only = {k: r._replace(arrived=r.info.id == 4) for k, r in received.items()}
    for messages in (nobody, only):
        new, _ = server_round(method, fed)(server, messages, SEED, jnp.int32(ROUND))
        chex.assert_trees_all_equal(new, server)


@pytest.mark.parametrize(
    ("name", "weighting"),
    [("heterofl", "samples"), ("feddropout", "uniform"), ("fedrolex", "uniform")],
)
def test_whole_slices_of_all_classes_are_fedavg(name, weighting):
    fed, labels = federation((1, 1, 1)), [LABELS, LABELS[1:7], LABELS[2:]]
    assert all(set(x) == set(range(CLASSES)) for x in labels)
    averaged, sliced = (
        fedavg(TRAINING, weighting=weighting),
        METHODS[name](TRAINING, weighting=weighting),
    )
    server = first_model(sliced, fed)
    results = [serve(m, fed, server, one_round(m, fed, server, labels)) for m in (averaged, sliced)]
    chex.assert_trees_all_close(*results, rtol=1e-5, atol=1e-6)
    assert all(m.global_params(server) is server for m in (averaged, sliced))


def test_a_client_holds_what_it_was_sent_and_trains_that():
    fed, method = federation((1 / 2,)), fedrolex(TRAINING)
    (bucket,), server, ctx, data = (
        fed.buckets,
        first_model(method, fed),
        context(0),
        tiny.client_data(LABELS),
    )
    downlink = method.broadcast(fed, bucket, server, ctx)
    axes = parameter_axes(fed.global_model.module, server)
    plan = ref.plan({"fc1": 8, "fc2": 6}, 1 / 2, "rolling", ROUND)
    plan = {group: jnp.array(indices) for group, indices in plan.items()}
    chex.assert_trees_all_equal(downlink, extract(server, axes, plan))
    client = method.receive(bucket, method.init_client(bucket, ctx), downlink, data, ctx)
    chex.assert_trees_all_equal(client["params"], downlink)
    after, uplink, _ = method.client_update(bucket, client, downlink, data, ctx)
    chex.assert_trees_all_equal(uploaded_params(uplink), after["params"])
    assert not np.allclose(after["params"]["head"]["kernel"], downlink["head"]["kernel"], atol=1e-5)


def head_after(labels, **options):
    """The head's rows before and after a client's training; its uplink."""
    fed, method = federation((1,)), heterofl(TRAINING, **options)
    (bucket,), server, ctx, data = (
        fed.buckets,
        first_model(method, fed),
        context(0),
        tiny.client_data(labels),
    )
    client, uplink, _ = method.client_update(
        bucket, {"params": server, "stats": {}}, server, data, ctx
    )
    return (
        np.asarray(rows_of(server["head"])),
        np.asarray(rows_of(client["params"]["head"])),
        uplink,
    )


def test_masked_loss_leaves_the_rows_of_other_classes():
    before, after, _ = head_after(LABELS[:4], masked_loss=True)
    assert (before != after).any(1).tolist() == [True, False, True, False]
    before, after, _ = head_after(LABELS[:4])
    assert (before != after).any(1).all()


def test_masked_loss_counts_other_classes_as_logits_of_zero():
    """One step on the head alone, in NumPy: p = softmax of the logits with zeros in place of the
    absent classes'."""
    before, after, _ = head_after(LABELS[:4], masked_loss=True)
    server = first_model(heterofl(TRAINING), federation((1,)))
    x = tiny.pixels(tiny.client_data(LABELS[:4]))
    for layer in ("fc1", "fc2"):
        x = np.maximum(
            x @ np.asarray(server["base"][layer]["kernel"])
            + np.asarray(server["base"][layer]["bias"]),
            0,
        )
    present = np.array([True, False, True, False])
    logits = np.where(present, x @ before[:, :-1].T + before[:, -1], 0)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    residual = (p - np.eye(CLASSES)[LABELS[:4]]) * present / 4
    gradient = residual.T @ np.concatenate([x, np.ones((4, 1))], 1)
    np.testing.assert_allclose(after, before - LR * gradient, rtol=1e-5, atol=1e-6)


def test_which_rows_are_sent():
    held = [True, False, True, False]
    for options, sent in (
        ({}, held),
        ({"label_split": False}, [True] * 4),
        ({"whole_head": True}, [True] * 4),
    ):
        uplink = head_after(LABELS[:4], **options)[2]
        counted = held if options.get("label_split", True) else sent
        assert uplink.head.mask.tolist() == sent and uplink.classes.value.tolist() == counted


def test_a_whole_head_changes_the_wire_and_not_the_mean():
    fed, method, server, received, _ = trained("heterofl")
    whole = [trained("heterofl", whole_head=True), trained("heterofl", label_split=False)]
    means = [serve(m, fed, server, r) for _, m, _, r, _ in whole]
    model = serve(method, fed, server, received)
    chex.assert_trees_all_equal(means[0], model)
    assert not np.allclose(means[1]["head"]["bias"], model["head"]["bias"], atol=1e-4)


@pytest.mark.parametrize("name", ["conv4", pytest.param("preact_resnet18", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", [heterofl, feddropout])
def test_wire_of_each_rate(method, name):
    """Down the published sizes; up without the head's rows of the seven classes that the client
    lacks."""
    method, shape = method(TRAINING), (32, 32, 3)
    fed = make_sliced_federation(sliced_network(name, 10, shape), RATES, shape, 10)
    ctx, data = context(0), tiny.client_data(np.array([0, 3, 9]), shape=shape)
    server = jax.eval_shape(lambda key: method.init_server(fed, key), jax.random.key(0))
    for bucket, size in zip(fed.buckets, PARAMETERS[name]):

        def messages(server, bucket=bucket):
            downlink = method.broadcast(fed, bucket, server, ctx)
            client = method.receive(bucket, {"params": (), "stats": {}}, downlink, data, ctx)
            return downlink, method.client_update(bucket, client, downlink, data, ctx)[1]

        downlink, uplink = jax.eval_shape(messages, server)
        assert sum(x.size for x in jax.tree.leaves(downlink)) == size
        rows = Masked(
            jnp.zeros(uplink.head.values.shape), jnp.isin(jnp.arange(10), jnp.array([0, 3, 9]))
        )
        sent = jax.tree.map(
            lambda x: np.zeros(x.shape, x.dtype), uplink._replace(head=())
        )._replace(head=rows)
        assert wire_elements(sent).payload_elements == size - 7 * (bucket.feature_dim + 1)


def test_a_window_moves_on_by_one_channel_a_round():
    fed, method = federation((1 / 4, 1 / 2)), fedrolex(TRAINING)
    server = first_model(method, fed)
    for round in (0, 5, 1000):
        for i, bucket in ((0, fed.buckets[1]), (1, fed.buckets[0])):
            downlink = method.broadcast(fed, bucket, server, context(i, round=round))
            kept = (round + np.arange(int(8 * bucket.width))) % 8
            np.testing.assert_array_equal(
                downlink["base"]["fc1"]["bias"], server["base"]["fc1"]["bias"][kept]
            )


def test_dropout_draws_anew_for_each_client_and_round():
    fed, method = federation((1 / 2, 1 / 2)), feddropout(TRAINING)
    server, bucket = first_model(method, fed), fed.buckets[0]

    def sent(i, round):
        shared = Context(
            SEED, jnp.int32(round), context(i).info, shared_key=jax.random.fold_in(SEED, round)
        )
        return np.asarray(
            method.broadcast(fed, bucket, server, shared)["base"]["fc1"]["bias"]
        ).tolist()

    assert sent(0, 0) == sent(0, 0)
    assert len({tuple(sent(i, round)) for i in (0, 1) for round in (0, 1)}) == 4


def test_layers_may_be_drawn_for_themselves():
    def network(rate):
        return sliced_model(PreActResNet((1, 1), (4, 4), rate, scaler=False), CLASSES)

    fed = make_sliced_federation(network, (1 / 2,), (4, 4, 1), CLASSES)
    grouped, apart = (
        slice_plan(fed, 1 / 2, "random", ctx=context(), client_id=0, per_layer=per_layer)
        for per_layer in (False, True)
    )
    assert set(grouped) == {"stage1", "stage1_0_inner", "stage2_0_inner", "stage2"}
    assert set(apart) == {
        "stem",
        "stage1_0_inner",
        "stage1_0_out",
        "stage2_0_inner",
        "stage2_0_out",
    }
    method = feddropout(TRAINING, per_layer=True)
    server = method.init_server(fed, jax.random.key(0))
    downlink = method.broadcast(fed, fed.buckets[0], server, context(0))
    stem = server["base"]["conv1"]["kernel"][..., apart["stem"]]
    np.testing.assert_array_equal(downlink["base"]["conv1"]["kernel"], stem)
