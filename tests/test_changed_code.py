"""Kept programs around a change of the library's code."""

import os
import types

import pytest

from fedjax_ht.core import round as client_rounds
from fedjax_ht.lab.runs import train
from fedjax_ht.losses import features
from fedjax_ht.methods.registry import FACTORIES
from fedjax_ht.simulation import engine
from tests.changed_code import MonkeyPatch, is_of_programs


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
