"""Groups of tests, and that a process that dies costs the test that it died in, and no other."""

import os
import subprocess
import sys
from pathlib import Path

from tests.groups import group_of

CONFTEST = """
import pytest

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from tests.groups import GroupScheduling  # imports jax, which the other processes need not do
    return GroupScheduling(config, log)
"""
GROUP = """
import os, time, pytest

@pytest.mark.parametrize("number", range(4))
def test_one(number):
    time.sleep(0.02)
    if {fatal} and number == 1:
        os._exit(1)
"""


def test_what_shares_programs_is_one_group():
    contract, adapters = "tests/methods/test_contract.py", "tests/methods/test_adapters.py"
    assert group_of(f"{contract}::test_a[1-flora]") == group_of(f"{adapters}::test_b[flora]")
    assert group_of(f"{contract}::test_a[fedit]") != group_of(f"{contract}::test_a[flora]")
    assert group_of(f"{adapters}::test_a[16.0]") == group_of(f"{adapters}::test_b")
    assert group_of("tests/core/test_x.py::test_a[flora]") == "tests/core/test_x.py:flora"


def test_the_others_run_when_a_process_dies(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(8):
        (tmp_path / f"test_{number}.py").write_text(GROUP.format(fatal=number == 5))
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "1 failed, 31 passed" in done.stdout, done.stdout
    assert "test_5.py::test_one[1]" in done.stdout
