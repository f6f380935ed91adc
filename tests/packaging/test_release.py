"""Version, address and authors are the same wherever they stand."""

import re
import tomllib
from pathlib import Path

import fedjax_ht

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, HATCH = SETTINGS["project"], SETTINGS["tool"]["hatch"]["build"]
EXTRAS = set(PROJECT["optional-dependencies"])
CITATION = (ROOT / "CITATION.cff").read_text()


def test_the_changelog_and_the_citation_are_of_this_version():
    (first, *_) = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert fedjax_ht.__version__ == first
    assert f"\nversion: {fedjax_ht.__version__}\n" in CITATION


def test_the_address_and_the_authors_are_the_same_everywhere():
    home = PROJECT["urls"]["Homepage"]
    assert all(address.startswith(home) for address in PROJECT["urls"].values())
    assert f"\nrepository-code: {home}\n" in CITATION
    names = [author["name"] for author in PROJECT["authors"]]
    assert re.findall(r"^  - name: (.*)$", CITATION, re.MULTILINE) == names
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert f'ADDRESS = \\"{home}.git\\"' in notebook.read_text(), notebook.name


def test_the_workflows_call_the_jobs_of_the_clone():
    called = set()
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        called |= set(re.findall(r"run: (\S+)", workflow.read_text()))
    assert called == {".ci/run", ".ci/newest"}
    assert all((ROOT / name).stat().st_mode & 0o111 for name in called)


def test_the_dockerfile_copies_what_the_wheel_is_built_of():
    """No image is built here."""
    text = (ROOT / "Dockerfile").read_text()
    copied = []
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        copied += line.split()[:-1]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert set(HATCH["targets"]["wheel"]["packages"]) <= set(copied)
    assert {"pyproject.toml", PROJECT["readme"], PROJECT["license-files"][0]} <= set(copied)
    named = re.findall(r"EXTRAS=([\w,]+)", text + (ROOT / "BUILD.md").read_text())
    assert named and {e for each in named for e in each.split(",")} <= EXTRAS


def test_the_conda_recipe_requires_what_the_plain_wheel_and_its_commands_do():
    """No package is built here. Conda's name of matplotlib without a window is its own."""
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    assert re.search(r'^  version: "(.*)"$', recipe, re.MULTILINE)[1] == fedjax_ht.__version__
    listed = re.search(r"^  run:\n((?:    - .*\n)+)", recipe, re.MULTILINE)[1]
    names = listed.replace("matplotlib-base", "matplotlib")
    required = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["run"]]
    required.append(f"python{PROJECT['requires-python']}")
    assert {line.strip(" -").replace(" ", "") for line in names.splitlines()} == set(required)
    (command,) = PROJECT["scripts"].items()
    assert f"- {' = '.join(command)}\n" in recipe
