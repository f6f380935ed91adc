"""Session-wide settings of the tests."""

import jax
import pytest

from fedjax_ht.methods import METHODS


@pytest.fixture(scope="session", autouse=True)
def full_float32():
    """On GPUs jax computes float32 products with ten bits of mantissa unless told otherwise."""
    jax.config.update("jax_default_matmul_precision", "float32")


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Most of the suite's time is compilation, so XLA optimises little here, and two simulations that lower to the same
    program compile it once. What runs in processes of its own, such as whole experiments, is compiled in full."""
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="session")
def newest_group():
    """Which group of tests ran last in this process."""
    return {"name": None}


@pytest.fixture(autouse=True)
def programs_of_one_group(request, newest_group):
    """Compiled programs of earlier groups leave memory: thousands of them exhaust a process's memory maps."""
    name = request.node.get_closest_marker("xdist_group").args[0]
    if newest_group["name"] not in (None, name):
        jax.clear_caches()
    newest_group["name"] = name


def pytest_collection_modifyitems(items):
    """One process runs a file, so that its compiled functions are shared; tests of every method go by method."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        name = parameters.get("name")
        method = name if isinstance(name, str) and name in METHODS else ""
        item.add_marker(pytest.mark.xdist_group(f"{item.path.name}:{method}"))
