"""Session-wide settings of the tests."""

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def full_float32():
    """On GPUs jax computes float32 products with ten bits of mantissa unless told otherwise."""
    jax.config.update("jax_default_matmul_precision", "float32")


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Two simulations that lower to the same program compile it once: most of the suite's time is compilation."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
