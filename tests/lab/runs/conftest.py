"""Fixtures of the tests of runs."""

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from fedjax_ht.lab.config.base import method_config
from fedjax_ht.lab.runs import evaluate, train
from tests.runs import config_of


@pytest.fixture(scope="session")
def config(tiny_config):
    """Three rounds of purely local training; a test that sets a field copies it before."""
    config = config_of(tiny_config)
    config.entries, config.method = (), method_config("local")
    return config


@pytest.fixture(scope="session")
def finished(config, tmp_path_factory) -> Path:
    """The folder of the config's run, with blank pictures; a test that changes it copies it."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    with mock.patch("fedjax_ht.lab.report.plots.rendered", lambda figure, kind: b"<svg></svg>"):
        train.train_and_evaluate(config, workdir)
    return workdir


@pytest.fixture
def no_results(monkeypatch):
    """Runs write neither tables nor pictures nor a page."""
    monkeypatch.setattr(train, "write_results", lambda *args: [])


@pytest.fixture
def evaluated(monkeypatch):
    """Returns a function that runs `evaluate` in this process, with these flags."""

    def run(**flags):
        defaults = {"WORKDIR": "run", "TRUST": False, "CLIENT": None, "METHOD": None, "TRIAL": 0}
        defaults |= {"ADAPT": [], "EXPORT": None}
        for name, value in (defaults | flags).items():
            monkeypatch.setattr(evaluate, f"_{name}", SimpleNamespace(value=value))
        evaluate.main([])

    return run
