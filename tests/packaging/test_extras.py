"""The packages that pip installs, and what works with the mandatory ones alone."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedjax_ht.check.packages import PACKAGES, needing, require
from fedjax_ht.lab.command import COMMANDS
from tests.docs.test_architecture import LIBRARY, imports
from tests.docs.test_examples import blocks

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
BLOCKED = sorted({name for name, package in PACKAGES.items()} - {"scipy"})
WITHOUT_EXTRAS = f"""
import sys
# an import of one raises ModuleNotFoundError; jax itself imports scipy, but not these parts
sys.modules.update(dict.fromkeys({[*BLOCKED, "scipy.io", "scipy.optimize", "scipy.stats"]}))
"""
NEED_CONFIGS = ("fairly_tuned", "load_run", "report_run", "train_and_evaluate")


def without_extras(code: str, *arguments: str) -> subprocess.CompletedProcess:
    """Runs Python that finds no package of an extra."""
    command = [sys.executable, "-c", WITHOUT_EXTRAS + code, *arguments]
    quick = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.run(command, cwd=ROOT, env=quick, capture_output=True, text=True, timeout=600)


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[><=\[]", requirement)[0] for requirement in requirements}


def test_every_dependency_is_declared_and_used():
    mandatory = names_of(PROJECT["dependencies"])
    modules = {"absl-py": "absl"}
    imported = {name.split(".")[0] for path in LIBRARY.rglob("*.py") for name in imports(path)}
    assert {modules.get(name, name.replace("-", "_")) for name in mandatory} <= imported
    assert len(mandatory) == 10 and set(PACKAGES) <= imported
    for package in PACKAGES.values():
        assert package.name in names_of(EXTRAS[package.extra]), package
    assert names_of(EXTRAS["run"]) == {p.name for p in PACKAGES.values() if p.extra == "run"}


ALL_NAMES = """
for name in fl.__all__:
    try:
        getattr(fl, name)
    except ImportError as error:
        print(name, error)
training = fl.LocalTraining(optax.sgd(0.1))
assert {method(training).name for method in fl.METHODS.values()} == set(fl.METHODS)
"""


def test_the_readme_runs_without_extras():
    """In one round of each method, and its clients send as many bytes as the page says. All public
    names but those of configs and of runs can be had."""
    (code,), page = blocks("../README.md"), (ROOT / "README.md").read_text()
    done = without_extras(re.sub(r"rounds=\d+", "rounds=1", code) + ALL_NAMES)
    assert done.returncode == 0, done.stderr
    shown = r"^ *(\w+): [\d.]+%, (.*)$"
    sent = re.findall(shown, done.stdout, re.MULTILINE)
    assert sent == re.findall(shown, page, re.MULTILINE) and len(sent) == 2
    lines = done.stdout.splitlines()[2:]
    assert [line.split()[0] for line in sorted(lines)] == list(NEED_CONFIGS)
    assert all(line.endswith("; run pip install 'fedjax_ht[run]'") for line in lines)


CALLS = """
import contextlib, io, json
from fedjax_ht.lab.command import main
said = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["fedjax-ht", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main()
        except SystemExit as end:
            code = end.code
    said.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(said))
"""


def test_a_command_says_which_extra_it_needs():
    """Names and version of the program need none."""
    commands = [[command, "--config=quickstart"] for command in COMMANDS]
    done = without_extras(CALLS, json.dumps([*commands, ["--help"], ["--version"]]))
    *refused, shown, version = json.loads(done.stdout)
    needs = "needs matplotlib, pillow, tqdm; run pip install 'fedjax_ht[run]'\n"
    assert refused == [[2, "", f"error: fedjax-ht {command} {needs}"] for command in COMMANDS]
    assert shown[1].startswith("usage: fedjax-ht COMMAND")
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", version[1])


def test_another_missing_module_is_not_taken_for_a_package_of_an_extra():
    message = r"^No module named 'no_such_module'$"
    with pytest.raises(ModuleNotFoundError, match=message), needing("a test"):
        import no_such_module  # noqa: F401


def test_all_missing_packages_are_named(monkeypatch):
    require("a test", "run")
    for name in ("tqdm", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)
    message = r"^a test needs pillow, tqdm; run pip install 'fedjax_ht\[run\]'$"
    with pytest.raises(ImportError, match=message):
        require("a test", "run")
