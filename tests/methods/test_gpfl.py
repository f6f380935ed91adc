"""GPFL's conditions: zero in round 0, later of a client's own embeddings or of those it receives."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.samples import Split
from fedjax_ht.methods.gpfl import gpfl
from tests import tiny
from tests.tiny import BUCKET, DATA, LABELS, ONE_BUCKET, TRAINING, C


def received(round: int, last_round: int, data=DATA):
    """A client's state after its receipt, its own embeddings, and those of the downlink."""
    method = gpfl(TRAINING)
    server = method.init_server(ONE_BUCKET, jax.random.key(1))
    ctx = tiny.context(0, round=round, last_round=last_round)
    client = method.init_client(BUCKET, ctx)
    downlink = method.broadcast(ONE_BUCKET, BUCKET, server, ctx)
    state = method.receive(BUCKET, client, downlink, data, ctx)
    np.testing.assert_array_equal(state["embeddings"], downlink["embeddings"])
    return state, client["embeddings"], downlink["embeddings"]


def check_conditions(state, embeddings) -> None:
    shares = np.bincount(LABELS, minlength=C) / len(LABELS)
    np.testing.assert_allclose(state["global"], np.mean(embeddings, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["personal"], shares @ embeddings, rtol=1e-5, atol=1e-6)


def test_conditions_are_of_the_embeddings_before_the_receipt():
    state, own, _ = received(round=2, last_round=0)
    check_conditions(state, own)


def test_a_newcomer_takes_the_embeddings_that_it_receives():
    state, _, downlink = received(round=2, last_round=-1)
    check_conditions(state, downlink)


def test_in_the_first_round_conditions_are_zero():
    state, _, _ = received(round=0, last_round=-1)
    assert not state["global"].any() and not state["personal"].any()


def test_a_client_without_samples_has_a_finite_condition():
    nothing = Split(DATA.splits["train"].indices, jnp.int32(0))
    state, _, _ = received(2, 0, DATA._replace(splits={"train": nothing}))
    assert not state["personal"].any()
