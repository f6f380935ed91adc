"""The environment that `make` sets up, with a stand-in for Python that installs nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# "python -m venv FOLDER" as it is on Debian: the last step, pip, needs the package python3-venv.
PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 0
folder="$3"
mkdir -p "$folder/bin" "$folder/lib/python3/site-packages"
install -m 755 "$0" "$folder/bin/python"
touch "$folder/pyvenv.cfg"
[ -n "$PYTHON3_VENV" ] || { echo "apt install python3-venv"; exit 1; }
mkdir -p "$folder/lib/python3/site-packages/pip-24.dist-info"
touch "$folder/bin/pip"
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def make(tmp_path):
    """(whether python3-venv is installed) -> the finished `make`, with environment `make.venv`."""
    python = tmp_path / "python3"
    python.write_text(PYTHON)
    python.chmod(0o755)
    venv = tmp_path / "venv"

    def run(python3_venv: bool) -> subprocess.CompletedProcess:
        command = ["make", venv / ".installed", f"PYTHON={python}", f"VENV={venv}"]
        settings = os.environ | {"PYTHON3_VENV": "yes" if python3_venv else ""}
        return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)

    run.venv = venv
    return run


def half_made(venv: Path) -> None:
    (venv / "bin").mkdir(parents=True)
    (venv / "lib/python3/site-packages").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    python = venv / "bin/python"
    python.write_text('#!/bin/sh\necho "No module named pip"; exit 1\n')
    python.chmod(0o755)


def test_an_environment_that_could_not_be_made_is_removed(make):
    failed = make(python3_venv=False)
    assert failed.returncode == 2 and "apt install python3-venv" in failed.stdout
    assert not make.venv.exists()
    assert make(python3_venv=True).returncode == 0
    assert (make.venv / ".installed").exists()


def test_an_environment_without_pip_is_made_anew(make):
    half_made(make.venv)
    (make.venv / "left_over").touch()
    done = make(python3_venv=True)
    assert done.returncode == 0, done.stderr
    assert (make.venv / "bin/pip").exists() and not (make.venv / "left_over").exists()


def test_packages_of_an_environment_without_pip_are_kept(make):
    half_made(make.venv)
    package = make.venv / "lib/python3/site-packages/numpy-2.dist-info"
    package.mkdir()
    assert make(python3_venv=True).returncode == 0
    assert (make.venv / "bin/pip").exists() and package.exists()


def test_a_folder_that_is_no_environment_is_kept(make):
    make.venv.mkdir()
    (make.venv / "thesis.tex").touch()
    assert make(python3_venv=True).returncode == 0
    assert (make.venv / "thesis.tex").exists()
