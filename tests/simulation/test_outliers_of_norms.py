"""Clients whose inputs differ a hundredfold in scale are honest, also where models normalise by
batch.

Their running variances differ by more than the bound of `refuse_outliers`. Few methods send any.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

from fedjax_ht.core.inputs import AsStored
from fedjax_ht.core.message_forms import uplink_form
from fedjax_ht.core.round import Channel
from fedjax_ht.core.wire import chain
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.methods import method_factory
from fedjax_ht.models import SplitModel, lora, note_stage
from fedjax_ht.models.layers import Linear, Norm
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import (
    ADAPTERS,
    ASSIGNMENT,
    FEATURE_DIM,
    IN_STAGES,
    NUM_CLASSES,
    NUM_CLIENTS,
    ON_PUBLIC_SET,
    ONE_ARCHITECTURE,
    SHAPE,
    SLICES,
    TRAINING,
    identical,
    make_federation,
    normed_federation,
    samples,
    to_host,
)
from tests.marks import by_name
from tests.method_wires import settings

LARGE = (1, 4)  # clients whose inputs are a hundred times as large
ROUNDS = 2
# until running statistics have become those of the inputs
LONG = dataclasses.replace(TRAINING, epochs=20)


class Normalised(nn.Module):
    """[linear, batch norm, ReLU] per entry of `widths`, each a stage."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        x = x.reshape(len(x), -1)
        for i, width in enumerate(self.widths):
            x = Norm("batch", name=f"norm{i}")(Linear(width, name=f"fc{i}")(x), train, mask)
            x = nn.relu(x)
            note_stage(self, x)
        return x


def federation_of(name: str):
    """Models with batch norm for a method of this name; slices keep no statistics."""
    if name.split("+")[-1] in SLICES:
        return normed_federation()
    widths = {"narrow": (FEATURE_DIM,), "wide": (6, FEATURE_DIM)}
    if name in IN_STAGES:
        widths["narrow"] = (6,)
    modules = {}
    for architecture, width in widths.items():
        module = SplitModel(Normalised(width), Linear(NUM_CLASSES), stateful=True)
        modules[architecture] = lora(module, 2) if name in ADAPTERS else module
    if name in ONE_ARCHITECTURE:
        del modules["wide"]
        return make_federation(modules, SHAPE, NUM_CLASSES, num_clients=NUM_CLIENTS)
    federation = make_federation(modules, SHAPE, NUM_CLASSES, assignment=list(ASSIGNMENT))
    public = samples()[0].public_set if name in ON_PUBLIC_SET else None
    return dataclasses.replace(federation, public=public)


@functools.cache
def data_of(name: str):
    """Rows of floats around 0, those of `LARGE` a hundred times as large."""
    dataset, partition = samples()
    inputs = (dataset.inputs.astype(np.float32) - 100) / 80
    for client in LARGE:
        for indices in partition[client]:
            inputs[indices] *= 100
    scaled = Dataset("scaled", inputs, dataset.labels, dataset.class_names, preprocess=AsStored())
    return arranged(scaled, partition, federation_of(name))


@functools.cache
def played(name: str, times: float):
    """The state after each round, and whose uploads were refused."""
    method, federation = method_factory(name)(LONG, **settings(name)), federation_of(name)
    sim = make_simulation(
        method, federation, data_of(name), SimulationOptions(lanes=1, refuse_outliers=times)
    )
    state, states, refused = sim.init(), [], []
    for _ in range(ROUNDS):
        state, report = sim.run_round(state)
        states.append(to_host(state))
        refused.append(report.refused)
    return states, refused


@pytest.mark.parametrize("name", ["fedavg", "fedapen"])  # whole models; running statistics, too
def test_inputs_of_other_scales_are_not_refused(name):
    default = SimulationOptions().refuse_outliers
    states, refused = played(name, default)
    assert refused == [()] * ROUNDS
    for state, expected in zip(states, played(name, 0.0)[0]):
        assert identical((state.server, state.clients), (expected.server, expected.clients))


def test_running_variances_do_differ_beyond_the_bound():
    """The variances are those of the shared model that FedAPEN's clients send."""
    states, _ = played("fedapen", 0.0)
    shared = [variables["shared"]["stats"] for variables in states[0].clients.values()]
    variances = np.concatenate([stats["base"]["norm0"]["var"].max(-1) for stats in shared])
    assert np.sort(variances)[-1] > 1000 * np.median(variances)


@by_name(("fedapen", "fiarse", "depthfl", "fedavg", "fedproto", "fedbn", "heterofl", "fedit"))
def test_running_statistics_are_sent_by_few(name):
    method, federation = method_factory(name)(TRAINING, **settings(name)), federation_of(name)
    for bucket in federation.buckets:
        form = uplink_form(method, federation, bucket, Channel(chain(()), chain(())))
        paths = [
            jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(form)
        ]
        sent = [path for path in paths if "stats" in path or "'mean'" in path or "'var'" in path]
        assert bool(sent) == (name in ("fedapen", "fiarse", "depthfl"))
