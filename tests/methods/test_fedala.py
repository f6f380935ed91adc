"""FedALA against NumPy: the weights of the head's mixture, and when they are learned."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods.fedala import fedala, run_of_samples
from tests import tiny
from tests.reference import one_architecture as reference
from tests.tiny import LR, check_equal, check_model, model
from tests.tiny import SHORT_BATCHES as BATCHES
from tests.tiny import SHORT_TRAINING as TRAINING

play = functools.partial(tiny.play, data=tiny.SHORT_DATA)

OWN, W = model(0), model(1)
OWN_FLAT, W_FLAT = tiny.flat_params(OWN), tiny.flat_params(W)
START = jax.tree.map(lambda x: jnp.full_like(x, 0.6), OWN["head"])
START_FLAT = {k: np.full_like(v, 0.6) for k, v in OWN_FLAT.items() if k.startswith("head")}


def client(learned: bool):
    return {"params": OWN, "stats": {}, "weights": START, "learned": jnp.asarray(learned)}


@pytest.mark.parametrize("learned, passes", [(True, 1), (False, 3)])
def test_the_head_is_mixed_by_weights_that_are_learned_on_receipt(learned, passes):
    method = fedala(TRAINING, share=1.0, weight_lr=2.0, first_passes=3)
    received, trained, uplink, _ = play(method, client(learned), W)
    weights = reference.fedala_weights(OWN_FLAT, W_FLAT, START_FLAT, BATCHES * passes, 2.0)
    assert any(np.any((a > 0) & (a < 1) & (a != 0.6)) for a in weights.values())
    mixed = reference.head_mixture(OWN_FLAT, W_FLAT, weights)
    check_model(received["params"], mixed)
    assert bool(received["learned"])
    check_model(trained["params"], reference.fedprox(mixed, BATCHES, LR, 0.0))
    check_equal(uplink.params, trained["params"])
    check_equal(trained["weights"], received["weights"])


def test_the_first_model_is_taken_as_it_is():
    received, _, _, _ = play(fedala(TRAINING), client(learned=False), W, ctx=tiny.context(0))
    check_equal(received["params"], W)
    check_equal(received["weights"], START)
    assert not received["learned"]


@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_a_run_of_samples_is_a_share_in_stored_order(count):
    data = tiny.client_data(np.zeros(9, int), np.arange(2, 2 + count), padding=2)
    starts = set()
    for seed in range(20):
        indices, kept = run_of_samples(data, 0.8, jax.random.key(seed)).splits["train"]
        assert kept == int(0.8 * count)
        run = np.asarray(indices)[: int(kept)]
        assert (np.diff(run) == 1).all() and set(run) <= set(range(2, 2 + count))
        starts |= set(run[:1].tolist())
    assert len(starts) == (min(count, count - int(0.8 * count) + 1) if int(0.8 * count) else 0)
