"""pFedMe's refusal of steps that diverge, and what it keeps and scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods.pfedme import pfedme
from tests import tiny
from tests.tiny import BUCKET, TRAINING, check_equal, model

W, OTHER = model(0), model(1)


@pytest.mark.parametrize("lam, personal_lr", [(20.0, 0.1), (30.0, 0.09)])
def test_a_pull_that_overshoots_ever_more_is_refused(lam, personal_lr):
    with pytest.raises(ValueError, match=r"^lam \* personal_lr is .*below 2.*lower personal_lr"):
        pfedme(TRAINING, lam=lam, personal_lr=personal_lr)
    pfedme(TRAINING, lam=lam, personal_lr=1.9 / lam)


def test_a_personal_model_starts_as_the_first_received_and_stays():
    method, ctx = pfedme(TRAINING), tiny.context(0)
    client = {"params": OTHER, "stats": {}}
    check_equal(method.receive(BUCKET, client, W, None, ctx)["params"], W)
    later = ctx._replace(info=ctx.info._replace(last_round=jnp.int32(0)))
    check_equal(method.receive(BUCKET, client, W, None, later)["params"], OTHER)


def test_it_predicts_by_the_personal_model_and_by_the_global_one():
    x = jnp.ones((1, 2, 2, 1))
    client = {"params": OTHER, "stats": {}}
    scores = pfedme(TRAINING).predict(BUCKET, client, W, x, jnp.ones(1, bool))
    for rule, params in (("personal", OTHER), ("global", W)):
        flat = tiny.flat_params(params)
        rows = np.ones((1, 4)) @ flat["base_kernel"] + flat["base_bias"]
        np.testing.assert_allclose(
            scores[rule], rows @ flat["head_kernel"] + flat["head_bias"], rtol=1e-5
        )


def test_both_stay_where_the_gradient_is_zero():
    """A client whose model is perfect: the pull alone moves nothing away from w."""
    method = pfedme(TRAINING)
    sure = jax.tree.map(jnp.zeros_like, W)
    sure["head"]["bias"] = jnp.array([100.0, 0.0, 0.0, 0.0])
    data = tiny.client_data(np.zeros(6, int))
    _, client, uplink, metrics = tiny.play(method, {"params": sure, "stats": {}}, sure, data=data)
    check_equal(client["params"], sure)
    check_equal(uplink.params, sure)
    assert metrics["loss"] == 0
