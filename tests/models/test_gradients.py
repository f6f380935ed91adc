"""One step of SGD, and so the gradients, of every zoo model beside torchvision's, where that is
installed. In float64: in float32 rounding can turn a ReLU on or off (docs/models.md), which is no
fault of either."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.bucket import features, logits
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.registry import model_group
from fedjax_ht.models.torchvision import variables_from_torchvision
from tests.models.test_torchvision import (
    BIG,
    SIZE,
    SMALL,
    WHOLE,
    bucket_of,
    difference,
    randomised,
    torchvision_models,
    zeros,
)

BATCH, CLASSES, RATE = 8, 10, 0.1
ZOO = BIG | WHOLE


def batch(dtype):
    rng = np.random.default_rng(0)
    return rng.standard_normal((BATCH, *SIZE)).astype(dtype), np.arange(BATCH) % CLASSES


def torch_step(model, kernel, x, y, dtype):
    """Parameters of the extractor by torch's names, and the head's, before and after one step:
    (names -> array) twice; dropout is off, the extractor's features are pooled as here."""
    import torch

    model = model.to(getattr(torch, dtype)).train()
    head = torch.nn.Linear(*kernel.shape, dtype=getattr(torch, dtype))
    with torch.no_grad():
        head.weight.copy_(torch.tensor(kernel.T))
        head.bias.zero_()
    optimiser = torch.optim.SGD([*model.parameters(), *head.parameters()], RATE)
    before = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    maps = model(torch.from_numpy(x).permute(0, 3, 1, 2))
    pooled = torch.nn.functional.adaptive_avg_pool1d(maps, len(kernel))
    torch.nn.functional.cross_entropy(head(pooled), torch.from_numpy(y)).backward()
    optimiser.step()
    return (
        before,
        {name: value.detach().numpy() for name, value in model.state_dict().items()},
        head.weight.detach().T,
    )


def own_step(bucket, variables, kernel, x, y):
    """Returns this library's parameters {"base", "head"} after one step."""
    params = variables["params"] | {
        "head": {"kernel": jnp.asarray(kernel), "bias": jnp.zeros(CLASSES, kernel.dtype)}
    }

    def loss(params):
        representations, _ = features(
            bucket, params, variables["stats"], x, jnp.ones(len(x), bool), train=True
        )
        return -jax.nn.log_softmax(logits(bucket, params, representations))[
            np.arange(len(y)), y
        ].mean()

    return jax.tree.map(lambda p, g: p - RATE * g, params, jax.jit(jax.grad(loss))(params))


def steps(name, reference, module, dtype):
    """Updates of one step by torch and here: two dicts, place -> array."""
    bucket = bucket_of(module.clone(head=Linear(CLASSES)))
    model, (x, y) = randomised(reference(torchvision_models())), batch(dtype)
    kernel = (np.random.default_rng(1).standard_normal((bucket.feature_dim, CLASSES)) * 0.1).astype(
        dtype
    )
    before, after, head = torch_step(model, kernel, x, y, dtype)
    start, goal = (
        variables_from_torchvision(arrays, zeros(bucket, dtype)) for arrays in (before, after)
    )
    stepped = own_step(bucket, start, kernel, x, y)
    goal = {"base": goal["params"]["base"], "head": {"kernel": np.asarray(head)}}
    changes = []
    for params in (goal, stepped):
        base = jax.tree.map(lambda a, b: np.asarray(a - b), params["base"], start["params"]["base"])
        tree = {"base": base, "head": np.asarray(params["head"]["kernel"] - kernel)}
        changes.append(
            {
                jax.tree_util.keystr(k, simple=True, separator="/"): v
                for k, v in jax.tree.leaves_with_path(tree)
            }
        )
    return changes


def worst(theirs, ours):
    """(place, largest difference of two updates, largest update anywhere), the place where they
    differ most."""
    gaps = {place: difference(ours[place], theirs[place])[0] for place in theirs}
    place = max(gaps, key=gaps.__getitem__)
    return place, gaps[place], max(float(np.abs(update).max()) for update in theirs.values())


def check(name, reference, module, dtype):
    place, gap, largest = worst(*steps(name, reference, module, dtype))
    print(f"{name}: {gap:.1e} at {place}, largest update {largest:.3g}")
    assert largest > 0 and gap < 1e-9 * largest


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("name", SMALL)
def test_one_step_of_small_members(name, precision):
    check(name, *SMALL[name], precision)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("name", ZOO)
def test_one_step_of_every_model(name, precision):
    check(name, ZOO[name], model_group(name, CLASSES, SIZE)[name], precision)
