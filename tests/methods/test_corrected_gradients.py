"""Rates, losses and means of FedProx, SCAFFOLD and FedDyn beside the whole rounds of
test_whole_rounds; what SCAFFOLD refuses."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import varied
from fedjax_ht.methods.feddyn import feddyn
from fedjax_ht.methods.fedprox import fedprox
from fedjax_ht.methods.scaffold import Pair, scaffold
from tests import tiny
from tests.federations import ASSIGNMENT, mixed_federation
from tests.reference import linear_client
from tests.reference import one_architecture as reference
from tests.standard import served
from tests.tiny import LR, check_equal, check_model, model
from tests.tiny import ONE_BUCKET as FEDERATION
from tests.tiny import SHORT_BATCHES as BATCHES
from tests.tiny import SHORT_TRAINING as TRAINING

play = functools.partial(tiny.play, data=tiny.SHORT_DATA)

W, C, C_OWN = (model(seed) for seed in range(3))
FLAT = {name: tiny.flat_params(tree) for name, tree in zip("wco", (W, C, C_OWN))}


def state(**entries):
    """A client whose own model is none of these."""
    return {"params": model(9), "stats": {}} | entries


def test_fedproxs_loss_is_the_tasks_alone():
    _, _, _, metrics = play(fedprox(TRAINING, mu=0.5), state(), W)
    free = linear_client.loss(FLAT["w"], *BATCHES[0])
    after = reference.fedprox(FLAT["w"], BATCHES[:1], LR, 0.5)
    second = linear_client.loss(after, *BATCHES[1])
    np.testing.assert_allclose(metrics["loss"], (free + second) / 2, rtol=1e-5)


def test_scaffolds_learning_rate_is_that_of_the_round():
    """A schedule halves the rate; control variates are mean gradients whatever the rate is."""
    halved = dataclasses.replace(TRAINING, schedule=lambda round: 0.5)
    _, _, uplink, _ = play(scaffold(halved), state(control=C_OWN), Pair(W, C))
    _, change = reference.scaffold(FLAT["w"], FLAT["c"], FLAT["o"], BATCHES, LR / 2)
    check_model(uplink.control, change)
    at_the_end = dataclasses.replace(TRAINING, schedule=lambda round: 0.0)
    _, _, uplink, _ = play(scaffold(at_the_end), state(control=C_OWN), Pair(W, C))
    assert not any(x.any() for x in jax.tree.leaves(uplink))


@pytest.mark.parametrize(
    "optimizer, reason",
    [
        (optax.sgd(LR, momentum=0.9), "keeps a state"),
        (optax.sgd(optax.constant_schedule(LR)), "keeps a state"),
        (optax.chain(optax.add_decayed_weights(1e-3), optax.sgd(LR)), "decays weights"),
        (optax.chain(optax.clip_by_global_norm(50.0), optax.sgd(LR)), "does not scale"),
        (optax.chain(optax.clip(1.0), optax.sgd(LR)), "does not scale"),
        (optax.sign_sgd(LR), "does not scale"),
    ],
)
def test_scaffold_takes_plain_sgd_alone(optimizer, reason):
    with pytest.raises(ValueError, match=f"^the optimizer {reason}.*scaffold needs plain SGD.*$"):
        scaffold(LocalTraining(optimizer))


def test_a_learning_rate_that_varies_is_plain_sgd():
    method = varied(lambda s: scaffold(LocalTraining(optax.sgd(s["rate"]))), {"rate": 0.1})
    assert jax.jit(lambda s: s["rate"] * len(method.at(s).name))({"rate": 0.5}) == 4


def test_scaffolds_server_has_a_rate_of_its_own():
    """For the model alone, whose uploads are of two of four clients."""
    arrived, rows = (1, 2), [model(20 + i) for i in range(4)]
    pairs = {i: Pair(rows[i], rows[3 - i]) for i in range(4)}
    received = tiny.receive(pairs, tiny.IN_ONE_BUCKET, arrived=arrived)
    (new,), _ = served(scaffold(TRAINING, server_lr=0.5), FEDERATION, [Pair(W, C)], received)
    flat = [tiny.flat_params(rows[i]) for i in arrived]
    total = {k: flat[0][k] + flat[1][k] for k in flat[0]}
    check_model(new.params, {k: FLAT["w"][k] + 0.5 * x / 2 for k, x in total.items()})
    check_model(new.control, {k: FLAT["c"][k] + x / 4 for k, x in total.items()})


@pytest.mark.parametrize("make", [scaffold, feddyn])
def test_every_architecture_has_a_mean_of_its_own(make):
    """The state of an architecture stays where only clients of the other arrive."""
    federation, method = mixed_federation(), make(TRAINING)
    server = jax.jit(functools.partial(method.init_server, federation))(jax.random.key(0))
    uplinks = {}
    for bucket, form in zip(federation.buckets, server):
        uplink = jax.tree.map(np.ones_like, form if make is scaffold else form.params)
        uplinks |= dict.fromkeys(federation.members(bucket), uplink)
    wide = [i for i, name in enumerate(ASSIGNMENT) if name == "wide"]
    received = tiny.receive(uplinks, tiny.members(federation), arrived=wide)
    new, _ = jax.device_get(served(method, federation, server, received))
    check_equal(new[0], server[0])
    assert all(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (new[1], server[1]))))
