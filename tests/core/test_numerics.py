"""A run is the same whatever switches of jax other code of the process has set."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.core.numerics import STANDARD, standard_numerics, use_standard_numerics
from fedjax_ht.methods import METHODS
from tests.federations import TRAINING, federation_data, mixed_federation

ROOT = Path(__file__).parents[2]
SWITCHES = {"jax_enable_x64": True, "jax_numpy_dtype_promotion": "strict"}
SWITCHES["jax_numpy_rank_promotion"] = "raise"


@pytest.fixture
def switches():
    """Sets all switches of the process, as their environment variables do."""
    before = {name: getattr(jax.config, name) for name in SWITCHES}
    for name, value in SWITCHES.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def standing() -> dict:
    return {name: getattr(jax.config, name) for name in SWITCHES}


def rows() -> list[dict]:
    """Returns what a round of FedProto makes of a federation that is built anew."""
    federation = mixed_federation()
    method = fl.fedproto(TRAINING)
    options = fl.SimulationOptions(devices=1)
    simulation = fl.make_simulation(method, federation, federation_data(federation), options)
    state, history = fl.run(simulation, rounds=1)
    narrow = simulation.read_clients(state, "narrow", np.arange(2))
    assert {str(x.dtype) for x in jax.tree.leaves((state.clients, narrow))} == {"float32", "bool"}
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in history]


@pytest.fixture(scope="module")
def plain():
    """The rows without any switch."""
    return rows()


def test_a_run_is_of_32_bits(plain, switches):
    """The switches stand outside of the library's own calls, and so for a user's callbacks."""
    assert json.dumps(rows()) == json.dumps(plain) and standing() == SWITCHES


def test_padding_is_last_in_a_direct_call_too(switches):
    """Random bits would be of 64 bits."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    split = fl.Split(jnp.arange(100, 116, dtype=jnp.int32), jnp.int32(12))
    assert set(fl.shuffled(jax.random.key(0), split)[12:].tolist()) == {112, 113, 114, 115}


def test_the_switches_stand_as_they_need_to_inside_and_nowhere_else(switches):
    with standard_numerics():
        assert standing() == STANDARD
        assert jnp.zeros(1).dtype == jnp.float32
        assert (jnp.arange(2) + jnp.ones((2, 1))).shape == (2, 2)
    assert standing() == SWITCHES
    use_standard_numerics()
    assert standing() == STANDARD


PROGRAM = """
import sys
import jax
import fedjax_ht as fl
from tests.federations import federation_data, federation_for
from tests.methods.recording import method_of
for name in sys.argv[1:]:
    federation = federation_for(name)
    data, options = federation_data(federation), fl.SimulationOptions(devices=1)
    state, history = fl.run(fl.make_simulation(method_of(name), federation, data, options), 1)
    assert {str(x.dtype) for x in jax.tree.leaves(state.clients)} <= {"float32", "int32", "bool"}
    print(name, {key: x for key, x in history[-1].items() if not key.startswith("seconds")})
"""


@functools.cache
def printed_rows(**switches: str) -> str:
    """Returns what a process with these environment variables prints for every method."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *METHODS],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", **switches},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHES)
def test_every_method_is_of_32_bits_by_the_environment(name):
    printed = printed_rows(**{name.upper(): str(SWITCHES[name]).lower()})
    assert printed == printed_rows() and len(printed.splitlines()) == len(METHODS)
