"""Plans, cuts and the mean of slices, against NumPy entry by entry."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from fedjax_ht.methods.shared.slicing import Slices, extract, make_plan, scatter_mean
from fedjax_ht.models.sliced import ConvNet, PreActResNet, parameter_axes, sliced_model
from tests.reference import slicing as ref

CLASSES, SHAPE = 3, (4, 4, 2)
WIDTHS = {"a": 8, "b": 6, "c": 5}
NETWORKS = {"cnn": ConvNet((4, 6)), "resnet": PreActResNet((1, 2), (4, 6))}
MODES = ("static", "random", "rolling")


def setting(name, seed=0):
    """A whole network's parameters, random, with their axes and widths; trees."""
    module = sliced_model(NETWORKS[name], CLASSES)
    shapes = jax.eval_shape(
        lambda key: module.init(key, jnp.zeros((1, *SHAPE))), jax.random.key(0)
    )["params"]
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    return params, parameter_axes(module, params), module.base.channels().widths


def flat(tree):
    return {
        k: np.asarray(x) if hasattr(x, "shape") else x
        for k, x in flatten_dict(tree, sep="/").items()
    }


def lists(plan):
    return {group: np.asarray(indices).tolist() for group, indices in plan.items()}


@pytest.mark.parametrize("rate", [1.0, 1 / 2, 1 / 4])
@pytest.mark.parametrize("mode", ["static", "rolling"])
def test_plans_equal_the_reference(mode, rate):
    for round in (0, 1, 7, 600):
        plan = make_plan(WIDTHS, rate, mode, jnp.int32(round))
        assert lists(plan) == ref.plan(WIDTHS, rate, mode, round)


def test_random_plans_are_subsets_drawn_by_group_and_key():
    def draw(key):
        return lists(
            make_plan({"a": 64, "b": 64}, 1 / 4, "random", jnp.int32(0), jax.random.key(key))
        )

    plan = draw(0)
    for indices in plan.values():
        assert len(set(indices)) == len(indices) == 16 and set(indices) <= set(range(64))
    assert plan == draw(0)
    assert set(plan["a"]) != set(plan["b"]) and set(plan["a"]) != set(draw(1)["a"])


def test_random_channels_are_equally_likely():
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = jax.vmap(lambda key: make_plan({"a": 8}, 1 / 4, "random", jnp.int32(0), key)["a"])(keys)
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=8) / 2000, 1 / 4, atol=0.05)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NETWORKS)
def test_extract_equals_the_reference(name, mode):
    params, axes, widths = setting(name)
    plan = make_plan(widths, 1 / 2, mode, jnp.int32(3), jax.random.key(1))
    got = flat(extract(params, axes, plan))
    expected = ref.extract(flat(params), flat(axes), lists(plan))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def uploads(name, mode, rates=(1 / 2, 1 / 4), clients=3, seed=5):
    """Random slices of some clients a rate, the last without weight and NaN; for both forms."""
    params, axes, widths = setting(name)
    rng, parts, each = np.random.default_rng(seed), [], []
    for rate in rates:
        keys = jax.random.split(jax.random.key(int(64 * rate)), clients)
        plans = [make_plan(widths, rate, mode, jnp.int32(3), key) for key in keys]
        slices = [
            jax.tree.map(
                lambda x: rng.normal(size=x.shape).astype(np.float32), extract(params, axes, p)
            )
            for p in plans
        ]
        slices[-1] = jax.tree.map(lambda x: np.full_like(x, np.nan), slices[-1])
        weights = np.append(rng.uniform(0.5, 2, clients - 1), 0).astype(np.float32)
        # the last is in nobody
        classes = np.array([[True, False, False], [True, True, False], [True, True, True]])
        plan = jax.tree.map(lambda *xs: jnp.stack(xs), *plans) if mode == "random" else plans[0]
        parts.append(
            Slices(jax.tree.map(lambda *xs: np.stack(xs), *slices), weights, classes, plan)
        )
        each += [(flat(s), w, c, lists(p)) for s, w, c, p in zip(slices, weights, classes, plans)]
    return (params, axes, widths), parts, each


def mean(setting, parts):
    """Returns the compiled `scatter_mean`."""
    params, axes, widths = setting
    return jax.jit(lambda params, parts: scatter_mean(params, axes, widths, parts))(params, parts)


@pytest.mark.parametrize(
    ("name", "mode"), [("cnn", "static"), ("cnn", "random"), ("resnet", "rolling")]
)
def test_the_mean_equals_the_reference(name, mode):
    (params, axes, widths), parts, each = uploads(name, mode)
    got = flat(mean((params, axes, widths), parts))
    expected = ref.scatter_mean(flat(params), flat(axes), each)
    for path, value in got.items():
        np.testing.assert_allclose(value, expected[path], rtol=1e-5, atol=1e-6, err_msg=path)
    held = np.zeros(params["base"]["conv1"]["kernel"].shape, bool)
    for _, _, _, plan in each:
        held |= ref.mask({"k": held}, {"k": axes["base"]["conv1"]["kernel"]}, plan)["k"] > 0
    assert 0 < held.sum() < held.size or mode == "random"
    np.testing.assert_array_equal(
        got["base/conv1/kernel"][~held], params["base"]["conv1"]["kernel"][~held]
    )
    # nobody's class
    np.testing.assert_array_equal(got["head/kernel"][:, 2], params["head"]["kernel"][:, 2])


def test_plans_shared_and_of_each_client_give_one_mean():
    server, parts, _ = uploads("cnn", "rolling")
    mapped = [
        p._replace(plan=jax.tree.map(lambda x: np.broadcast_to(x, (3, *x.shape)), p.plan))
        for p in parts
    ]
    both = [mean(server, form) for form in (parts, mapped)]
    chex.assert_trees_all_close(*both, rtol=1e-5, atol=1e-6)


def test_nobody_changes_nothing():
    server, parts, _ = uploads("cnn", "static")
    absent = [part._replace(weights=np.zeros_like(part.weights)) for part in parts]
    chex.assert_trees_all_equal(mean(server, absent), server[0])
