"""Every method with every task: its score improves, or it says in one line that it does not fit."""

import dataclasses
from pathlib import Path

import numpy as np
import optax
import pytest

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.task import Task, multi_label, per_pixel, regression
from fedjax_ht.data.client_data import arranged
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.fedmrl import shared_width
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import NUM_CLASSES, federation_for, samples
from tests.standard import method_of

TRAINING = LocalTraining(optax.sgd(0.1), batch_size=4, epochs=10)
FAST = {"local", "lg_fedavg"}


def learn(task: str) -> tuple[Task, np.ndarray]:
    """Labels: means of the images' columns and of all, or which of these are bright."""
    dataset, _ = samples()
    pixels = dataset.inputs[..., 0].astype(np.float64)
    means = np.concatenate([pixels.mean(1), pixels.mean((1, 2))[:, None]], 1)
    assert means.shape[1] == NUM_CLASSES
    if task == "regression":
        centre, scale = means.mean(0), means.std(0)
        return regression(tuple(centre.tolist()), tuple(scale.tolist())), means
    bright = means > np.median(means, 0)
    if task == "multi-label":
        return multi_label(NUM_CLASSES), bright
    # The standard models have as many outputs: one pixel, bright (1) or not (0).
    return per_pixel(1, 1, NUM_CLASSES), bright[:, -1:, None]


def with_task(federation: Federation, task: Task) -> Federation:
    def changed(bucket):
        shared = None if bucket.shared is None else changed(bucket.shared)
        return dataclasses.replace(bucket, task=task, shared=shared)

    whole = None if federation.global_model is None else changed(federation.global_model)
    buckets = tuple(map(changed, federation.buckets))
    return dataclasses.replace(federation, buckets=buckets, global_model=whole, task=task)


def simulation_of(name: str, task: str):
    meaning, targets = learn(task)
    dataset, partition = samples()
    dataset = dataclasses.replace(dataset, targets=targets, task=meaning)
    federation = with_task(federation_for(name), meaning)
    data = arranged(dataset, partition, federation)
    # on training samples: the standard federation has too few for a test of what is learned
    options = SimulationOptions(scoring=Scoring(train=True))
    return make_simulation(method_of(name, TRAINING), federation, data, options)


def fits(name: str) -> bool:
    return not method_of(name, TRAINING).needs.classes


def mark(name: str):
    slow = fits(name) and name not in FAST
    return pytest.param(name, marks=pytest.mark.slow) if slow else name


def test_the_page_lists_the_methods_that_fit():
    text = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    _, _, section = text.partition("## Which methods fit")
    listed = section.partition("The others")[0]
    assert {name for name in METHODS if f"`{name}`" in listed} == set(filter(fits, METHODS))


@pytest.mark.parametrize("name", ["fml", "fedkd"])
def test_released_forms_divide_by_the_number_of_classes(name):
    assert fits(name) and METHODS[name](TRAINING, variant="released").needs.classes


def test_fedmrl_averages_no_features_of_pixels():
    federation = federation_for("fedmrl")
    narrow = federation.shared.feature_dim // 4
    for task, width in ((learn("regression")[0], narrow), (learn("per-pixel")[0], 4 * narrow)):
        shared = with_task(federation, task).shared
        assert shared_width(shared, shared.feature_dim, None) == width


@pytest.mark.parametrize("task", ["regression", "multi-label", "per-pixel"])
@pytest.mark.parametrize("name", [*map(mark, METHODS)])
def test_a_method_learns_a_task_or_refuses_it(name, task):
    if not fits(name):
        with pytest.raises(ValueError, match=f"{name} compares .* task is {task}") as error:
            simulation_of(name, task)
        assert "\n" not in str(error.value)
        return
    _, (first, *rows) = run(simulation_of(name, task), rounds=3)
    score = {"regression": "rmse", "multi-label": "micro_f1", "per-pixel": "miou"}[task]
    assert {row["score"] for row in rows} == {score}
    start, end = first[f"train_{score}"], rows[-1][f"train_{score}"]
    assert end < 0.8 * start if task == "regression" else end > start + 0.1
    assert all(np.isfinite(row["loss"]) for row in rows)
