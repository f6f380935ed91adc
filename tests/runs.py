"""A tiny data set and experiment on disk, and commands run on it; fixtures of conftest.py."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.forked import Forks, blank

ROOT = Path(__file__).resolve().parents[1]
TIMING = ("seconds_round", "seconds_evaluation")

CONFIG = """
from fedjax_ht.lab.config.base import apply_argument, base_config, method_config, partition_config

def get_config(argument=None):
    config = base_config()
    config.method = method_config("fedtgp", server_epochs=2)
    config.entries = ("local",)
    config.dataset.name = "npz:{data}"
    config.partition = partition_config("dirichlet", num_clients=4, alpha=1.0, min_samples=8)
    config.model.group = "mlp2"
    config.rounds = 3
    config.checkpoint.every = 1
    return apply_argument(config, argument, rounds=1)
"""


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory) -> Path:
    """A config file of four clients with two perceptrons on 200 images of 6x6 pixels."""
    folder = tmp_path_factory.mktemp("tiny")
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 4
    images = np.clip(
        rng.integers(0, 90, (200, 6, 6, 1)) + 40 * labels[:, None, None, None], 0, 255
    ).astype(np.uint8)
    np.savez(folder / "data.npz", images=images, labels=labels)
    (folder / "tiny.py").write_text(CONFIG.format(data=folder / "data.npz"))
    return folder / "tiny.py"


def metrics(workdir, method):
    rows = [
        json.loads(line) for line in (workdir / method / "metrics.jsonl").read_text().splitlines()
    ]
    return [{k: v for k, v in row.items() if k not in TIMING} for row in rows]


def config_of(path):
    """Returns the config that a config file's get_config returns."""
    spec = importlib.util.spec_from_file_location("tiny", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config()


def words_of(module: str) -> list[str]:
    """Returns what behind `python -m` runs a module of experiments, or else a command."""
    if (ROOT / "experiments" / f"{module}.py").exists():
        return [f"experiments.{module}"]
    return ["fedjax_ht", module]


def command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", *words_of(module), *arguments]


def environment(home: Path) -> dict[str, str]:
    """The caller's, with a home of its own, so that no cache of another run is read but that of
    fonts, whose making takes long enough on a slow machine for matplotlib to say so. XLA optimises
    little, as in the tests' own process."""
    import matplotlib

    overrides = {
        "HOME": str(home),
        "JAX_PLATFORMS": "cpu",
        "MPLCONFIGDIR": matplotlib.get_configdir(),
    }
    return os.environ | overrides | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def shared_programs() -> dict[str, str]:
    """The environment by which a process reads the programs that the tests' own have compiled, and
    leaves them its own. One that is killed while it compiles would leave half a file there."""
    return {
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    """Runs commands, all with one home."""
    home = tmp_path_factory.mktemp("home")
    forks = Forks(ROOT, environment(home) | shared_programs())
    yield forks, home
    forks.close()


@pytest.fixture(scope="session")
def run_module(forks):
    """(module, *arguments) -> the finished process; figures are blank unless `drawn`."""
    start, home = forks

    def run(
        module: str, *arguments: str, timeout: int = 240, drawn: bool = False
    ) -> subprocess.CompletedProcess:
        return start.run(*words_of(module), *arguments, timeout=timeout, drawn=drawn)

    run.home = home
    return run


@pytest.fixture
def blank_pictures(monkeypatch):
    """Figures are made, but not drawn, which takes longer than a tiny run: for tests that look at
    no picture. tests/lab/report/test_plots.py draws."""
    monkeypatch.setattr("fedjax_ht.lab.report.plots.rendered", blank)


@pytest.fixture(scope="session")
def run_script(forks):
    """(*arguments) -> the finished `fedjax-ht ARGUMENTS`."""
    return functools.partial(forks[0].run, "fedjax_ht")
