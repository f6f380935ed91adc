"""The protocols beside peers: layouts, shapes, marks, and a round of ours against NumPy."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import benchmarks
from benchmarks.peers.network import split_model
from tests.reference.fedavg_cnn import fedavg_round

TINY = {
    "users": 3, "samples": 4, "cohort": 2, "epochs": 2, "batch_size": 2, "learning_rate": 0.1,
}  # fmt: skip


@pytest.fixture
def scripts(monkeypatch):
    """The folder's modules, imported as its scripts do: it is no package to the peers' Pythons."""
    names = ("protocols", "side", "ours")
    monkeypatch.syspath_prepend(str(Path(benchmarks.__file__).parent / "peers"))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        sys.modules.pop(name)


@pytest.mark.parametrize("name, numbers", [("pfl", 1_626_442), ("blazefl", 62_006)])
def test_shapes_are_those_of_the_model(scripts, name, numbers):
    network = scripts.protocols.PROTOCOLS[name].network
    model = split_model(network)
    params = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 32, 32, 3), np.float32))[
        "params"
    ]
    shapes = scripts.protocols.weight_shapes(network)
    channels = scripts.protocols.flattened(network)
    for layer, shape, count in zip(
        scripts.ours.layers(params, network), shapes, channels, strict=True
    ):
        assert scripts.protocols.from_torch(np.zeros(shape), count).shape == layer["kernel"].shape
        assert layer["bias"].shape == shape[:1]
    assert sum(np.prod(shape) + shape[0] for shape in shapes) == numbers


def test_a_mark_takes_no_time_of_a_round(scripts, monkeypatch, tmp_path):
    now = iter([10, 17, 20, 25, 26, 90])  # ends and starts in turn
    monkeypatch.setattr(scripts.side, "processor_seconds", lambda: next(now))
    marks = scripts.side.Marks()
    for number in range(3):
        marks(lambda number=number: [np.full(2, number)])
    marks.write(2, str(tmp_path / "answer.npz"), "versions")
    answer = np.load(tmp_path / "answer.npz")
    np.testing.assert_array_equal(answer["seconds"], [3, 1])
    np.testing.assert_array_equal(answer["after_0"], [0, 0])
    with pytest.raises(ValueError, match=r"2 rounds were to be played, 3 have ended\."):
        marks.write(1, str(tmp_path / "answer.npz"), "versions")


def test_a_round_of_ours_is_numpys(scripts, monkeypatch, tmp_path):
    layers = ((2, 5, 0, True), (3, 3, 0, False))
    network = scripts.protocols.Network((32, 32, 3), 10, layers, (4,))
    protocol = scripts.protocols.Protocol(**TINY, network=network)
    options = scripts.ours.fl.SimulationOptions(participation=protocol.cohort / protocol.users)
    choose = importlib.import_module("fedjax_ht.simulation.options").choose_participants
    cohorts = np.stack([choose(options, protocol.users, r)[0] for r in range(2)])
    problem, answer = str(tmp_path / "problem.npz"), str(tmp_path / "answer.npz")
    scripts.protocols.write_problem(problem, protocol, cohorts)
    monkeypatch.setitem(scripts.protocols.PROTOCOLS, "tiny", protocol)
    monkeypatch.setattr(sys, "argv", ["ours.py", "tiny", problem, "1", answer])
    scripts.ours.main()

    arrays = dict(np.load(problem))
    clients = []
    for user in cohorts[0]:
        rows = scripts.protocols.rows_of(protocol, user, len(arrays["labels"]))
        clients.append((arrays["images"][rows] / 255, arrays["labels"][rows]))
    first = scripts.side.first_weights(arrays)
    pooled = [pools for *_, pools in network.convs]
    expected = fedavg_round(
        first, clients, pooled, protocol.epochs, protocol.batch_size, protocol.learning_rate
    )
    trained = np.load(answer)
    for k, weights in enumerate(expected):
        np.testing.assert_allclose(trained[f"after_{k}"], weights, rtol=0, atol=2e-6)
        assert np.max(np.abs(weights - first[k])) > 1e-3  # it has moved
