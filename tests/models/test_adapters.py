"""Low-rank adapters: the sum that they are, what is frozen, where frozen weights come from."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.bucket import frozen_form, frozen_of, put_frozen, with_frozen
from fedjax_ht.core.contract import require_server_statistics
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.inputs import zeros
from fedjax_ht.core.statistics import norm_moments
from fedjax_ht.metrics.flops import program_flops, sample_flops
from fedjax_ht.metrics.memory import training_memory
from fedjax_ht.models import SplitModel, lora, mlp
from fedjax_ht.models.adapters import merged_kernels, merged_params
from fedjax_ht.models.vits import ViT
from fedjax_ht.simulation.simulation import make_simulation
from fedjax_ht.trust.options import Privacy
from fedjax_ht.trust.privacy import private
from tests.federations import (
    MODULES,
    NUM_CLASSES,
    SHAPE,
    TRAINING,
    Normed,
    adapted_federation,
    count_parameters,
    federation_data,
    identical,
)
from tests.standard import played

BATCH = 3
BLOCKS = ViT(patch=2, layers=2, heads=1, width=4, mlp_width=4, feature_dim=4)  # scanned


class Attention(nn.Module):
    """flax's attention over the rows of an image, whose layers are nn.DenseGeneral, and a Dense."""

    @nn.compact
    def __call__(self, x):
        x = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=8)(x[..., 0], x[..., 0])
        return nn.Dense(5)(x.mean(1))


class Turned(nn.Module):
    """A layer over two axes, named from the later one on; flax sorts them."""

    @nn.compact
    def __call__(self, x):
        return nn.DenseGeneral(5, axis=(-2, -3))(x).mean(1)


def federation_of(module: nn.Module, shape: tuple[int, ...] = SHAPE) -> fl.Federation:
    return make_federation({"model": module}, shape, NUM_CLASSES, num_clients=1)


def drawn(module: nn.Module, shape: tuple[int, ...]):
    """The bucket of a model, and parameters of its clients that are not zero anywhere."""
    bucket = with_frozen(federation_of(module, shape).buckets[0])
    params = fl.init_variables(bucket, jax.random.key(0))["params"]
    leaves, structure = jax.tree.flatten(params)
    rng = np.random.default_rng(0)
    leaves = [jnp.asarray(rng.normal(0, 0.1, x.shape), jnp.float32) for x in leaves]
    return bucket, jax.tree.unflatten(structure, leaves)


def products(adapters, scale: float):
    """scale A^T B^T of every adapted layer, in NumPy."""
    if "lora_a" in adapters:
        a, b = (np.asarray(adapters[name], np.float64) for name in ("lora_a", "lora_b"))
        return np.asarray(scale * np.swapaxes(b @ a, -1, -2), np.float32)
    return {name: products(tree, scale) for name, tree in adapters.items()}


@pytest.mark.parametrize(
    "module, shape, layers",
    [
        (lora(mlp(NUM_CLASSES, (6, 8)), 2), SHAPE, 2),
        (lora(SplitModel(Attention(), nn.Dense(NUM_CLASSES)), 3, targets="*query,*out"), SHAPE, 2),
        (lora(SplitModel(Turned(), nn.Dense(NUM_CLASSES)), 2), SHAPE, 1),
        (lora(SplitModel(BLOCKS, nn.Dense(NUM_CLASSES)), 2, alpha=None), SHAPE, 4),
    ],
    ids=["mlp", "attention", "turned", "blocks"],
)
def test_adapters_are_the_product_added_to_the_kernel(module, shape, layers):
    bucket, params = drawn(module, shape)
    assert len(jax.tree.leaves(params["base"])) == 2 * layers
    x = jnp.asarray(np.random.default_rng(1).normal(size=(BATCH, *shape)), jnp.float32)
    value, _ = fl.features(bucket, params, {}, x, jnp.ones(BATCH, bool), train=True)
    frozen = bucket.weights["frozen"]["base"]
    merged = merged_kernels(frozen, products(params["base"], module.base.scale))
    exported = merged_params(module.base.scale, params, {"base": frozen})["base"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), exported, merged)
    plain = module.clone(base=module.base.module)
    expected = plain.apply({"params": {"base": merged}}, x, method="features")
    np.testing.assert_allclose(value, expected, rtol=0, atol=2e-5)


def test_a_server_that_scores_a_model_of_its_own_is_refused():
    federation = federation_of(lora(mlp(NUM_CLASSES, (6, 8)), 2))
    with pytest.raises(ValueError, match="the server of fiarse scores a model of its own"):
        require_server_statistics(fl.fiarse(TRAINING), federation)


def test_ranks_start_from_one_extractor():
    """B is zero at the start, so that clients of all ranks compute what the extractor does."""
    buckets = [with_frozen(bucket) for bucket in adapted_federation().buckets]
    assert identical(buckets[0].weights, buckets[1].weights)
    x, mask = jnp.ones((BATCH, *SHAPE)), jnp.ones(BATCH, bool)
    outputs = []
    for bucket in buckets:
        client = fl.init_variables(bucket, jax.random.key(1))
        assert client["params"]["base"]["fc1"]["lora_a"].any()
        outputs.append(fl.own_features(bucket, client, x, mask))
    np.testing.assert_array_equal(*outputs)


def test_weights_are_frozen_under_the_adapters():
    """The name of the architecture serves all ranks, and training leaves the weights."""
    plain = fl.make_federation({"mlp": MODULES["wide"]}, SHAPE, NUM_CLASSES, num_clients=1)
    trained = fl.init_variables(plain.buckets[0], jax.random.key(7))
    modules = {f"mlp_r{rank}": lora(MODULES["wide"], rank) for rank in (1, 2)}
    federation = fl.make_federation(modules, SHAPE, NUM_CLASSES, num_clients=8)
    weighted = fl.with_weights(federation, {"mlp": trained}, head=True)
    for bucket in weighted.buckets:
        assert identical(bucket.weights["frozen"]["base"], trained["params"]["base"])
        assert identical(bucket.weights["params"], {"head": trained["params"]["head"]})
    results = []
    for each in (weighted, federation):
        simulation = make_simulation(fl.local(TRAINING), each, federation_data(each))
        states, reports = played(simulation, 2)
        # the kernels and biases of the wide model's two layers, for each client, once
        assert [report.frozen_bytes for report in reports] == [8 * 4 * (17 * 6 + 7 * 8), 0]
        results.append(states[1].clients["mlp_r1"]["params"])
        assert set(results[-1]["base"]["fc1"]) == {"lora_a", "lora_b"}
    assert not identical(*results)


def step_flops(bucket) -> float:
    """FLOPs of the gradient of a loss in what one sample's training changes."""

    def loss(params, frozen):
        model = put_frozen(bucket, (frozen, frozen_of(bucket.shared)))
        rows, _ = fl.features(model, params, {}, zeros((8, 8, 1)), jnp.ones(1, bool), train=True)
        return fl.logits(bucket, params, rows).sum()

    params = jax.eval_shape(lambda key: fl.init_variables(bucket, key), jax.random.key(0))["params"]
    return program_flops(jax.make_jaxpr(jax.grad(loss))(params, frozen_form(bucket)))


def test_costs_are_of_adapters():
    """Moments are of adapters and head, and no gradient of a kernel is taken."""
    whole, recipe = mlp(NUM_CLASSES, (64, 64)), fl.LocalTraining(optax.adam(0.1), batch_size=1)
    buckets = [federation_of(module, (8, 8, 1)).buckets[0] for module in (whole, lora(whole, 1))]
    sizes = [training_memory(bucket, recipe) for bucket in buckets]
    work = [sum(count_parameters(bucket).values()) for bucket in buckets]
    head = 65 * NUM_CLASSES
    assert work == [64 * 64 * 2 + 128 + head, 4 * 64 + head]
    # four copies of what is trained, one of what is frozen, and a few activations
    assert sizes[0] > 4 * 4 * work[0]
    assert sizes[1] < 4 * (4 * work[1] + 64 * 64 * 2 + 128) + 4 * 1000
    forward = 2 * (64 * 64 * 2 + 64 * NUM_CLASSES)
    assert sample_flops(buckets[0]) == forward
    assert sample_flops(buckets[1]) == forward + 2 * 4 * 64
    whole_step, step = map(step_flops, buckets)
    # forward, kernels' gradients and those of all layers' inputs but the first's
    assert whole_step == 3 * forward - 2 * 64 * 64
    assert step < forward + 2 * 64 * 64 + 2 * 2 * 64 * NUM_CLASSES + 3 * 2 * 4 * 64


def test_norms_of_a_frozen_extractor_keep_their_statistics():
    """Statistics are the client's, so that privacy of samples refuses either norm."""
    for kind in ("batch", "static_batch"):
        module = SplitModel(Normed(norm=kind), nn.Dense(NUM_CLASSES), stateful=True)
        federation = federation_of(lora(module, 2))
        bucket = with_frozen(federation.buckets[0])
        client = fl.init_variables(bucket, jax.random.key(0))
        x = jnp.ones((BATCH, *SHAPE)) * jnp.arange(1.0, BATCH + 1)[:, None, None, None]
        if kind == "batch":
            assert set(client["stats"]["base"]) == {"norm"}
            _, stats = fl.features(
                bucket, client["params"], client["stats"], x, jnp.ones(BATCH, bool), train=True
            )
            assert not identical(stats, client["stats"])
        else:
            moments = norm_moments(bucket, client["params"], x, jnp.ones(BATCH, bool))[1]
            assert len(jax.tree.leaves(moments)) == 1
        method = private(fl.fedit(TRAINING), Privacy("sample"))
        with pytest.raises(ValueError, match="model normalises by batch"):
            method.check(federation)


def test_refusals():
    with pytest.raises(ValueError, match=r"no dense layer matches lora's targets '\*query'; "):
        federation_of(lora(MODULES["wide"], 2, targets="*query"))
    with pytest.raises(ValueError, match="rank is 0"):
        lora(MODULES["wide"], 0)
    with pytest.raises(ValueError, match="rank is 1000000000; it must be an integer from 1 to 99"):
        lora(MODULES["wide"], 10**9)
    with pytest.raises(ValueError, match="a model without adapters"):
        lora(lora(MODULES["wide"], 2), 2)
    with pytest.raises(ValueError, match="exchanges low-rank adapters, but model 'model' has none"):
        fl.fedit(TRAINING).check(federation_of(MODULES["wide"]))
