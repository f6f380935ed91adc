"""Marks of tests that run with every method, or thoroughly with some."""

import pytest

from fedjax_ht.methods import METHODS
from tests.federations import COMPOSED

ALWAYS_THOROUGH = ("fedavg", "fedtgp")


def by_name(always) -> pytest.MarkDecorator:
    """A test of every method and of some compositions; all but `always` behind the marker."""

    def mark(name):
        return name if name in always else pytest.param(name, marks=pytest.mark.slow)

    return pytest.mark.parametrize("name", list(map(mark, (*METHODS, *COMPOSED))))


every_method = by_name(METHODS)
thoroughly = by_name(ALWAYS_THOROUGH)  # for checks that compile a federation several times
