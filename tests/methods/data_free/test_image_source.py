"""Controls of distillation: images that no trained generator makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.methods import method_factory
from fedjax_ht.methods.data_free.image_generator import (
    draw_real,
    make_generator,
    make_pool,
)
from fedjax_ht.methods.data_free.options import Distillation
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import tiny
from tests.federations import (
    NUM_CLASSES,
    TRAINING,
    federation_data,
    identical,
    samples,
    sliced_federation,
    to_host,
)

TINY = {
    "iterations": 2,
    "generator_steps": 1,
    "student_steps": 2,
    "batch_size": 6,
    "noise_dim": 4,
    "student_lr": 0.5,
}
OPTIONS = SimulationOptions(lanes=1, devices=1, seed=3)


def test_real_images_are_training_images_of_their_class():
    """Every training image is drawn, none of another client, of the test set or of the padding;
    classes without images are left out."""
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


def first_rounds(images: str, federation, rounds=2, **options):
    method = method_factory("fedrolex+dfrd")(TRAINING, **TINY, **{"images": images} | options)
    sim = make_simulation(method, federation, federation_data(federation), OPTIONS)
    state, reports = sim.init(), []
    for _ in range(rounds):
        state, report = sim.run_round(state)
        reports.append(report)
    return method, to_host(state), reports


@pytest.mark.parametrize(
    "images",
    ["real", *(pytest.param(name, marks=pytest.mark.slow) for name in ("untrained", "noise"))],
)
def test_controls_teach_without_training_a_generator(images):
    federation = sliced_federation()
    method, state, reports = first_rounds(images, federation)
    assert all(report.server_metrics.keys() == {"student_loss"} for report in reports)
    assert reports[0].server_metrics["student_loss"] > 0
    assert state.server.average == () and (state.server.generator == ()) == (images != "untrained")
    assert (method.view.pictures is None) == (
        images != "untrained"
    ) and method.needs.clients_data == (images == "real")
    if images == "untrained":
        _, later, _ = first_rounds(images, federation, rounds=0)
        assert identical(state.server.generator, later.server.generator)
        assert make_generator(federation, Distillation(noise_dim=4)).merge == "mul"


def test_the_pool_of_a_federation_is_what_its_clients_train_on():
    dataset, partition = samples()
    data = federation_data(sliced_federation())
    bucket = next(iter(data.buckets.values()))._replace(splits={"train": data.pooled["train"]})
    pool = make_pool(bucket, NUM_CLASSES)
    held = np.concatenate([client.train for client in partition])
    np.testing.assert_array_equal(
        pool.count, np.bincount(dataset.labels[held], minlength=NUM_CLASSES)
    )
    assert set(np.asarray(pool.order)[: len(held)]) == set(held) and pool.count[4] == 0
