"""FedSPU against NumPy, over whole rounds, and what it scores."""

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_ht.core.federation import make_sliced_federation
from fedjax_ht.methods.fedspu import fedspu
from fedjax_ht.methods.shared.partial_training import slice_plan
from fedjax_ht.models.sliced import parameter_axes, sliced_model
from tests import tiny
from tests.federations import SlicedDense
from tests.methods.test_fjord import NAMES, flat
from tests.reference import fedspu as reference
from tests.reference import fjord, slicing
from tests.standard import served
from tests.tiny import LR, TRAINING

SHAPE = (2, 2, 1)
FEDERATION = make_sliced_federation(
    lambda rate: sliced_model(SlicedDense((5, 4), rate), 3), (0.5, 0.5, 1.0), SHAPE, 3
)
LABELS = {0: [0, 1, 1, 2, 0, 1], 1: [2, 2, 0], 2: [1, 0, 2, 1, 1, 0]}
DATA = {i: tiny.client_data(labels, seed=i) for i, labels in LABELS.items()}
METHOD = fedspu(TRAINING)
broadcast = jax.jit(METHOD.broadcast, static_argnums=(0, 1))


def held_entries(server, ctx, bucket) -> dict[str, np.ndarray]:
    """1 for the entries of a client's slice in a round."""
    plan = slice_plan(
        FEDERATION.server_model, bucket.width, "random", ctx=ctx, client_id=ctx.info.id
    )
    plan = {group: np.asarray(indices).tolist() for group, indices in plan.items()}
    axes = flatten_dict(parameter_axes(FEDERATION.global_model.module, server), sep="/")
    shapes = {path: np.asarray(x) for path, x in flatten_dict(server, sep="/").items()}
    return {NAMES[path]: x for path, x in slicing.mask(shapes, axes, plan).items()}


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
            downlink = broadcast(FEDERATION, buckets[i], server, ctx)
            _, clients[i], uploads[i], _ = tiny.play(
                METHOD, clients[i], downlink, data=DATA[i], ctx=ctx, bucket=buckets[i]
            )
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
