"""Session-wide settings of the tests, and fixtures of all folders.

Shared by tests: `federations` (the standard federation, its data and states), `standard` (a method
on it: simulation, rounds, a server's step), `tiny` (models and uploads by hand), `runs` (a tiny
config and commands on it), `faults`, `deploy/sites` (a deployment by calls).
"""

import ctypes
import functools
import gc
import os
from pathlib import Path

import jax
import pytest

import tests.shapes  # noqa: F401, before the library, whose functions it wraps

# isort: split
from fedjax_ht.core.compiling import CPU_OPTIONS
from fedjax_ht.simulation.engine import forget_engines
from tests.changed_code import MonkeyPatch
from tests.compilations import compiled  # noqa: F401, a fixture
from tests.groups import GroupScheduling, group_of
from tests.runs import (  # noqa: F401, fixtures
    blank_pictures,
    forks,
    run_module,
    run_script,
    tiny_config,
)

# Most of the suite's time is compilation, and half of that is XLA's fusion emitters, which small
# arrays do not need. An eighth of the rest is cutting each program into parts for several threads.
# Both flags hold for all processes that tests start; a jaxlib that does not know a flag ends at it.
# The first is gone from jax 0.11 on. With 0.12 the second takes no processor time off, nor do the
# preset of fast compilation and the flags of tiling and its lowering, verification, scheduling,
# instruction set and vectors' width; no fusion at all takes nearly twice as long.
if (0, 10) <= jax.__version_info__ < (0, 11):
    flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"

# Tracing makes many small objects that live on: looking for garbage after every 700 of them is a
# tenth of the suite.
gc.set_threshold(20_000, 20, 50)

MAPS = Path("/proc/self/maps")
# A process of 9,600 had 1.6 GB, one of 20,000 had 5. Linux allows 65,530.
FEWEST_MAPS, MOST_MAPS, MAPS_PER_GIB = 5_000, 12_000, 4_000
NEWEST_GROUP = pytest.StashKey[str]()  # of the test that ran last in this process


@pytest.fixture(scope="session", autouse=True)
def full_float32():
    """Turns off the ten-bit mantissa that jax gives float32 products on GPUs by default."""
    jax.config.update("jax_default_matmul_precision", "float32")


@pytest.fixture(scope="session", autouse=True)
def compiled_once(request):
    """XLA optimises little here, and two simulations that lower to the same program compile it
    once: in two processes of xdist, and in all runs until `make clean`. The notebook's and the
    quickstart's processes are compiled in full."""
    jax.config.update("jax_disable_most_optimizations", True)
    CPU_OPTIONS["xla_backend_optimization_level"] = 0  # comes after jax's own options
    jax.config.update("jax_compilation_cache_dir", str(request.config.cache.mkdir("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def memory_maps() -> float:
    """Counts the memory maps of this process; infinity where the system is not Linux."""
    return MAPS.read_bytes().count(b"\n") if MAPS.exists() else float("inf")


@functools.cache
def allowed_maps() -> float:
    """Returns the maps at which a process drops its programs, so that all processes of the run
    together take about half of the machine's memory."""
    if not MAPS.exists():
        return FEWEST_MAPS
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    return min(max(MAPS_PER_GIB * memory / 2 / processes, FEWEST_MAPS), MOST_MAPS)


def return_freed_memory() -> None:
    """Returns freed memory to the system. XLA's compiler frees most of what it takes, in heaps of
    its threads, which glibc keeps; a process that held 0.6 GB had 1.7."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Drops the compiled programs of earlier groups before they are too many: thousands of them
    exhaust a process's memory maps. They stay as long as they may, since tests share more than
    those of their group. A fixture would come after those of a module, and drop what they made."""
    name = group_of(item.nodeid)
    if item.session.stash.get(NEWEST_GROUP, name) != name:
        if memory_maps() > allowed_maps():
            forget_engines()
            jax.clear_caches()
        return_freed_memory()
    item.session.stash[NEWEST_GROUP] = name


@pytest.fixture
def monkeypatch():
    """Pytest's, but no kept program outlives a change of code that it may be made of."""
    with MonkeyPatch.context() as patch:
        yield patch


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: group_of(item.nodeid))  # stable


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)
