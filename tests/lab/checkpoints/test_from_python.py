"""A simulation made in Python is saved and goes on."""

import json
import os
import subprocess
import sys

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints.checkpoint import load, save
from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.trust.defences import median
from tests.lab.checkpoints.toy import COURSE, assert_same, toy_simulation
from tests.lab.runs.folders import refused

ROWS = [{"round": 2, "trial": 0, "accuracy": 0.1 + 0.2, "clients": [None, 1 / 3]}]


def stored(state):
    """Every client's state is stored, as if the first round had changed it."""
    changed = {name: np.maximum(rounds, 1) for name, rounds in state.changed.items()}
    return state._replace(changed=changed)


def test_a_saved_simulation_comes_back(tmp_path):
    save(tmp_path / "mine", toy_simulation(), COURSE[2], ROWS)
    state, history = load(str(tmp_path / "mine"), toy_simulation())
    assert_same(state, stored(COURSE[2]))
    assert [history] == read_runs(tmp_path / "mine") == [ROWS]
    assert {"metrics.csv", "clients.csv"} <= {file.name for file in (tmp_path / "mine").iterdir()}


def test_the_two_newest_states_stay(tmp_path):
    rows = [ROWS[0] | {"round": number} for number in (0, 1, 2)]
    for number in (0, 1, 2):
        save(tmp_path, toy_simulation(), COURSE[number], rows[: number + 1])
    assert_same(load(tmp_path, toy_simulation())[0], stored(COURSE[2]))
    assert sorted(file.name for file in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]
    assert not list(tmp_path.glob("set_aside*"))


def test_another_course_is_set_aside(tmp_path):
    save(tmp_path, toy_simulation(), COURSE[2], ROWS)
    rows = [ROWS[0] | {"round": 1, "accuracy": 0.5}]
    with pytest.raises(ValueError, match="history ends with round 2, but state is at round 1"):
        save(tmp_path, toy_simulation(), COURSE[1], ROWS)
    save(tmp_path, toy_simulation(), COURSE[1], rows)
    assert_same(load(tmp_path, toy_simulation())[0], stored(COURSE[1]))
    assert len(list(tmp_path.glob("set_aside_1/**/2"))) == 1


def test_another_state_of_the_same_round_is_stored(tmp_path):
    other = COURSE[2]._replace(server=COURSE[2].server | {"w": np.full(3, 7, np.float32)})
    for state in (COURSE[2], other):
        save(tmp_path, toy_simulation(), state, ROWS)
    assert_same(load(tmp_path, toy_simulation())[0], stored(state))


def test_rows_that_json_does_not_have_are_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"history: .*float32.*; give numbers of Python"):
        save(tmp_path, toy_simulation(), COURSE[2], [ROWS[0] | {"mine": np.float32(1)}])
    assert not (tmp_path / "checkpoints").exists()


def test_states_that_no_round_made_are_stored(tmp_path):
    """Those written by hand, and first states of a simulation with another seed."""
    mine, other = (simulation_of(fl.local, options=fl.SimulationOptions(s)) for s in (0, 1))
    state = other.init()
    seven = jax.tree.map(lambda x: 7 + 0 * x, other.read_clients(state, "net", np.arange(1)))
    state = other.write_clients(state, "net", np.arange(1), seven)
    expected = mine.read_clients(state, "net", np.arange(3))
    save(tmp_path, mine, state, [])
    found = mine.read_clients(load(tmp_path, mine)[0], "net", np.arange(3))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


LABELS = np.arange(60) % 3
INPUTS = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)


class Net(nn.Module):
    act: str = "relu"

    @nn.compact
    def __call__(self, x):
        return getattr(nn, self.act)(nn.Dense(4)(x))


def simulation_of(
    method=fl.fedavg,
    x=INPUTS,
    y=LABELS,
    *,
    seed=0,
    act="relu",
    options=None,
    weights=None,
    **recipe,
):
    optimizer = optax.sgd(recipe.pop("rate", 0.1))
    data = fl.Dataset("d", x, y, ("a", "b", "c"))
    models = {"net": fl.SplitModel(Net(act), nn.Dense(3))}
    federation = fl.make_federation(models, data.input_shape, 3, num_clients=3)
    split = fl.make_partition("iid", data, 3, seed=seed)
    if weights:
        federation = fl.with_weights(federation, weights, head=False)
    placed = fl.make_federation_data(data, split, federation)
    training = fl.LocalTraining(optimizer, **{"batch_size": 5} | recipe)
    return fl.make_simulation(method(training), federation, placed, options)


def weights_of(seed: int) -> dict:
    shared = simulation_of().program.federation.shared
    return {"shared": fl.init_variables(shared, jax.random.key(seed))}


OTHERS = {
    "labels": ({"y": (LABELS + 1) % 3}, "data"),
    "inputs": ({"x": 2 * INPUTS}, "data"),
    "split": ({"seed": 1}, "split"),
    "activation": ({"act": "tanh"}, "models"),
    "rate": ({"rate": 0.2}, "training"),
    "batch": ({"batch_size": 10}, "training"),
    "method": ({"method": fl.fedprox}, "method"),
    "option": ({"method": lambda t: fl.fedprox(t, mu=0.5)}, "method"),
    "seed": ({"options": fl.SimulationOptions(seed=1)}, "options"),
    "defence": ({"options": fl.SimulationOptions(robust=(median(),))}, "options"),
}


def test_a_checkpoint_of_another_simulation_is_refused(tmp_path):
    simulation = simulation_of()
    save(tmp_path, simulation, simulation.init(), [])
    for other, part in OTHERS.values():
        with refused(f"a simulation that differs in {part}; load"):
            load(tmp_path, simulation_of(**other))
    simulation = simulation_of(fl.fml, weights=weights_of(0))
    sums = [simulation_of(fl.fml, weights=weights_of(i)).program.sums() for i in (0, 1)]
    assert simulation.program.sums() == sums[0] and sums[0]["models"] != sums[1]["models"]
    same = fl.SimulationOptions(lanes=1, devices=1, client_store="host", time_stages=True)
    load(tmp_path, simulation_of())
    load(tmp_path, simulation_of(x=INPUTS.copy(), options=same))
    # what an earlier version saved has no sums
    later = tmp_path / "checkpoints" / "0"
    (later / "simulation.json").unlink()
    seal = json.loads((later / "seal.json").read_text())
    del seal["files"]["simulation.json"]
    seal["sha256"] = sealed._sha256_of(seal["files"])
    (later / "seal.json").write_text(json.dumps(seal))
    load(tmp_path, simulation_of(rate=0.2))


SUMS = """
import fedjax_ht as fl
from tests.lab.checkpoints.test_from_python import simulation_of
{}
print(simulation_of(fl.fedproto).program.sums())
"""


def test_sums_are_the_same_in_another_process(forks):
    """Also behind a round. The tests' own process has types checked by wrappers of functions; forks
    have hashes of another seed than 1."""
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    how = {"capture_output": True, "text": True, "check": True, "env": environment}
    fresh = subprocess.run([sys.executable, "-c", SUMS.format("")], **how)
    forked = forks[0].run("-c", SUMS.format("fl.run(simulation_of(fl.fedproto), 1)"))
    assert forked.returncode == 0, forked.stderr
    assert fresh.stdout == forked.stdout != ""


def test_a_folder_without_a_checkpoint(tmp_path):
    with pytest.raises(
        ValueError, match=r"has no readable checkpoint of this simulation; fl\.save\("
    ):
        load(tmp_path / "none", toy_simulation())


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "mine").write_text("a file")
    with pytest.raises(ValueError, match="mine', a file; give a folder"):
        save(tmp_path / "mine", toy_simulation(), COURSE[2], ROWS)
