"""Methods on texts and sensor windows: those that need no images run, the others say so."""

import dataclasses

import jax
import numpy as np
import pytest

from fedjax_ht.core.federation import Federation, make_federation, make_sliced_federation
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.methods import METHODS
from fedjax_ht.models import SplitModel, text_model
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.sensors import TimeConvFeatures
from fedjax_ht.models.sliced import sliced_model
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import federations
from tests.standard import method_of, played

LENGTH, VOCABULARY, WIDTH = 6, 20, 4
SHAPES = {"texts": (LENGTH,), "windows": (16, 3), "windows of units": (16, 2, 3)}
# methods that make or change images
IMAGES = ("fedktl", "fedclassavg", "dense", "fedftg", "dfrd", "pfedes")
OWN_NETWORKS = federations.ADAPTERS | federations.IN_STAGES  # tested where these are
ALWAYS = [("texts", "fedproto"), ("windows", "fedavg")]
OPTIONS = SimulationOptions(participation=0.6, drop_rate=0.25, lanes=2, devices=1)


def dataset_of(kind: str) -> Dataset:
    """The tiny federation's samples as texts of two to six tokens, some of which go with the class,
    or as waves whose frequency is the class."""
    dataset, _ = federations.samples()
    rng, labels = np.random.default_rng(0), dataset.labels
    fields = {"labels": labels, "class_names": dataset.class_names, "public": dataset.public}
    shape = (len(labels), *SHAPES[kind])
    if kind == "texts":
        tokens = rng.integers(1, VOCABULARY, shape)
        tokens[:, 1] = labels + 1
        tokens[np.arange(LENGTH) >= rng.integers(2, LENGTH + 1, len(labels))[:, None]] = 0
        return Dataset(kind, tokens.astype(np.uint16), vocabulary=VOCABULARY, **fields)
    phases = rng.uniform(0, 6, (len(labels), 1))
    wave = np.sin(np.arange(shape[1]) * (labels[:, None] + 1) * 0.4 + phases)
    x = wave.reshape(*shape[:2], *[1] * (len(shape) - 2)) + 0.1 * rng.normal(size=shape)
    return Dataset(kind, x.astype(np.float16), **fields)


def module_of(kind: str, name: str):
    if kind == "texts":
        architecture = {"narrow": "fasttext", "wide": "lstm"}[name]
        return text_model(architecture, federations.NUM_CLASSES, VOCABULARY, WIDTH)
    channels = {"narrow": (4,), "wide": (4, 6)}[name]
    return SplitModel(TimeConvFeatures(channels, 3, feature_dim=8), Linear(federations.NUM_CLASSES))


def federation_for(kind: str, name: str) -> Federation:
    task = dataset_of(kind).input_shape, federations.NUM_CLASSES
    if name.split("+")[-1] in federations.SLICES:

        def network(rate):
            return sliced_model(federations.SlicedDense((6, 8), rate), federations.NUM_CLASSES)

        return make_sliced_federation(network, federations.RATES, *task)
    if name in federations.ONE_ARCHITECTURE:
        modules = {"narrow": module_of(kind, "narrow")}
        return make_federation(modules, *task, num_clients=federations.NUM_CLIENTS)
    modules = {name: module_of(kind, name) for name in ("narrow", "wide")}
    federation = make_federation(modules, *task, assignment=federations.ASSIGNMENT)
    if name not in federations.ON_PUBLIC_SET:
        return federation
    return dataclasses.replace(federation, public=dataset_of(kind).public_set)


def simulation_of(kind: str, method, federation, options):
    data = arranged(dataset_of(kind), federations.samples()[1], federation)
    return make_simulation(method, federation, data, options)


def cases():
    yield pytest.param("windows of units", "fedproto", marks=pytest.mark.slow)
    for kind in ("texts", "windows"):
        for name in METHODS:
            if name not in IMAGES and name not in OWN_NETWORKS:
                marks = () if (kind, name) in ALWAYS else pytest.mark.slow
                yield pytest.param(kind, name, marks=marks)


@pytest.mark.parametrize("kind, name", list(cases()))
def test_two_rounds(kind, name):
    federation, method = federation_for(kind, name), method_of(name)
    method.check(federation)
    simulation = simulation_of(kind, method, federation, OPTIONS)
    states, reports = played(simulation, 2)
    for report in reports:
        assert report.metrics and not report.not_finite
        numbers = (*report.metrics.values(), *report.server_metrics.values())
        assert all(np.isfinite(x).all() for x in numbers)
    first, last = states[0].clients, states[-1].clients
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((states[-1].server, last)))
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: not np.array_equal(a, b), first, last))
    assert any(moved) or not moved  # clients of some methods keep nothing between rounds
    scored = simulation.evaluate(federations.to_device(states[-1]))
    held = scored.counts["test"] > 0
    for rule in method.rules:
        accuracy = scored.accuracy["test"][rule]
        assert np.isfinite(accuracy[held]).all() and np.isnan(accuracy[~held]).all()


@pytest.mark.parametrize("name", [*IMAGES, "heterofl+dfrd"])
@pytest.mark.parametrize(
    "kind, found", [("texts", r"int32 \(6,\)"), ("windows", r"\(16, 3\)")], ids=["texts", "windows"]
)
def test_methods_that_need_images_say_so(name, kind, found):
    with pytest.raises(ValueError, match=rf"needs images, float .*; these models take {found}$"):
        method_of(name).check(federation_for(kind, name))
