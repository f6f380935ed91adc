"""FedProx, SCAFFOLD and FedDyn against NumPy; what SCAFFOLD refuses."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import varied
from fedjax_ht.methods.feddyn import Server, feddyn
from fedjax_ht.methods.fedprox import fedprox
from fedjax_ht.methods.scaffold import Pair, scaffold
from fedjax_ht.methods.shared.averaging import ModelUplink
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

W, C, C_OWN, S = (model(seed) for seed in range(4))
FLAT = {name: tiny.flat_params(tree) for name, tree in zip("wcos", (W, C, C_OWN, S))}


def state(**entries):
    """A client whose own model is none of these."""
    return {"params": model(9), "stats": {}} | entries


def test_fedprox_is_pulled_to_the_model_it_received():
    received, trained, uplink, metrics = play(fedprox(TRAINING, mu=0.5), state(), W)
    check_equal(received["params"], W)
    check_model(trained["params"], reference.fedprox(FLAT["w"], BATCHES, LR, 0.5))
    check_equal(uplink.params, trained["params"])
    # the loss is the task's alone, without the pull
    free = linear_client.loss(FLAT["w"], *BATCHES[0])
    after = reference.fedprox(FLAT["w"], BATCHES[:1], LR, 0.5)
    second = linear_client.loss(after, *BATCHES[1])
    np.testing.assert_allclose(metrics["loss"], (free + second) / 2, rtol=1e-5)


def test_scaffold_corrects_by_both_control_variates():
    client = state(control=C_OWN)
    received, trained, uplink, _ = play(scaffold(TRAINING), client, Pair(W, C))
    check_equal(received["params"], W)
    way, change = reference.scaffold(FLAT["w"], FLAT["c"], FLAT["o"], BATCHES, LR)
    check_model(uplink.params, way)
    check_model(uplink.control, change)
    check_model(trained["params"], {k: FLAT["w"][k] + way[k] for k in way})
    check_model(trained["control"], {k: FLAT["o"][k] + change[k] for k in change})


def test_scaffolds_learning_rate_is_that_of_the_round():
    """A schedule halves the rate; control variates are mean gradients whatever the rate is."""
    halved = dataclasses.replace(TRAINING, schedule=lambda round: 0.5)
    _, _, uplink, _ = play(scaffold(halved), state(control=C_OWN), Pair(W, C))
    _, change = reference.scaffold(FLAT["w"], FLAT["c"], FLAT["o"], BATCHES, LR / 2)
    check_model(uplink.control, change)


@pytest.mark.parametrize(
    "optimizer, reason",
    [
        (optax.sgd(LR, momentum=0.9), "keeps a state"),
        (optax.adam(LR), "keeps a state"),
        (optax.sgd(optax.constant_schedule(LR)), "keeps a state"),
        (optax.chain(optax.add_decayed_weights(1e-3), optax.sgd(LR)), "decays weights"),
        (optax.chain(optax.clip_by_global_norm(50.0), optax.sgd(LR)), "does not follow"),
        (optax.chain(optax.clip(1.0), optax.sgd(LR)), "does not follow"),
        (optax.sign_sgd(LR), "does not follow"),
    ],
)
def test_scaffold_takes_plain_sgd_alone(optimizer, reason):
    with pytest.raises(ValueError, match=f"^the optimizer {reason}.*scaffold needs plain SGD.*$"):
        scaffold(LocalTraining(optimizer))


def test_a_learning_rate_that_varies_is_plain_sgd():
    method = varied(lambda s: scaffold(LocalTraining(optax.sgd(s["rate"]))), {"rate": 0.1})
    assert jax.jit(lambda s: s["rate"] * len(method.at(s).name))({"rate": 0.5}) == 4


def test_feddyn_descends_on_the_papers_penalty():
    received, trained, uplink, _ = play(feddyn(TRAINING, alpha=0.3), state(slope=S), W)
    check_equal(received["params"], W)
    params, slope = reference.feddyn(FLAT["w"], FLAT["s"], BATCHES, LR, 0.3)
    check_model(trained["params"], params)
    check_model(trained["slope"], slope)
    check_equal(uplink, trained["params"])


def test_servers_equal_the_reference():
    """Two of four clients arrive: the control variate and the drift count the other two, too."""
    arrived, rows = (1, 2), [model(20 + i) for i in range(4)]
    flat = [tiny.flat_params(rows[i]) for i in arrived]

    def serve(method, server, uplinks):
        received = tiny.receive(dict(enumerate(uplinks)), tiny.IN_ONE_BUCKET, arrived=arrived)
        return served(method, FEDERATION, [server], received)[0][0]

    pairs = [Pair(rows[i], rows[3 - i]) for i in range(4)]
    new = serve(scaffold(TRAINING, server_lr=0.5), Pair(W, C), pairs)
    total = {k: flat[0][k] + flat[1][k] for k in flat[0]}
    check_model(new.params, {k: FLAT["w"][k] + 0.5 * x / 2 for k, x in total.items()})
    check_model(new.control, {k: FLAT["c"][k] + x / 4 for k, x in total.items()})
    new = serve(feddyn(TRAINING, alpha=0.3), Server(W, S), rows)
    params, drift = reference.feddyn_server(FLAT["w"], FLAT["s"], flat, 4, 0.3)
    check_model(new.params, params)
    check_model(new.drift, drift)


@pytest.mark.parametrize("make", [scaffold, feddyn, fedprox])
def test_every_architecture_has_a_mean_of_its_own(make):
    """The state of an architecture stays where only clients of the other arrive."""
    federation, method = mixed_federation(), make(TRAINING)
    server = jax.jit(functools.partial(method.init_server, federation))(jax.random.key(0))
    uplinks = {}
    for bucket, form in zip(federation.buckets, server):
        uplink = jax.tree.map(np.ones_like, form)
        if make is fedprox:
            uplink = ModelUplink(uplink, ())
        elif make is feddyn:
            uplink = uplink.params
        uplinks |= dict.fromkeys(federation.members(bucket), uplink)
    wide = [i for i, name in enumerate(ASSIGNMENT) if name == "wide"]
    received = tiny.receive(uplinks, tiny.members(federation), arrived=wide)
    new, _ = jax.device_get(served(method, federation, server, received))
    check_equal(new[0], server[0])
    assert all(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (new[1], server[1]))))
