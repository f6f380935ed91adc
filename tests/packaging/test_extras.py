"""The packages that pip installs, and what works with the mandatory ones alone."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedjax_ht.check.packages import PACKAGES, needing, require
from fedjax_ht.lab.command import COMMANDS

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
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[><=\[]", requirement)[0] for requirement in requirements}


def imported_packages() -> set[str]:
    """Returns the modules, first names alone, that files of the library import anywhere."""
    names = set()
    for path in (ROOT / "fedjax_ht").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module.split(".")[0])
    return names


def test_every_dependency_is_declared_and_used():
    mandatory = names_of(PROJECT["dependencies"])
    modules = {"absl-py": "absl"}
    imported = imported_packages()
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
assert {method(training).name for method in fl.METHODS.values()} == set(fl.METHODS)
"""


def test_the_readme_and_a_written_method_run_without_extras():
    """Plays one round of each, without the checks of the method's contract. All public names but
    those of configs and of runs can be had."""
    blocks = []
    for page in ("README.md", "docs/write_a_method.md"):
        blocks += re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    code = "\n".join(blocks[:-1])  # the last one is a config file
    code = re.sub(r"rounds=\d+", "rounds=1", code)
    code = re.sub(r"^fl.check_method.*$", "", code, flags=re.MULTILINE)
    done = without_extras(code + ALL_NAMES)
    assert done.returncode == 0, done.stderr
    local, fedssa, accuracy, *lines = done.stdout.splitlines()
    assert local.startswith("local: ") and fedssa.startswith("fedssa: ")
    assert 0 <= float(accuracy) <= 1
    assert [line.split()[0] for line in sorted(lines)] == list(NEED_CONFIGS)
    assert all(line.endswith("; run pip install 'fedjax_ht[run]'") for line in lines)


def test_a_public_name_says_which_package_it_needs():
    code = "import sys; sys.modules['matplotlib'] = None; import fedjax_ht as fl; "
    code += "fl.train_and_evaluate"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: fedjax_ht.train_and_evaluate needs matplotlib; "
        "run pip install 'fedjax_ht[run]'"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_which_extra_it_needs(command):
    code = "from fedjax_ht.lab.command import main; main()"
    done = without_extras(code, command, "--config=quickstart")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        f"error: fedjax-ht {command} needs matplotlib, pillow, tqdm; "
        "run pip install 'fedjax_ht[run]'\n"
    )


def test_the_programs_name_and_version_need_no_extra():
    code = "from fedjax_ht.lab.command import main; main()"
    assert without_extras(code, "--help").stdout.startswith("usage: fedjax-ht COMMAND")
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", without_extras(code, "--version").stdout)


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
