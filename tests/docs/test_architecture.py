"""The packages import each other one way, as docs/architecture.md draws them."""

import ast
import functools
import graphlib
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import fedjax_ht

LIBRARY = Path(__file__).parents[2] / "fedjax_ht"
BELOW = {  # packages of the library -> those that they may import
    "check": "",
    "ops": "",
    "losses": "ops",
    "core": "check losses",
    "trust": "check core",
    "data": "check core",
    "metrics": "check core ops",
    "models": "check core ops",
    "simulation": "check core data metrics trust",
    "methods": "check core data losses models ops",
}
BELOW["lab"] = " ".join(BELOW)
BELOW["deploy"] = " ".join(BELOW)


@functools.cache
def imports(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not any(node.level for node in froms), f"{path}: a relative import"
    return {node.module for node in froms} | {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }


def internal(package: str) -> dict[Path, set[str]]:
    """Returns the packages of fedjax_ht that each file of a package imports."""
    names = {path: imports(path) for path in (LIBRARY / package).rglob("*.py")}
    return {
        path: {name.split(".")[1] for name in found if name.startswith("fedjax_ht.")}
        for path, found in names.items()
    }


def test_every_package_is_in_a_layer():
    packages = {path.parent.name for path in LIBRARY.glob("*/__init__.py")}
    assert packages == BELOW.keys()


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_those_below(package):
    below = set(BELOW[package].split())
    assert below <= set(list(BELOW)[: list(BELOW).index(package)])
    assert all(found <= below | {package} for found in internal(package).values())


def test_library_stands_alone():
    for path in LIBRARY.rglob("*.py"):
        assert not {"experiments", "benchmarks", "tests"} & {
            name.split(".")[0] for name in imports(path)
        }, path


def test_files_import_each_other_one_way():
    files = {
        ".".join(("fedjax_ht", *path.relative_to(LIBRARY).with_suffix("").parts)): path
        for path in LIBRARY.rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {name: imports(path) & files.keys() for name, path in files.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


ROOT = Path(fedjax_ht.__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "stability.md"
PACKAGES = ("generators", "losses", "models", "trust")


def test_no_module_is_shadowed():
    names = [m.name for m in pkgutil.walk_packages(fedjax_ht.__path__, "fedjax_ht.")]
    modules = {name: importlib.import_module(name) for name in names}
    hidden = []
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if getattr(importlib.import_module(parent), last) is not module:
            hidden.append(name)
    assert not hidden, hidden


def test_all_methods_are_public_names():
    assert {name: getattr(fedjax_ht, name) for name in fedjax_ht.METHODS} == fedjax_ht.METHODS


@pytest.mark.parametrize("place", ["fedjax_ht", *PACKAGES])
def test_the_page_has_every_public_name_and_no_other(place):
    """`fedjax_ht` is one place, and each package that is a public name itself."""
    namespace = fedjax_ht if place == "fedjax_ht" else getattr(fedjax_ht, place)
    heading = "## Names of fedjax_ht\n" if place == "fedjax_ht" else f"### fl.{place}\n"
    _, _, rest = PAGE.read_text().partition(heading)
    section, _, _ = rest.partition("\n##")
    listed = re.findall(r"`(\w+)`[,.]", section)
    assert sorted(listed) == sorted(namespace.__all__)
    assert all(getattr(namespace, name) is not None for name in listed)


def test_pages_and_notebooks_use_public_names_alone():
    """A host such as fl.example.org is no name."""
    private = []
    for path in (*ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb"), ROOT / "README.md"):
        for first, second in re.findall(r"\bfl\.(?!example\.)(\w+)(?:\.(\w+))?", path.read_text()):
            namespace = getattr(fedjax_ht, first, None) if first in PACKAGES else None
            is_public = first in fedjax_ht.__all__
            if namespace is not None and second:
                is_public = second in namespace.__all__
            if not is_public:
                private.append(f"{path.name}: fl.{first}.{second}")
    assert private == []
