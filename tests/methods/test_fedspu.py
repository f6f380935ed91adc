"""FedSPU against NumPy, over whole rounds, and what it scores."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict

from fedjax_ht.core.federation import make_sliced_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.methods.fedspu import fedspu
from fedjax_ht.methods.shared.partial_training import slice_plan
from fedjax_ht.models.sliced import parameter_axes, sliced_model
from tests import tiny
from tests.federations import SlicedDense
from tests.reference import fedspu as reference
from tests.reference import fjord, slicing
from tests.standard import served

LR, SHAPE = 0.3, (2, 2, 1)
TRAINING = LocalTraining(optax.sgd(LR), batch_size=3, shuffle=False)
FEDERATION = make_sliced_federation(
    lambda rate: sliced_model(SlicedDense((5, 4), rate), 3), (0.5, 0.5, 1.0), SHAPE, 3
)
LABELS = {0: [0, 1, 1, 2, 0, 1], 1: [2, 2, 0], 2: [1, 0, 2, 1, 1, 0]}
DATA = {i: tiny.client_data(labels, seed=i) for i, labels in LABELS.items()}
NAMES = {"base/fc1/kernel": "k1", "base/fc1/bias": "b1", "base/fc2/kernel": "k2"}
NAMES |= {"base/fc2/bias": "b2", "head/kernel": "hk", "head/bias": "hb"}
METHOD = fedspu(TRAINING)


def flat(params) -> dict[str, np.ndarray]:
    named = flatten_dict(params, sep="/")
    return {name: np.asarray(named[path], np.float64) for path, name in NAMES.items()}


def held_entries(server, ctx, bucket) -> dict[str, np.ndarray]:
    """1 for the entries of a client's slice in a round."""
    plan = slice_plan(FEDERATION, bucket.width, "random", ctx=ctx, client_id=ctx.info.id)
    plan = {group: np.asarray(indices).tolist() for group, indices in plan.items()}
    axes = flatten_dict(parameter_axes(FEDERATION.global_model.module, server), sep="/")
    shapes = {path: np.asarray(x) for path, x in flatten_dict(server, sep="/").items()}
    return {NAMES[path]: x for path, x in slicing.mask(shapes, axes, plan).items()}


@functools.partial(jax.jit, static_argnums=0)
def play(bucket, server, client, data, ctx):
    downlink = METHOD.broadcast(FEDERATION, bucket, server, ctx)
    client = METHOD.receive(bucket, client, downlink, data, ctx)
    return METHOD.client_update(bucket, client, downlink, data, ctx)[:2]


def test_two_rounds_equal_the_reference():
    server = METHOD.init_server(FEDERATION, jax.random.key(0))
    buckets = {i: FEDERATION.buckets[FEDERATION.assignment[i]] for i in LABELS}
    clients = {i: METHOD.init_client(buckets[i], tiny.context(i, i)) for i in LABELS}
    w, own = flat(server), {i: flat(client["params"]) for i, client in clients.items()}
    for round, ids in enumerate([[0, 1], [0, 2, 1]]):
        uploads, trained = {}, []
        for i in ids:
            samples = len(LABELS[i])
            ctx = tiny.context(i, i, round=round, samples=samples)
            ctx = ctx._replace(shared_key=jax.random.key(round + 5))
            clients[i], uploads[i] = play(buckets[i], server, clients[i], DATA[i], ctx)
            held = held_entries(server, ctx, buckets[i])
            own[i] = reference.received(own[i], w, held)
            own[i] = reference.train(own[i], held, tiny.batches(DATA[i])[: samples // 3], LR)
            trained.append((samples, own[i], held))
            tiny.check_model(flat(clients[i]["params"]), own[i], rtol=1e-4)
        received = tiny.receive(
            jax.device_get(uploads), tiny.members(FEDERATION), {i: len(LABELS[i]) for i in ids}
        )
        ctx = tiny.context(round=round)._replace(shared_key=jax.random.key(round + 5))
        server, _ = served(METHOD, FEDERATION, server, received, ctx)
        w = reference.server(w, trained)
        tiny.check_model(flat(server), w, rtol=1e-4)
    # A client of half width has entries that no round has changed.
    first = flat(METHOD.init_client(buckets[1], tiny.context(1, 1))["params"])
    same = [np.mean(first[k] == flat(clients[1]["params"])[k]) for k in ("k1", "k2")]
    assert all(0 < share < 1 for share in same)


def test_it_scores_the_whole_personal_model():
    bucket = FEDERATION.buckets[FEDERATION.assignment[0]]
    client = METHOD.init_client(bucket, tiny.context(0))
    x = jnp.linspace(-1, 1, 8).reshape(2, *SHAPE)
    scores = METHOD.predict(bucket, client, None, x, jnp.ones(2, bool))["head"]
    want = fjord.logits(flat(client["params"]), np.asarray(x).reshape(2, -1), 1.0)
    np.testing.assert_allclose(scores, want, rtol=1e-4, atol=1e-6)
