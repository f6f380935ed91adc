"""A run gives the same on one device and in two processes of two; test_fuzz has other numbers."""

import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.simulation.device_run import CASES, run


def start(*arguments: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.simulation.device_run", *map(str, arguments)]
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    environment = os.environ | {"XLA_FLAGS": " ".join(flags), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def result(program: subprocess.Popen) -> dict:
    out, err = program.communicate(timeout=300)
    assert program.returncode == 0, err[-2000:]
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def on_one():
    return json.loads(json.dumps({case: run(*settings, 1) for case, settings in CASES.items()}))


def assert_same(results: dict, expected: dict) -> None:
    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

    for case, numbers in expected.items():
        exact = {name: numbers.pop(name) for name in ("bytes", "accuracy")}
        assert {name: results[case].pop(name) for name in exact} == exact, case
        jax.tree.map(close, results[case], numbers)
        numbers |= exact


def test_two_processes_change_nothing(on_one):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    programs = [start(4, index, 2, port) for index in range(2)]
    for program in programs:
        assert_same(result(program), on_one)
