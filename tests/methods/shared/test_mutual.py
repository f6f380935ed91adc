"""The auxiliary model: which one it is, and that it trains beside the client's own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.method import init_model
from fedjax_ht.lab.config.base import base_config
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.methods.shared.mutual import by_part, init_pair
from fedjax_ht.models import mlp, model_group
from tests import tiny
from tests.federations import count_parameters

SHAPE = (2, 2, 1)


def test_the_auxiliary_model_is_the_smallest_of_the_group_whoever_uses_it():
    modules = {"wide": mlp(3, (9, 5)), "narrow": mlp(3, (5,)), "twin": mlp(3, (5,))}
    federation = make_federation(modules, SHAPE, 3, num_clients=1)
    assert [b.name for b in federation.buckets] == ["wide"]
    assert federation.shared.name == "narrow" and federation.shared.module == modules["narrow"]
    chosen = make_federation(modules, SHAPE, 3, num_clients=3, shared=mlp(3, (7,)))
    assert {b.shared for b in chosen.buckets} == {chosen.shared}
    assert count_parameters(chosen.shared) == {"base": 4 * 7 + 7, "head": 7 * 3 + 3}


def test_an_auxiliary_model_must_fit_the_task():
    message = r"model 'shared' returns features \(1, 5\) and logits \(1, 4\)"
    with pytest.raises(ValueError, match=message):
        make_federation({"a": mlp(3, (5,))}, SHAPE, 3, num_clients=1, shared=mlp(4, (5,)))


def test_the_config_names_the_auxiliary_model():
    config = base_config()
    config.partition.num_clients = 2
    group = model_group("cnn5", 10, (28, 28, 1))
    for name, module in (("", "cnn5"), ("cnn2", "cnn2")):
        config.model.shared = name
        assert plan(config).runs["fedtgp"].federation.shared.module == group[module]


def test_a_pair_begins_with_the_model_that_other_methods_begin_with():
    bucket, ctx = tiny.normed_federation().buckets[0], tiny.context(0)
    pair, alone = init_pair(bucket, ctx), init_model(bucket, ctx)
    for part in ("params", "stats"):
        tiny.check_equal(pair[part], alone[part])
        assert jax.tree.structure(pair["shared"][part]) == jax.tree.structure(alone[part])
    kernels = [m["params"]["head"]["kernel"] for m in (pair, pair["shared"])]
    assert not np.array_equal(*kernels)


def test_every_model_is_clipped_by_its_own_norm():
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0, momentum=0.5))
    params = {"own": jnp.zeros(2), "shared": jnp.zeros(1), "beside": ()}
    optimizer = by_part(dict.fromkeys(params, clipped))
    gradients = {"own": jnp.array([3.0, 4.0]), "shared": jnp.array([0.5]), "beside": ()}
    state = optimizer.init(params)
    for step in (1.0, 1.5):  # momentum remembers the first step
        updates, state = optimizer.update(gradients, state, params)
        np.testing.assert_allclose(updates["own"], [-0.6 * step, -0.8 * step], rtol=1e-6)
        np.testing.assert_allclose(updates["shared"], [-0.5 * step], rtol=1e-6)
