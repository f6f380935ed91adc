"""Fixtures of the comparisons with torchvision."""

import jax
import pytest


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """In float64 rounding is too small to hide an error; float32 is the one that runs use."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param == "float64")
    yield request.param
    jax.config.update("jax_enable_x64", before)
