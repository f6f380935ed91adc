import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import Masked
from fedjax_ht.methods import METHODS
from fedjax_ht.trust.attacks import attacked, attackers
from fedjax_ht.trust.options import Attack
from tests import tiny

LABELS = [0, 0, 1, 1, 1, 2, 2, 0]
BUCKET = tiny.linear_federation(width=20).buckets[0]
C = BUCKET.num_classes
TRAINING = LocalTraining(optax.sgd(0.1), batch_size=4)


@functools.cache
def compiled(name: str, kind: str | None, strength: float):
    """(first state, context) -> state and uplink after the round; half of four clients attack."""
    method = METHODS[name](TRAINING)
    start = method.init_client(BUCKET, tiny.context(0))
    attacking = attacked(method, Attack(kind, 0.5, strength), 4)
    data, downlink = tiny.client_data(LABELS), start["params"]
    if name == "fedproto":
        downlink = Masked(jnp.zeros((C, BUCKET.feature_dim)), jnp.zeros(C, bool))
    run = jax.jit(lambda ctx: attacking.client_update(BUCKET, start, downlink, data, ctx)[:2])
    return start["params"], run


@functools.cache
def upload(name: str, kind: str | None, client: int = 0, strength: float = 3.0):
    """Returns a client's first parameters, and its state and uplink after the round."""
    start, run = compiled(name, kind, strength)
    return start, *run(tiny.context(client, seed=client))


BAD = int(np.flatnonzero(attackers(Attack("noise", 0.5), 4))[0])
GOOD = int(np.flatnonzero(~attackers(Attack("noise", 0.5), 4))[0])


def test_attackers_are_a_share_to_the_nearest_and_grow_with_it():
    masks = [attackers(Attack("noise", share), 20) for share in (0, 0.1, 0.12, 0.3, 1)]
    assert [bad.sum() for bad in masks] == [0, 2, 2, 6, 20]
    assert all((small <= large).all() for small, large in itertools.pairwise(masks))
    assert (masks[3] != attackers(Attack("noise", 0.3, seed=1), 20)).any()


HONEST = {"fedavg": ("sign_flip", "scaled", "noise"), "fedproto": ("label_flip", "shift")}


@pytest.mark.parametrize("name, kind", [(name, kind) for name in HONEST for kind in HONEST[name]])
def test_an_honest_client_says_what_it_would_say_without_attackers(name, kind):
    expected, got = upload(name, None, GOOD), upload(name, kind, GOOD)
    tiny.check_equal(got, expected)


@pytest.mark.parametrize("kind, factor", [("sign_flip", -3.0), ("scaled", 3.0)])
def test_an_attacker_turns_its_update_round_or_multiplies_it(kind, factor):
    before, client, honest = upload("fedavg", None, BAD)
    _, after, sent = upload("fedavg", kind, BAD)
    tiny.check_equal(after, client)
    expected = jax.tree.map(lambda r, x: r + factor * (x - r), before, honest.params)
    chex.assert_trees_all_close(sent.params, expected, rtol=1e-5, atol=1e-6)
    assert sent.num_samples.value == honest.num_samples.value
    # Without training there are no prototypes: the whole of one is an update.
    honest, sent = (upload("fedproto", k, BAD)[2].prototypes for k in (None, kind))
    np.testing.assert_array_equal(sent.mask, honest.mask)
    expected = factor * honest.values[honest.mask]
    np.testing.assert_allclose(sent.values[honest.mask], expected, rtol=1e-5)


def test_noise_is_as_strong_as_told():
    before, _, honest = upload("fedavg", None, BAD)
    sent = upload("fedavg", "noise", BAD)[2]
    for r, x, y in zip(*map(jax.tree.leaves, (before, honest.params, sent.params))):
        if x.size > 50:
            np.testing.assert_allclose(np.std(y - x), 3 * np.sqrt(np.mean((x - r) ** 2)), rtol=0.35)


def test_a_shift_moves_all_prototypes_and_all_attackers_alike():
    moved = []
    for client in np.flatnonzero(attackers(Attack("shift", 0.5), 4)):
        uploads = (upload("fedproto", kind, int(client))[2] for kind in (None, "shift"))
        honest, sent = (uplink.prototypes for uplink in uploads)
        rows = (sent.values - honest.values)[honest.mask]
        np.testing.assert_allclose(rows, np.broadcast_to(rows[0], rows.shape), rtol=1e-4, atol=1e-5)
        moved.append(rows[0] / np.linalg.norm(rows[0]))
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-4, atol=1e-5)


def test_flipped_labels_are_learned():
    method = METHODS["fedproto"](TRAINING)
    data, ctx = tiny.client_data([C - 1 - y for y in LABELS]), tiny.context(BAD)
    start = method.init_client(BUCKET, tiny.context(0))
    downlink = Masked(jnp.zeros((C, BUCKET.feature_dim)), jnp.zeros(C, bool))
    run = jax.jit(lambda client: method.client_update(BUCKET, client, downlink, data, ctx)[:2])
    tiny.check_equal(upload("fedproto", "label_flip", BAD)[1:], run(start))


def test_without_a_kind_nobody_attacks():
    method = METHODS["local"](TRAINING)
    assert attacked(method, Attack(share=0.5), 4) is attacked(method, Attack(), 4) is method
    assert not attackers(Attack(share=0.5), 4).any() and not attackers(Attack(), 4).any()
