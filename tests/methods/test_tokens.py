"""Methods on texts: those that need no images run on a tiny federation of tokens; the others say
what they need."""

import jax
import numpy as np
import optax
import pytest

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.federation import Federation, make_federation, make_sliced_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.methods.local import local
from fedjax_ht.models import text_model
from fedjax_ht.models.sliced import sliced_model
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import (
    ASSIGNMENT,
    NUM_CLASSES,
    NUM_CLIENTS,
    ONE_ARCHITECTURE,
    RATES,
    SLICES,
    TRAINING,
    SlicedDense,
    samples,
)
from tests.method_wires import settings

LENGTH, VOCABULARY, WIDTH = 6, 20, 4
# methods that make or change images
IMAGES = ("fedktl", "fedclassavg", "dense", "fedftg", "dfrd", "pfedes")
ALWAYS = ("fedproto",)
MODULES = {"narrow": "fasttext", "wide": "lstm"}
OPTIONS = SimulationOptions(participation=0.6, drop_rate=0.25, lanes=2, devices=1)


def texts() -> tuple[Dataset, tuple]:
    """The tiny federation's samples as texts of two to six tokens, some of which go with the
    class."""
    dataset, partition = samples()
    rng, labels = np.random.default_rng(0), dataset.labels
    tokens = rng.integers(1, VOCABULARY, (len(labels), LENGTH))
    tokens[:, 1] = labels + 1
    tokens[np.arange(LENGTH) >= rng.integers(2, LENGTH + 1, len(labels))[:, None]] = 0
    named = Dataset(
        "texts", tokens.astype(np.uint16), labels, dataset.class_names, vocabulary=VOCABULARY
    )
    return named, partition


def federation_for(name: str) -> Federation:
    dataset, _ = texts()
    task = dataset.input_shape, NUM_CLASSES
    if name.split("+")[-1] in SLICES:

        def network(rate):
            return sliced_model(SlicedDense((6, 8), rate), NUM_CLASSES)

        return make_sliced_federation(network, RATES, *task)
    modules = {
        name: text_model(kind, NUM_CLASSES, VOCABULARY, WIDTH) for name, kind in MODULES.items()
    }
    if name in ONE_ARCHITECTURE:
        return make_federation({"narrow": modules["narrow"]}, *task, num_clients=NUM_CLIENTS)
    return make_federation(modules, *task, assignment=ASSIGNMENT)


def without_images() -> list:
    names = [name for name in METHODS if name not in IMAGES]
    return [
        name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in names
    ]


@pytest.mark.parametrize("name", without_images())
def test_two_rounds(name):
    federation, (dataset, partition) = federation_for(name), texts()
    data = arranged(dataset, partition, federation)
    method = method_factory(name)(TRAINING, **settings(name))
    method.check(federation)
    simulation = make_simulation(method, federation, data, OPTIONS)
    state = simulation.init()
    before = jax.tree.map(np.array, jax.device_get(state.clients))
    for _ in range(2):
        state, report = simulation.run_round(state)
        assert report.metrics and not report.not_finite
        assert all(
            np.isfinite(x).all() for x in jax.tree.leaves((report.metrics, report.server_metrics))
        )
    after = jax.device_get((state.server, state.clients))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: not np.array_equal(a, b), before, after[1]))
    assert any(moved) or not moved  # clients of some methods keep nothing between rounds
    scored = simulation.evaluate(state)
    for rule in method.rules:
        accuracy = scored.accuracy["test"][rule]
        held = scored.counts["test"] > 0
        assert np.isfinite(accuracy[held]).all() and np.isnan(accuracy[~held]).all()


@pytest.mark.parametrize("name", [*IMAGES, "heterofl+dfrd"])
def test_methods_that_need_images_refuse_tokens(name):
    method = method_factory(name)(TRAINING, **settings(name))
    with pytest.raises(
        ValueError, match=r"needs images, float .*; these models take int32 \(6,\)"
    ) as error:
        method.check(federation_for(name))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_texts_are_learned():
    """The class is told by the second token: both architectures find it."""
    federation, (dataset, partition) = federation_for("local"), texts()
    data = arranged(dataset, partition, federation)
    training = LocalTraining(optax.adam(0.03), batch_size=4, epochs=60)
    simulation = make_simulation(
        local(training), federation, data, SimulationOptions(scoring=Scoring(train=True))
    )
    state, _ = simulation.run_round(simulation.init())
    accuracy = simulation.evaluate(state).accuracy["train"]
    (scores,) = accuracy.values()
    assert np.nanmean(scores) > 0.9, scores
