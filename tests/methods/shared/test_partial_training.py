"""HeteroFL, Federated Dropout and FedRolex: what is sent, kept, averaged and left alone."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from fedjax_ht.core.context import Context
from fedjax_ht.core.federation import Federation, make_sliced_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import Metadata, wire_elements
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.feddropout import feddropout
from fedjax_ht.methods.fedssa import rows_of
from fedjax_ht.methods.heterofl import heterofl
from fedjax_ht.methods.shared.partial_training import slice_plan, uploaded_params
from fedjax_ht.methods.shared.slicing import extract
from fedjax_ht.models import sliced_network
from fedjax_ht.models.sliced import PreActResNet, parameter_axes, sliced_model
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import tiny
from tests.federations import SlicedDense, federation_data, sliced_federation
from tests.models.test_sliced import PARAMETERS
from tests.reference import slicing as ref
from tests.standard import played

CLASSES, SHAPE, LR = 4, (2, 2, 1), 0.1
SLICED = {"heterofl": "static", "feddropout": "random", "fedrolex": "rolling"}
LABELS = np.array([0, 2, 2, 0, 3, 0, 1, 1])
ROUND, SEED = 3, jax.random.key(11)
TRAINING = LocalTraining(optax.sgd(LR), batch_size=4, shuffle=False)


def federation(rates):
    def network(rate):
        return sliced_model(SlicedDense((8, 6), rate), CLASSES)

    return make_sliced_federation(network, rates, SHAPE, CLASSES)


def context(client_id=None, num_samples=10, round=ROUND):
    ctx = tiny.context(client_id, client_id or 0, round=round, samples=num_samples)
    return ctx._replace(shared_key=SEED)


def first_model(method, fed):
    """With a bias in the head, so that every row tells."""
    server = jax.jit(lambda key: method.init_server(fed, key))(jax.random.key(1))
    return server | {"head": server["head"] | {"bias": jnp.arange(1.0, CLASSES + 1)}}


class Federated(NamedTuple):
    """A method on a federation, its first model, and its programs: a client's and the server's."""

    fed: Federation
    method: Method
    server: PyTree
    client: Callable
    serve: Callable


@functools.cache
def federated(name, rates=(1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 2), **options) -> Federated:
    fed, method = federation(rates), METHODS[name](TRAINING, **options)

    @functools.partial(jax.jit, static_argnums=0)
    def client(bucket, server, ctx, data):
        downlink = method.broadcast(fed, bucket, server, ctx)
        client = method.receive(bucket, {"params": (), "stats": {}}, downlink, data, ctx)
        return downlink, client, *method.client_update(bucket, client, downlink, data, ctx)[:2]

    serve = jax.jit(lambda *arguments: method.server_update(fed, *arguments)[0])
    return Federated(fed, method, first_model(method, fed), client, serve)


def one_round(of: Federated, labels, round=ROUND):
    """Every client's uplink in one round, {bucket: Received}; client i trains on labels[i]."""
    uplinks = {}
    for bucket in of.fed.buckets:
        for i in of.fed.members(bucket):
            ctx, data = context(i, len(labels[i]), round), own_data(labels[i], i, round)
            uplinks[i] = jax.device_get(of.client(bucket, of.server, ctx, data)[-1])
    return tiny.receive(uplinks, tiny.members(of.fed), enumerate(map(len, labels)))


def own_data(labels, seed, round):
    """Images with these labels, in arrays of one size for all clients."""
    count, size = len(labels), len(LABELS)
    padded = np.resize(labels, size)
    data = tiny.client_data(padded, np.arange(count), seed=seed, padding=size - count)
    return data._replace(round=jnp.int32(round))


def served(of: Federated, received, round=ROUND):
    return of.serve(of.server, received, context(round=round))


def test_a_simulation_draws_the_same_on_both_sides():
    """Client and server draw equal slices from a round's own keys, one key after the other."""
    fed, training = sliced_federation(), LocalTraining(optax.sgd(0.0), batch_size=4, steps=1)
    data, options = federation_data(fed), SimulationOptions(lanes=1)
    sim = make_simulation(feddropout(training), fed, data, options)
    states, _ = played(sim, 2)
    chex.assert_trees_all_close(states[-1].server, states[0].server, rtol=1e-6)


@functools.cache
def trained(name, **options):
    """A round of five clients; two have few classes, one no sample."""
    of, labels = federated(name, **options), [LABELS, LABELS[:3], LABELS[:4], LABELS, LABELS[:0]]
    return of, one_round(of, labels), labels


@pytest.mark.parametrize(
    ("name", "weighting"), [*((name, "uniform") for name in SLICED), ("fedrolex", "samples")]
)
def test_a_round_equals_the_reference(name, weighting):
    """Each upload goes back to the channels that its client was sent; two share a class."""
    options = {} if weighting == "uniform" else {"weighting": weighting}  # the default
    of, received, labels = trained(name, **options)
    fed, server = of.fed, of.server

    def flat(tree):
        return {k: np.asarray(x) for k, x in flatten_dict(tree, sep="/").items()}

    axes = flatten_dict(parameter_axes(fed.global_model.module, server), sep="/")
    uploads = []
    for bucket in fed.buckets:
        for row, i in enumerate(fed.members(bucket)):
            plan = slice_plan(
                fed.server_model, bucket.width, SLICED[name], ctx=context(), client_id=i
            )
            plan = {group: np.asarray(indices).tolist() for group, indices in plan.items()}
            if SLICED[name] != "random":
                assert plan == ref.plan({"fc1": 8, "fc2": 6}, bucket.width, SLICED[name], ROUND)
            uplink = jax.tree.map(lambda x, row=row: x[row], received[bucket.name].uplink)
            params = uploaded_params(uplink)
            weight = len(labels[i]) if weighting == "samples" else len(labels[i]) > 0
            uploads.append((flat(params), weight, np.isin(np.arange(CLASSES), labels[i]), plan))
    expected = ref.scatter_mean(flat(server), axes, uploads)
    got = flat(served(of, received))
    for path, value in got.items():
        np.testing.assert_allclose(value, expected[path], rtol=1e-5, atol=1e-6, err_msg=path)
    assert not np.allclose(got["base/fc1/kernel"], server["base"]["fc1"]["kernel"], atol=1e-4)


@pytest.mark.parametrize("name, weighting", [("heterofl", "samples"), ("fedrolex", "uniform")])
def test_whole_slices_of_all_classes_are_fedavg(name, weighting):
    labels = [LABELS, LABELS[1:7], LABELS[2:]]
    assert all(set(x) == set(range(CLASSES)) for x in labels)
    both = [federated(n, (1, 1, 1), weighting=weighting) for n in ("fedavg", name)]
    server = both[1].server
    both[0] = both[0]._replace(server=server)
    results = [served(of, one_round(of, labels)) for of in both]
    chex.assert_trees_all_close(*results, rtol=1e-5, atol=1e-6)
    assert all(of.method.global_model.params(server) is server for of in both)


def test_a_client_holds_what_it_was_sent_and_trains_that():
    of, data = federated("fedrolex", (1 / 2,)), tiny.client_data(LABELS)
    sent = of.client(of.fed.buckets[0], of.server, context(0), data)
    downlink, client, after, uplink = sent
    axes = parameter_axes(of.fed.global_model.module, of.server)
    plan = ref.plan({"fc1": 8, "fc2": 6}, 1 / 2, "rolling", ROUND)
    plan = {group: np.array(indices) for group, indices in plan.items()}
    cut = jax.jit(lambda server: extract(server, axes, plan))(of.server)
    chex.assert_trees_all_equal(downlink, cut)
    chex.assert_trees_all_equal(client["params"], downlink)
    chex.assert_trees_all_equal(uploaded_params(uplink), after["params"])
    assert not np.allclose(after["params"]["head"]["kernel"], downlink["head"]["kernel"], atol=1e-5)


def test_masked_loss_counts_other_classes_as_logits_of_zero():
    """One step in NumPy: p = softmax of logits with zeros for absent classes."""
    of, data = federated("heterofl", (1,), masked_loss=True), tiny.client_data(LABELS[:4])
    *_, client, _ = of.client(of.fed.buckets[0], of.server, context(0), data)
    heads = of.server["head"], client["params"]["head"]
    before, after = (np.asarray(rows_of(head)) for head in heads)
    x = tiny.pixels(data)
    for layer in map(of.server["base"].get, ("fc1", "fc2")):
        x = np.maximum(x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]), 0)
    present = np.array([True, False, True, False])
    logits = np.where(present, x @ before[:, :-1].T + before[:, -1], 0)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    residual = (p - np.eye(CLASSES)[LABELS[:4]]) * present / 4
    gradient = residual.T @ np.concatenate([x, np.ones((4, 1))], 1)
    np.testing.assert_allclose(after, before - LR * gradient, rtol=1e-5, atol=1e-6)
    assert (before != after).any(1).tolist() == present.tolist()


def test_which_rows_are_sent():
    """Client 2, the first of its bucket, holds two of four classes."""
    held, every = [True, False, True, False], [True] * 4
    for options, sent, counted in (
        ({}, held, held),
        ({"label_split": False}, every, every),
        ({"whole_head": True}, every, held),
    ):
        uplink = trained("heterofl", **options)[1]["rate0.25"].uplink
        assert uplink.head.mask[0].tolist() == sent
        assert uplink.classes.value[0].tolist() == counted


def test_a_row_that_a_defence_dropped_does_not_count():
    of, received, _ = trained("heterofl")

    def without(name, **changed):
        def rows(r):
            return r._replace(
                uplink=r.uplink._replace(**{n: f(r.uplink) for n, f in changed.items()})
            )

        return received | {name: rows(received[name])}

    name = "rate0.25"
    dropped = without(name, head=lambda u: u.head._replace(mask=np.zeros_like(u.head.mask)))
    uncounted = without(name, classes=lambda u: Metadata(np.zeros_like(u.classes.value)))
    chex.assert_trees_all_equal(served(of, dropped)["head"], served(of, uncounted)["head"])


def test_a_whole_head_changes_the_wire_and_not_the_mean():
    options = {}, {"whole_head": True}, {"label_split": False}
    plain, whole, unsplit = (served(*trained("heterofl", **each)[:2]) for each in options)
    chex.assert_trees_all_equal(whole, plain)
    assert not np.allclose(unsplit["head"]["bias"], plain["head"]["bias"], atol=1e-4)


@pytest.mark.parametrize("name", ["conv4", pytest.param("preact_resnet18", marks=pytest.mark.slow)])
def test_wire_of_each_rate(name):
    """Down the published sizes; up without the rows of the seven classes that a client lacks."""
    method, shape = heterofl(TRAINING), (32, 32, 3)
    rates, sizes = (1.0, 1 / 16), PARAMETERS[name][::4]  # the widest and the narrowest
    fed = make_sliced_federation(sliced_network(name, 10, shape), rates, shape, 10)
    ctx, data = context(0), tiny.client_data(np.array([0, 3, 9]), shape=shape)
    server = jax.eval_shape(lambda key: method.init_server(fed, key), jax.random.key(0))
    for bucket, size in zip(fed.buckets, sizes, strict=True):

        def messages(server, bucket=bucket):
            downlink = method.broadcast(fed, bucket, server, ctx)
            client = method.receive(bucket, {"params": (), "stats": {}}, downlink, data, ctx)
            return downlink, method.client_update(bucket, client, downlink, data, ctx)[1]

        downlink, uplink = jax.eval_shape(messages, server)
        assert sum(x.size for x in jax.tree.leaves(downlink)) == size
        held = np.isin(np.arange(10), [0, 3, 9])
        sent = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), uplink)
        sent = sent._replace(head=sent.head._replace(mask=held))
        assert wire_elements(sent).payload_elements == size - 7 * (bucket.feature_dim + 1)


def test_dropout_draws_anew_for_each_client_and_round():
    fed, method = federation((1 / 2, 1 / 2)), feddropout(TRAINING)
    server, bucket = first_model(method, fed), fed.buckets[0]

    def sent(i, round):
        key = jax.random.fold_in(SEED, round)
        shared = Context(SEED, jnp.int32(round), context(i).info, shared_key=key)
        downlink = method.broadcast(fed, bucket, server, shared)
        return np.asarray(downlink["base"]["fc1"]["bias"]).tolist()

    assert sent(0, 0) == sent(0, 0)
    assert len({tuple(sent(i, round)) for i in (0, 1) for round in (0, 1)}) == 4


def test_layers_may_be_drawn_for_themselves():
    def network(rate):
        return sliced_model(PreActResNet((1, 1), (4, 4), rate, scaler=False), CLASSES)

    fed = make_sliced_federation(network, (1 / 2,), (4, 4, 1), CLASSES)
    plan = functools.partial(slice_plan, fed.server_model, 1 / 2, "random", client_id=0)
    plans = [functools.partial(plan, per_layer=each) for each in (False, True)]
    grouped, apart = (jax.jit(each)(ctx=context()) for each in plans)
    assert set(grouped) == {"stage1", "stage1_0_inner", "stage2_0_inner", "stage2"}
    expected = {"stem", "stage1_0_inner", "stage1_0_out", "stage2_0_inner", "stage2_0_out"}
    assert set(apart) == expected
    method = feddropout(TRAINING, per_layer=True)
    server = jax.jit(functools.partial(method.init_server, fed))(jax.random.key(0))
    send = jax.jit(functools.partial(method.broadcast, fed, fed.buckets[0]))
    downlink = send(server, context(0))
    stem = server["base"]["conv1"]["kernel"][..., apart["stem"]]
    np.testing.assert_array_equal(downlink["base"]["conv1"]["kernel"], stem)
