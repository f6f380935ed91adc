"""Membership in a training set is inferred from the loss."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.leaks import membership
from tests import tiny
from tests.experiments.leaks.victims import victim_of
from tests.reference import images as reference
from tests.reference import linear_client
from tests.reference.classification import cross_entropy


@pytest.mark.parametrize("ties", [False, True])
def test_auc(ties):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=40), rng.normal(size=30) + 0.5
    a, b = (np.round(a), np.round(b)) if ties else (a, b)
    np.testing.assert_allclose(membership.auc(a, b), reference.auc(a, b), rtol=1e-12)


def test_auc_at_its_ends():
    low, high = np.array([1.0, 2.0]), np.array([3.0, np.inf])
    assert membership.auc(low, high) == 1 and membership.auc(high, low) == 0
    assert membership.auc(low, low) == 0.5
    assert np.isnan(membership.auc(low, np.array([])))


def test_losses_are_the_heads_on_each_sample():
    victim, client = victim_of("fedproto")
    labels = np.arange(70) % 4  # more than one batch
    data = tiny.client_data(labels, indices=np.arange(70)[::-1], padding=2)
    losses = membership.losses(victim.method, victim.bucket, client, victim.downlink, data, "train")
    logits = linear_client.logits(tiny.flat_params(client["params"]), tiny.pixels(data))
    want = [cross_entropy(logits[[i]], labels[[i]], [True]) for i in range(70)][::-1]
    assert losses.shape == (72,)
    np.testing.assert_allclose(losses[:70], want, rtol=1e-4)


def test_a_class_without_a_score_has_an_infinite_loss():
    """FedProto's reported rule scores no class before its first round."""
    victim, client = victim_of("fedproto")
    assert membership.rule_of(victim.method) == "head"
    method = victim.method._replace(rules=("prototype",))
    data = tiny.client_data([0, 1])
    losses = membership.losses(method, victim.bucket, client, victim.downlink, data, "train")
    assert jnp.isinf(losses).all()
