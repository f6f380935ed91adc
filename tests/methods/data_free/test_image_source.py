"""Controls of distillation: images that no trained generator makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods import method_factory
from fedjax_ht.methods.data_free.image_generator import (
    ConditionalGenerator,
    draw_real,
    make_generator,
    make_pool,
)
from fedjax_ht.methods.data_free.options import Distillation
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import federations, tiny
from tests.methods.data_free.recipes import TINY
from tests.reference import dfrd as reference
from tests.standard import played

OPTIONS = SimulationOptions(lanes=1, devices=1, seed=3)


def test_real_images_are_training_images_of_their_class():
    """All are drawn, none of other clients, tests or padding; empty classes are left out."""
    labels = np.array([3, 0, 2, 0, 3, 2, 0, 1, 1, 0])
    indices = [9, 2, 0, 5, 6, 4, 1]  # of classes 0, 2 and 3
    data = tiny.client_data(labels, indices, padding=5)
    pool = make_pool(data, 5)
    np.testing.assert_array_equal(pool.count, [3, 0, 2, 2, 0])
    drawn = np.random.default_rng(0).choice([0, 2, 3], 200)
    images = np.asarray(
        jax.jit(draw_real)(jax.random.key(0), data, pool, jnp.asarray(drawn))
    ).reshape(200, -1)
    nearest = [np.abs(tiny.pixels(data) - image).max(1).argmin() for image in images]
    assert np.abs(tiny.pixels(data)[nearest] - images).max() < 1e-5
    np.testing.assert_array_equal(labels[nearest], drawn)
    assert set(nearest) == set(indices)
    share = np.bincount(nearest, minlength=10)[[9, 6, 1]] / (drawn == 0).sum()
    np.testing.assert_allclose(share, 1 / 3, atol=0.15)


@pytest.mark.parametrize(
    "images",
    ["real", *(pytest.param(name, marks=pytest.mark.slow) for name in ("untrained", "noise"))],
)
def test_controls_teach_without_training_a_generator(images):
    federation = federations.sliced_federation()
    options = TINY | {"iterations": 2, "student_steps": 2, "student_lr": 0.5}
    method = method_factory("fedrolex+dfrd")(federations.TRAINING, **options, images=images)
    sim = make_simulation(method, federation, federations.federation_data(federation), OPTIONS)
    states, reports = played(sim, 2)
    first, last = states[0].server, states[-1].server
    assert all(report.server_metrics.keys() == {"student_loss"} for report in reports)
    assert reports[0].server_metrics["student_loss"] > 0
    has_generator = images == "untrained"
    assert last.average == () and (last.generator != ()) == has_generator
    assert (method.view.pictures is not None) == has_generator
    assert method.needs.clients_data == (images == "real")
    if has_generator:
        assert federations.identical(last.generator, first.generator)
        assert make_generator(federation, Distillation(noise_dim=4)).merge == "mul"


def test_the_pool_of_a_federation_is_what_its_clients_train_on():
    dataset, partition = federations.samples()
    data = federations.federation_data(federations.sliced_federation())
    bucket = next(iter(data.buckets.values()))._replace(splits={"train": data.pooled["train"]})
    pool = make_pool(bucket, federations.NUM_CLASSES)
    held = np.concatenate([client.train for client in partition])
    np.testing.assert_array_equal(
        pool.count, np.bincount(dataset.labels[held], minlength=federations.NUM_CLASSES)
    )
    assert set(np.asarray(pool.order)[: len(held)]) == set(held) and pool.count[4] == 0


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
    message = "images have 65 pixels a side; the generator makes at most 64"
    with pytest.raises(ValueError, match=message):
        shapes(ConditionalGenerator(2, 3, (32, 65, 3)))
