"""Methods on windows of sensor signals: all run but those that need images, which say so."""

import numpy as np
import pytest

from fedjax_ht.core.federation import Federation, make_federation, make_sliced_federation
from fedjax_ht.data.client_data import make_federation_data
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.partition import make_partition
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.models import SplitModel
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.sensors import TimeConvFeatures
from fedjax_ht.models.sliced import sliced_model
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import FEATURE_DIM, ONE_ARCHITECTURE, SLICES, TRAINING, SlicedDense
from tests.method_wires import settings

SHAPE, CLIENTS, CLASSES = (16, 3), 4, 5
IMAGES = ("fedktl", "fedclassavg", "dense", "fedftg", "dfrd", "pfedes")
FAST = ("fedtgp",)
MODULES = {
    name: SplitModel(TimeConvFeatures(channels, 3, feature_dim=FEATURE_DIM), Linear(CLASSES))
    for name, channels in (("one", (4,)), ("two", (4, 6)))
}


def federation_of(name: str, shape: tuple[int, ...] = SHAPE) -> Federation:
    if name in SLICES:

        def network(rate):
            return sliced_model(SlicedDense((6, FEATURE_DIM), rate), CLASSES)

        return make_sliced_federation(network, (0.5, 1.0) * (CLIENTS // 2), shape, CLASSES)
    modules = {"one": MODULES["one"]} if name in ONE_ARCHITECTURE else MODULES
    return make_federation(modules, shape, CLASSES, num_clients=CLIENTS)


def windows(shape: tuple[int, ...] = SHAPE) -> Dataset:
    """Returns windows of four persons; a class is a frequency."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % CLASSES
    wave = np.sin(np.arange(shape[0]) * (labels[:, None] + 1) * 0.4 + rng.uniform(0, 6, (80, 1)))
    x = wave.reshape(80, shape[0], *[1] * (len(shape) - 1)) + 0.1 * rng.normal(size=(80, *shape))
    return Dataset(
        "waves", x.astype(np.float16), labels, tuple("abcde"), groups=np.repeat(np.arange(4), 20)
    )


def scored(name: str, shape: tuple[int, ...] = SHAPE):
    """Reports of two rounds, and what evaluation says after them."""
    dataset, federation = windows(shape), federation_of(name, shape)
    data = make_federation_data(dataset, make_partition("natural", dataset, CLIENTS), federation)
    sim = make_simulation(method_factory(name)(TRAINING, **settings(name)), federation, data)
    state, reports = sim.init(), []
    for _ in range(2):
        state, report = sim.run_round(state)
        reports.append(report)
    return reports, sim.evaluate(state), method_factory(name)(TRAINING, **settings(name)).rules


def check(name: str, shape: tuple[int, ...] = SHAPE) -> None:
    reports, evaluated, rules = scored(name, shape)
    for report in reports:
        assert report.metrics and not report.not_finite and report.arrived == CLIENTS
        assert all(
            np.isfinite(value).all()
            for value in (*report.metrics.values(), *report.server_metrics.values())
        )
    for rule in rules:
        accuracy = evaluated.accuracy["test"][rule]
        assert accuracy.shape == (CLIENTS,) and ((accuracy >= 0) & (accuracy <= 1)).all()


@pytest.mark.parametrize(
    "name",
    [
        n if n in FAST else pytest.param(n, marks=pytest.mark.slow)
        for n in METHODS
        if n not in IMAGES
    ],
)
def test_two_rounds(name):
    check(name)


@pytest.mark.slow
def test_two_rounds_of_windows_of_units():
    check("fedproto", (16, 2, 3))


@pytest.mark.parametrize("name", IMAGES)
def test_methods_that_need_images_refuse_windows(name):
    method = method_factory(name)(TRAINING, **settings(name))
    with pytest.raises(
        ValueError, match=r"needs images, float \[H, W, 1 or 3\]; these models take \(16, 3\)$"
    ):
        method.check(federation_of(name))
