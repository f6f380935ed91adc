"""Entries that cannot run in a federation are left out where that is asked for."""

import pytest

from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.runs.compare import comparison
from fedjax_ht.lab.runs.plan import fitting
from fedjax_ht.methods import METHODS
from tests.runs import config_of


@pytest.fixture(scope="module")
def config(tiny_config):
    """Two architectures, without a public set."""
    return typed_config(config_of(tiny_config))


def test_entries_that_do_not_fit_are_left_out_with_the_reason(config):
    entries = ["local", "fedtgp:tau=2.0", "fedmd", "heterofl", "fedprox"]
    lines = []
    kept = fitting(comparison(config, entries, None), lines.append)
    assert kept.entries == ("local", "fedtgp:tau=2.0", "fedprox")
    public, sliced = lines
    assert public.startswith("fedmd is left out: fedmd needs a public set")
    assert sliced.startswith("heterofl is left out: heterofl trains slices")


def test_nothing_is_compared_where_nothing_fits(config):
    with pytest.raises(ValueError, match=r"^no entry fits; fedmd is left out: .* public set"):
        fitting(comparison(config, ["fedmd"], None), print)


def test_all_methods_can_be_named_at_once(config):
    assert comparison(config, ["all"], None).entries == tuple(METHODS)
