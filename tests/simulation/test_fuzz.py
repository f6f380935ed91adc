"""Random federations are the same run however they are dealt and resumed; see fuzz.py."""

import os
import subprocess
import sys

import pytest

from tests.simulation.fuzz import DEVICES

COUNT = 4


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, COUNT))
def test_random_federations_are_the_same_run(first):
    overrides = {"JAX_NUM_CPU_DEVICES": str(DEVICES), "JAX_PLATFORMS": "cpu"}
    overrides["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    command = [sys.executable, "-m", "tests.simulation.fuzz", str(first), str(COUNT)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, env=os.environ | overrides
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count(": same") == COUNT
