"""The wheel that pip installs has all that a clone gives, and nothing that a clone lacks."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from fedjax_ht.lab.generators import SHIPPED

ROOT = Path(__file__).resolve().parents[2]
LICENSED = (  # data with a licence of their own
    ("readers", "fashion_mnist_10k"),
    ("readers", "har_10persons"),
    ("generators", "natural_32"),
)
IN_THE_WHEEL = ("demo", "few_samples", "quickstart", "quickstart_fedtgp")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("fedjax_ht-*-py3-none-any.whl")
    return path


def test_the_wheel_has_all_that_the_runner_reads(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {f"fedjax_ht/lab/configs/{name}.py" for name in IN_THE_WHEEL} <= names
    shipped = [f"{name}.{kind}" for name in SHIPPED for kind in ("npz", "md")]
    assert {f"fedjax_ht/lab/generators/shipped/{file}" for file in shipped} <= names
    files = ("__init__.pyi", "py.typed", "lab/command.py", "lab/report/page.css")
    assert {f"fedjax_ht/{name}" for name in files} <= names
    assert "fedjax_ht/lab/readers/shipped/har_20persons.npz" in names
    for folder, name in LICENSED:
        assert f"fedjax_ht/lab/{folder}/shipped/{name}.npz" in names
        assert f"License-File: fedjax_ht/lab/{folder}/shipped/LICENSE-{name}.txt\n" in metadata
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"fedjax_ht"}
    assert "License-File: LICENSE\n" in metadata
    assert "Requires-Python: >=3.11" in metadata
    for cuda in ("cuda12", "cuda13"):
        assert (
            f"Provides-Extra: {cuda}\nRequires-Dist: jax[{cuda}]; extra == '{cuda}'\n" in metadata
        )


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """(name of a program, *arguments) -> the finished process, in an environment that has the wheel
    and what it needs, in a folder that has nothing."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / "bin"
    subprocess.run(
        [programs / "python", "-m", "pip", "install", "--quiet", f"{wheel}[run]"], check=True
    )
    (folder / "empty").mkdir()
    own = ("PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}

    def run(program, *arguments):
        return subprocess.run(
            [programs / program, *arguments],
            cwd=folder / "empty",
            env=kept | {"HOME": str(folder), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=900,
        )

    run.folder = folder / "empty"
    return run


@pytest.mark.slow
@pytest.mark.parametrize("config", ["quickstart", "quickstart_fedtgp"])
def test_an_empty_environment_runs_the_configs_by_name(installed, config):
    done = installed("fedjax-ht", "run", f"--config={config}:runlocal")
    assert done.returncode == 0, done.stderr
    assert (
        installed.folder / f"checkpoints/runs/{config}-seed0/report.html"
    ).exists() or config in done.stdout


@pytest.mark.slow
def test_an_empty_environment_has_the_rest(installed):
    code = "import fedjax_ht as fl, optax; fl.fedktl(fl.LocalTraining(optax.sgd(0.1))); print(fl.__file__)"
    done = installed("python", "-c", code)
    assert "site-packages" in done.stdout, done.stderr
    for arguments in (["list", "configs"], ["data", "list"], ["--version"]):
        assert installed("fedjax-ht", *arguments).returncode == 0
