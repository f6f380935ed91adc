"""Measures the library's size: lines by layer, modules loaded, functions entered, import circles.

    python -m benchmarks.house                  # this tree
    python -m benchmarks.house --root=PATH      # another one, such as a worktree of a commit
    python -m benchmarks.house --packages       # with code lines by package

* A code line holds a token other than a docstring, a comment or a blank.
* The layer of a file is `fedjax_ht/lab` or `fedjax_ht/deploy` by its path, else the library.
* A function is entered when Python calls its code object. Class bodies, modules, and calls during
  imports do not count. Python 3.11 calls comprehensions, later versions do not.
* The first two rounds are `make_simulation` and `run` of FedProto on four clients with two MLPs, in
  a process that has compiled nothing. The warm round is one more `run_round`.
* The config's way is `train_and_evaluate` on the config quickstart, with two rounds and one trial:
  the files in the order in which it first enters them. It returns upward when a file's package has
  a higher level than the previous file's. The level of a package is one above the highest of those
  that it imports; packages that import each other share one.
* An import circle is a set of modules that reach each other by imports. Imports in functions count;
  those only for type checkers do not.
"""

import argparse
import ast
import importlib
import inspect
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

NAME = "fedjax_ht"
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PROBES = ("ten_lines", "rounds", "config")


def code_lines(text: str) -> set[int]:
    """Returns the numbers of the lines that hold code."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
    }
    return {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in SILENT and token.start not in docstrings
        for line in range(token.start[0], token.end[0] + 1)
    }


def layer(path: Path) -> str:
    """Returns the layer of a file; paths start with the library's folder."""
    return path.parts[1] if path.parts[1] in ("lab", "deploy") else "library"


def package(path: Path) -> str:
    """Returns the package of a file, a folder of the library or of the laboratory."""
    return ".".join(path.parent.parts[: 3 if layer(path) == "lab" else 2])


def modules(root: Path) -> dict[str, Path]:
    """Returns module name -> path below `root`."""
    paths = sorted(path.relative_to(root) for path in (root / NAME).rglob("*.py"))
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yields the imports below a node, except those only for type checkers."""
    if isinstance(tree, ast.Import | ast.ImportFrom):
        yield tree
    only_types = isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test)
    for node in tree.orelse if only_types else ast.iter_child_nodes(tree):
        yield from imports(node)


def imported(text: str, known: Iterable[str]) -> set[str]:
    """Returns those of the modules `known` that a file imports.

    A name imported from a package is the module of that name if there is one, else the package.
    """
    names = set()
    for node in imports(ast.parse(text)):
        above = "" if isinstance(node, ast.Import) else f"{node.module}."
        inside = {f"{above}{alias.name}" for alias in node.names}
        names |= {name if name in known else above[:-1] for name in inside}
    return names & set(known)


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Returns the sets of two or more nodes that reach each other."""
    reach = {node: set(near) for node, near in graph.items()}
    for middle in graph:  # Warshall's closure
        for ends in reach.values():
            if middle in ends:
                ends |= reach[middle]
    found = {frozenset(n for n in reach[node] if node in reach[n]) for node in reach}
    return [set(circle) for circle in found if len(circle) > 1]


def levels(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Returns the level of each node: 0 if it imports none, equal within a circle."""
    level = dict.fromkeys(graph, 0)
    same = {node: {node} for node in graph} | {n: c for c in circles(graph) for n in c}
    for _ in graph:  # the longest way down is shorter than the number of nodes
        for node, below in graph.items():
            lowest = max((level[n] + 1 for n in below - same[node]), default=0)
            level |= dict.fromkeys(same[node], max(level[node], lowest))
    return level


def returns_upward(way: Iterable[str], level: Mapping[str, int]) -> int:
    """Counts the steps of a way from package to package that lead to a higher level."""
    steps = [level[name] for name in way]
    return sum(later > earlier for earlier, later in itertools.pairwise(steps))


@contextmanager
def watched(root: Path) -> Iterator[tuple[set, dict]]:
    """Records the library's functions entered in any thread, and their files in call order."""
    functions, files, importing = set(), {}, Counter()

    def note(frame, event, argument):
        code, thread = frame.f_code, threading.get_ident()
        if event not in ("call", "return") or not code.co_filename.startswith(f"{root / NAME}/"):
            return
        if code.co_name == "<module>":
            importing[thread] += 1 if event == "call" else -1
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # neither a module nor a class body
        if event == "call" and is_function and not importing[thread]:
            functions.add((code.co_filename, code.co_firstlineno, code.co_qualname))
            files.setdefault(code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield functions, files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def ten_lines(root: Path) -> dict:
    """Runs the first Python example of the README."""
    text = (root / "README.md").read_text()
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], {"__name__": "ten_lines"})
    loaded = [root / path for name, path in modules(root).items() if name in sys.modules]
    lines = sum(len(code_lines(path.read_text())) for path in loaded)
    return {"modules of README's ten lines": len(loaded), "code lines in them": lines}


def rounds(root: Path) -> dict:
    """Builds FedProto and runs three rounds."""
    optax, fl = (importlib.import_module(name) for name in ("optax", NAME))
    dataset = fl.load_dataset("fashion_mnist_10k")
    models = fl.model_group("mlp2", 10, dataset.input_shape, 8)
    federation = fl.make_federation(models, dataset.input_shape, 10, num_clients=4)
    partition = fl.make_partition("pathological", dataset, 4, seed=0, classes_per_client=2)
    data = fl.make_federation_data(dataset, partition, federation)
    method = fl.fedproto(fl.LocalTraining(optax.sgd(0.05), batch_size=500))
    with watched(root) as (functions, files):
        simulation = fl.make_simulation(method, federation, data)
        state, _ = fl.run(simulation, rounds=2)
    with watched(root) as (_, of_warm):
        simulation.run_round(state)
    return {
        "functions of build and two rounds": len(functions),
        "files of build and two rounds": len(files),
        "files of a warm round": len(of_warm),
        "fields of Method": len(fl.Method._fields),
    }


def config(root: Path) -> dict:
    """Runs the quickstart's config for two rounds."""
    fl, known = importlib.import_module(NAME), modules(root)
    (name,) = (name for name in known if name.endswith(".quickstart"))
    quickstart = importlib.import_module(name).get_config("runlocal")
    with tempfile.TemporaryDirectory() as folder, watched(root) as (_, files):
        fl.train_and_evaluate(quickstart, folder)
    graph = {package(path): set() for path in known.values()}
    for path in known.values():
        below = {package(known[name]) for name in imported((root / path).read_text(), known)}
        # The package itself has no level: it imports public names when they are used.
        graph[package(path)] |= below - {package(path), NAME}
    upward = returns_upward([package(Path(f).relative_to(root)) for f in files], levels(graph))
    return {"files of the config's way": len(files), "returns upward on it": upward}


def probed(root: Path, name: str) -> dict:
    """Returns the measurements of a probe on the tree `root`, in a process of its own."""
    # -P: the files beside this one are not modules of the other process.
    command = [sys.executable, "-P", __file__, f"--root={root}", f"--probe={name}"]
    environment = os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def counted(root: Path) -> tuple[dict, dict]:
    """Returns the measurements from the files alone, and the code lines by package."""
    known, layers, packages, graph, imports_in = modules(root), Counter(), Counter(), {}, 0
    for name, path in known.items():
        text = (root / path).read_text()
        count = len(code_lines(text))
        layers[layer(path)] += count
        packages[package(path)] += count
        graph[name] = imported(text, known)
        nodes = imports(ast.parse(text))
        imports_in += sum(node.end_lineno - node.lineno + 1 for node in nodes)
    tests = sum(len(path.read_text().splitlines()) for path in (root / "tests").rglob("*.py"))
    return {
        **{f"code lines, {name}": layers[name] for name in ("library", "lab", "deploy")},
        f"code lines of {NAME}": layers.total(),
        "files": len(known),
        "import lines, % of code": round(100 * imports_in / layers.total(), 1),
        "lines of tests": tests,
        "import circles": len(circles(graph)),
        "modules in circles": sum(map(len, circles(graph))),
    }, dict(sorted(packages.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--packages", action="store_true", help="also code lines by package")
    parser.add_argument("--probe", choices=PROBES, help="only this, as JSON")
    options = parser.parse_args()
    if options.probe:
        return print(json.dumps(globals()[options.probe](options.root)))
    root = options.root.resolve()
    measured, packages = counted(root)
    for name in PROBES:
        measured |= probed(root, name)
    for rows in [measured, packages] if options.packages else [measured]:
        print("\n| measured | |\n|---|---|")
        print("\n".join(f"| {name} | {value:,} |" for name, value in rows.items()))


if __name__ == "__main__":
    main()
