"""Deployments are equal bit for bit to their simulations, in processes that compile as a user's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

METHODS = ["local", "fedtgp", "fedssa", "fedktl", "fedrolex", "fml", "fedgen", "fedmd", "dsfl"]


def compare(*arguments: str) -> None:
    """Runs tests.deploy.equal with XLA's optimisations, without which rounding may differ."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "tests.deploy.equal", *arguments]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_equal_to_the_simulation(method):
    compare(method)


@pytest.mark.slow
@pytest.mark.parametrize("code", ["quantise", "top_k"])
def test_equal_with_a_code(code):
    compare("lg_fedavg", code)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "upload", "sample"])
def test_equal_with_noise(unit):
    pytest.importorskip("dp_accounting")
    compare("lg_fedavg", unit)
