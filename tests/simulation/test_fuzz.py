"""Random federations are the same run however they are dealt and resumed; see fuzz.py."""

import os
import subprocess
import sys

import pytest

from tests.simulation.fuzz import DEVICES

FAST, SLOW = 14, range(0, 40, 4)


@pytest.mark.parametrize(
    "first, count", [(FAST, 1), *(pytest.param(n, 4, marks=pytest.mark.slow) for n in SLOW)]
)
def test_random_federations_are_the_same_run(first, count):
    overrides = {"JAX_NUM_CPU_DEVICES": str(DEVICES), "JAX_PLATFORMS": "cpu"}
    overrides["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    command = [sys.executable, "-m", "tests.simulation.fuzz", str(first), str(count)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, env=os.environ | overrides
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count(": same") == count
