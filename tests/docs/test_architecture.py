"""The packages import each other one way, as docs/architecture.md draws them."""

import ast
import graphlib
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "fedjax_ht"
BELOW = {
    "core": "",
    "ops": "",
    "trust": "core",
    "data": "core",
    "metrics": "core ops",
    "losses": "ops",
    "models": "core ops",
    "simulation": "core data metrics trust",
    "checkpoints": "core simulation",
    "generators": "core data ops",
    "methods": "core data generators losses models ops",
    "configs": "core data methods models ops trust",
    "experiment": "configs core checkpoints data methods metrics models ops simulation trust",
    "report": "configs core data experiment simulation",
    "runner": "configs core checkpoints data experiment generators methods models report simulation",
    "deploy": "configs core checkpoints data experiment metrics report runner simulation trust",
}


def imports(path: Path) -> set[str]:
    """Returns the modules that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not any(node.level for node in froms), f"{path}: a relative import"
    return {node.module for node in froms} | {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }


@pytest.mark.parametrize(
    "package", sorted(path.parent.name for path in LIBRARY.glob("*/__init__.py"))
)
def test_one_way(package):
    allowed = {f"fedjax_ht.{below}" for below in (package, *BELOW[package].split())}
    for path in (LIBRARY / package).rglob("*.py"):
        internal = {name for name in imports(path) if name.split(".")[0] == "fedjax_ht"}
        assert {".".join(name.split(".")[:2]) for name in internal} <= allowed, path


def test_library_stands_alone():
    for path in LIBRARY.rglob("*.py"):
        assert not {"experiments", "benchmarks", "tests"} & {
            name.split(".")[0] for name in imports(path)
        }, path


def test_order_has_no_circle():
    order = list(BELOW)
    assert all(
        order.index(below) < order.index(package)
        for package in BELOW
        for below in BELOW[package].split()
    )


def test_files_import_each_other_one_way():
    files = {
        ".".join(("fedjax_ht", *path.relative_to(LIBRARY).with_suffix("").parts)): path
        for path in LIBRARY.rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {name: imports(path) & files.keys() for name, path in files.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError
