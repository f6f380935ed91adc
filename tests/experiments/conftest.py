"""A run that several commands look at."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def played(run_module, tiny_config, tmp_path_factory) -> Path:
    """The folder of a round of local training, FedProto and FedTGP."""
    folder = tmp_path_factory.mktemp("played") / "run"
    entries = "--config.entries=('local','fedproto','fedtgp:server_epochs=2')"
    done = run_module("main", f"--config={tiny_config}:runlocal", f"--workdir={folder}", entries)
    assert done.returncode == 0, done.stderr
    return folder
