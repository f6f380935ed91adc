"""Kept programs around a change of the library's code."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from fedjax_ht.core import round as client_rounds
from fedjax_ht.lab.runs import train
from fedjax_ht.losses import features
from fedjax_ht.methods.registry import FACTORIES
from fedjax_ht.simulation import engine
from tests.changed_code import MonkeyPatch, is_of_programs
from tests.groups import group_of


@pytest.mark.parametrize(
    "target, expected",
    [
        (client_rounds, True),
        (features, True),
        ("fedjax_ht.core.round.send", True),
        (engine.Engine, True),
        (pytest, True),
        (train, False),
        (train.Page, False),
        ("fedjax_ht.lab.runs.play.environment", False),
        (os, False),
        (types.SimpleNamespace(), False),
    ],
)
def test_programs_depend_on_all_but_what_runs_them(target, expected):
    assert is_of_programs(target) == expected


def change(patch, what: str) -> None:
    if what == "constant":
        patch.setattr(client_rounds, "send", client_rounds.send)
    elif what == "registry":
        patch.setitem(FACTORIES, "mine", FACTORIES["local"])
    else:
        patch.setattr(train, "write_results", None)


@pytest.mark.parametrize("what, times", [("constant", 2), ("registry", 2), ("runner", 0)])
def test_kept_programs_are_dropped_before_and_after_a_change(what, times):
    dropped = []
    with pytest.MonkeyPatch.context() as outer, MonkeyPatch.context() as patch:
        outer.setattr("tests.changed_code.forget_engines", lambda: dropped.append(what))
        change(patch, what)
        assert len(dropped) == bool(times)
        patch.undo()
        assert len(dropped) == times


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
