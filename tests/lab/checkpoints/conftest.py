"""Fixtures of the tests of checkpoints."""

import pytest


@pytest.fixture
def folder(tmp_path):
    """The folder of a run's checkpoints."""
    return tmp_path / "checkpoints"
