"""Fixtures of the tests of runs."""

import pytest

from fedjax_ht.lab.config.base import method_config
from fedjax_ht.lab.runs import train
from tests.runs import config_of


@pytest.fixture(scope="module")
def config(tiny_config):
    """Three rounds of purely local training; a test that sets a field copies it before."""
    config = config_of(tiny_config)
    config.entries, config.method = (), method_config("local")
    return config


@pytest.fixture
def no_results(monkeypatch):
    """Runs write neither tables nor pictures nor a page."""
    monkeypatch.setattr(train, "write_results", lambda *args: [])
