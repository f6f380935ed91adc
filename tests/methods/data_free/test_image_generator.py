import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods.data_free.image_generator import ConditionalGenerator
from tests.reference import dfrd as reference

CLASSES, MERGES = 3, ("mul", "add", "cat", "ncat", "none")
INPUTS = {"mul": 100, "add": 100, "cat": 200, "ncat": 100 + CLASSES, "none": 100}


def shapes(module, batch=2):
    """Returns the shapes of a module's output and of its variables."""
    noise, labels = jnp.zeros((batch, module.noise_dim)), jnp.zeros(batch, jnp.int32)
    return jax.eval_shape(
        lambda key: module.init_with_output(key, noise, labels, False), jax.random.key(0)
    )


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (64, 64, 3)])
def test_sizes_and_parameters(merge, shape):
    made, variables = shapes(ConditionalGenerator(CLASSES, 100, shape, merge))
    assert made.images.shape == (2, *shape) and made.merged.shape == (2, INPUTS[merge])
    embedded = merge in ("mul", "add", "cat")
    assert made.embedding.shape == (2, 100) if embedded else made.embedding == ()
    widths = (512, 256, 128, 64) if shape[0] == 64 else (512, 256, 128)
    kernels = 16 * sum(a * b for a, b in zip((INPUTS[merge], *widths), (*widths, shape[2])))

    def count(tree):
        return sum(x.size for x in jax.tree.leaves(tree))

    assert count(variables["params"]) == kernels + 2 * sum(widths[1:]) + 100 * CLASSES * embedded
    assert count(variables["batch_stats"]) == 2 * sum(widths[1:])


@pytest.mark.parametrize("merge", MERGES)
def test_equals_the_reference(merge):
    """With running statistics, odd edges cut off."""
    module = ConditionalGenerator(CLASSES, 4, (14, 16, 2), merge)
    labels, rng = np.array([0, 2, 1]), np.random.default_rng(0)
    noise = rng.normal(size=(3, 4)).astype(np.float32)
    _, variables = shapes(module)
    variables = jax.tree.map(
        lambda x: rng.uniform(-0.1, 0.1, x.shape).astype(np.float32), variables
    )
    variables["batch_stats"]["norm2"]["var"] += 1
    images = jax.jit(lambda v: module.apply(v, noise, labels, False).images)(variables)
    want = reference.generate(
        jax.tree.map(np.float64, variables), np.float64(noise), labels, merge, (14, 16, 2)
    )
    np.testing.assert_allclose(images, want, rtol=1e-3, atol=1e-4)
    assert np.std(want) > 0.01


def test_first_values_and_batch_statistics():
    module = ConditionalGenerator(40, 25, (16, 16, 1))
    noise, labels = jax.random.normal(jax.random.key(1), (6, 25)), jnp.arange(6)

    @jax.jit
    def run(key):
        variables = module.init(key, noise, labels, False)
        _, changed = module.apply(variables, noise, labels, True, mutable=["batch_stats"])
        _, kept = module.apply(variables, noise, labels, False, mutable=["batch_stats"])
        return variables, changed, kept

    variables, changed, kept = run(jax.random.key(0))
    params, stats = variables["params"], variables["batch_stats"]
    for values, mean, std in (
        (params["embedding"], 0, 1),
        (params["norm2"]["scale"], 1, 0.02),
        (params["conv2"]["kernel"], 0, 0.02),
    ):
        np.testing.assert_allclose([np.mean(values), np.std(values)], [mean, std], atol=0.15 * std)
    assert (params["norm2"]["bias"] == 0).all()
    assert (stats["norm2"]["mean"] == 0).all() and (stats["norm2"]["var"] == 1).all()
    assert (changed["batch_stats"]["norm2"]["var"] < 1).all()
    np.testing.assert_array_equal(kept["batch_stats"]["norm2"]["var"], 1)


def test_impossible_sizes_are_refused():
    with pytest.raises(
        ValueError, match="images have 65 pixels a side; the generator makes at most 64"
    ):
        shapes(ConditionalGenerator(2, 3, (32, 65, 3)))
