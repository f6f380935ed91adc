"""Measures how code reads: density, branches, line length, comments, docstrings and names.

    python -m tests.style                 # the library, package by package
    python -m tests.style FOLDER_OR_FILE  # each file below it
    python -m tests.style --list FILE     # where its docstrings and names fall short

A conditional expression, a comprehension and a lambda count one each for the density. A function's
branches are its `if`, `for`, `while`, `except`, `case`, conditional expressions, `and` and `or`,
and the conditions of comprehensions. An entry of Args or Attributes is a fragment where it cannot
stand alone: "of the model", "see above", "the client's".
"""

import argparse
import ast
import functools
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIBRARY = Path(__file__).resolve().parents[1] / "fedjax_ht"
WIDTH = 100
MOST_BRANCHES = 10

PRONOUNS = frozenset(
    [
        "own",
        "found",
        "there",
        "mine",
        "one",
        "told",
        "said",
        "asked",
        "busy",
        "who",
        "words",
        "given",
        "wanted",
        "whose",
        "them",
        "others",
    ]
)
"""Names of variables and parameters that say nothing of what they hold."""
PUBLIC = frozenset([("configs/sections.py", "given")])
"""Fields of a config that are called by a pronoun: config files and stored runs name them."""

RIDDLES = re.compile(
    r"(What|Of|Who|Whose|Whether|Where|Which|How|When|Likewise|See|The same|As|By|For|In|On|Or|And|"
    r"It|Its|They|Those|These)\b"
    r"|One of (them|these)|\w+(ed|ing)\b(?!:)"
)
"""First words of a docstring that name no thing; a participle is one."""
NOUNS = frozenset(
    [
        "Embedding",
        "Padding",
        "Training",
        "Clipping",
        "Wrapping",
        "Averaging",
        "Scheduling",
        "Settings",
        "String",
        "Masked",
        "Shared",
        "Seed",
        "Feed",
        "Need",
        "Speed",
        "Pruning",
        "Dropping",
        "Learning",
        "Pooling",
        "Weighted",
        "Thing",
        "Ring",
        "Mapping",
        "Nothing",
        "Rounding",
    ]
)
"""Words that look like a participle and may stand first."""

FRAGMENTS = re.compile(
    r"(of|what|see|as|that|whose|is|are|in|to|for|by|from|with|on|at|who|whom|which|how|where|when|"
    r"whether|likewise|also|others|it|its|they|their|them)\b"
    r"|(the )?[\w-]+('s|s')[.,;]|$",
    re.IGNORECASE,
)
"""Beginnings of an entry of Args or Attributes that is a fragment."""
ENTRIES = re.compile(r"  (\*{0,2}\w[\w, .*`]*):(?: +(.*))?$")
"""An entry's first line: its names, and what it says of them."""
REFERENCE = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)(?:\(\))?`")
"""A dotted name in backticks, such as a function of a module or an attribute of a class."""
WORDED = (
    "checkpoints",
    "configs",
    "core",
    "data",
    "deploy",
    "experiment",
    "generators",
    "losses",
    "methods",
    "metrics",
    "models",
    "ops",
    "report",
    "runner",
    "simulation",
    "trust",
)
"""Packages whose entries are noun phrases, and whose references name things that exist."""


class Measures(NamedTuple):
    """Counts of one or more files."""

    code_lines: int = 0
    lines: int = 0
    dense: int = 0
    functions: int = 0
    branchy: int = 0
    long_lines: int = 0
    comments: int = 0
    riddles: int = 0
    pronouns: int = 0
    entries: int = 0
    fragments: int = 0

    def __add__(self, other: "Measures") -> "Measures":
        return Measures(*(a + b for a, b in zip(self, other)))

    @property
    def density(self) -> float:
        """Dense expressions per 100 lines of code."""
        return 100 * self.dense / max(self.code_lines, 1)

    @property
    def branchy_share(self) -> float:
        """Functions with more than ten branches, in percent."""
        return 100 * self.branchy / max(self.functions, 1)

    @property
    def comment_rate(self) -> float:
        """Comments per 1,000 lines of code."""
        return 1000 * self.comments / max(self.code_lines, 1)

    @property
    def fragment_share(self) -> float:
        """Entries of Args and Attributes that are fragments, in percent."""
        return 100 * self.fragments / max(self.entries, 1)


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case)


@functools.lru_cache(1)
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Lists the nodes of a tree; one measure after another asks for those of the same file."""
    return list(ast.walk(tree))


def branches(function: ast.AST) -> int:
    """Counts the branches of a function, those of functions inside it left out."""
    count = 0
    stack = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        if isinstance(node, FUNCTIONS):
            continue
        count += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            count += len(node.ifs)
        stack.extend(ast.iter_child_nodes(node))
    return count


def is_text(node: ast.AST) -> bool:
    """Returns whether a statement is a string alone: a docstring, of an attribute too."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line of each function, class and module that has a docstring, and the docstring
    without its indentation."""
    for node in nodes(tree):
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)):
            continue
        text = ast.get_docstring(node)
        if text and text.split():
            yield getattr(node, "lineno", 1), text


def riddles(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the first words of each docstring of a function, class or module that
    names no thing."""
    for line, text in docstrings(tree):
        first = text.split()[0]
        if RIDDLES.match(text) and first.strip(",.:") not in NOUNS:
            yield line, text.split("\n")[0]


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Yields the names and the first line of each entry of a docstring's Args and Attributes."""
    section = ""
    for line in text.split("\n"):
        if line and not line.startswith(" "):
            section = line.rstrip()
        entry = ENTRIES.match(line)
        if entry and section in ("Args:", "Attributes:"):
            yield entry[1], entry[2] or ""


def fragments(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line of each docstring with an entry that cannot stand alone, and the entry."""
    for line, text in docstrings(tree):
        for names, description in entries(text):
            if FRAGMENTS.match(description):
                yield line, f"{names}: {description}"


def references(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each reference in a docstring, of an attribute too."""
    for node in nodes(tree):
        if isinstance(node, ast.Expr) and is_text(node):
            for reference in REFERENCE.finditer(ast.literal_eval(node.value)):
                yield node.lineno, reference[1]


def bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and name of each variable or parameter that is bound to a pronoun."""
    for node in nodes(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in PRONOUNS:
            yield node.lineno, node.id
        if isinstance(node, ast.arg) and node.arg in PRONOUNS:
            yield node.lineno, node.arg


def pronouns(path: Path, tree: ast.AST) -> list[tuple[int, str]]:
    """Lists the pronouns that a file binds, the public names of PUBLIC left out."""
    return [
        (line, name)
        for line, name in bindings(tree)
        if not any(str(path).endswith(file) and name == field for file, field in PUBLIC)
    ]


@functools.cache
def measure(path: Path) -> Measures:
    """Measures one file."""
    text = path.read_text()
    tree = ast.parse(text)
    prose = set()
    for node in nodes(tree):
        if is_text(node):
            prose |= set(range(node.lineno, node.end_lineno + 1))
    comments = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += not re.match(r"#\s*(noqa|fmt:|type:|pyright:|pragma|!)", token.string)
    lines = text.splitlines()
    code = [i for i, line in enumerate(lines, 1) if line.strip() and i not in prose]
    code = [i for i in code if not lines[i - 1].lstrip().startswith("#")]
    functions = [node for node in nodes(tree) if isinstance(node, FUNCTIONS)]
    dense = (*COMPREHENSIONS, ast.IfExp, ast.Lambda)
    return Measures(
        code_lines=len(code),
        lines=len(lines),
        dense=sum(isinstance(node, dense) for node in nodes(tree)),
        functions=len(functions),
        branchy=sum(branches(f) > MOST_BRANCHES for f in functions),
        long_lines=sum(len(line) > WIDTH for line in lines),
        comments=comments,
        riddles=len(list(riddles(tree))),
        pronouns=len(pronouns(path, tree)),
        entries=sum(len(list(entries(text))) for _, text in docstrings(tree)),
        fragments=len(list(fragments(tree))),
    )


def total(paths: list[Path]) -> Measures:
    """Sums the measures of files."""
    return sum(map(measure, paths), Measures())


HEAD = (
    "",
    "code",
    "density",
    "branchy %",
    "long",
    "comments/1000",
    "riddles",
    "pronouns",
    "frag %",
)


def row(name: str, m: Measures) -> str:
    """Formats one line of the table."""
    return (
        f"{name:40} {m.code_lines:6} {m.density:7.1f} {m.branchy_share:9.1f} {m.long_lines:5} "
        f"{m.comment_rate:13.1f} {m.riddles:8} {m.pronouns:8} {m.fragment_share:6.1f}"
    )


def shortcomings(path: Path) -> Iterator[str]:
    """Yields a line for each riddle, each pronoun and each function with too many branches."""
    tree = ast.parse(path.read_text())
    for line, text in sorted([*riddles(tree), *pronouns(path, tree)]):
        yield f"{path}:{line}: {text}"
    for node in nodes(tree):
        if isinstance(node, FUNCTIONS) and branches(node) > MOST_BRANCHES:
            yield f"{path}:{node.lineno}: {node.name} has {branches(node)} branches"


def fragment_lines(paths: list[Path]) -> Iterator[str]:
    """Yields a line for each entry of Args or Attributes that is a fragment."""
    for path in paths:
        for line, text in fragments(ast.parse(path.read_text())):
            yield f"{path}:{line}: {text}"


def python_files(paths: list[Path]) -> list[Path]:
    """Lists the files of Python below `paths`, in order."""
    files = []
    for path in paths:
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return files


def packages() -> list[Path]:
    """Lists the packages of the library."""
    return sorted(path.parent for path in LIBRARY.glob("*/__init__.py"))


def main() -> None:
    """Prints the table, or with --list the places."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[LIBRARY])
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    files = python_files(arguments.paths)
    if arguments.list:
        for line in itertools.chain(*map(shortcomings, files), fragment_lines(files)):
            print(line)
        return
    print("{:40} {:>6} {:>7} {:>9} {:>5} {:>13} {:>8} {:>8} {:>6}".format(*HEAD))
    parts = packages() if arguments.paths == [LIBRARY] else files
    for path in parts:
        name = path.name if path.is_dir() else str(path)[-40:]
        print(row(name, total(python_files([path]))))
    print(row("all", total(files)))


if __name__ == "__main__":
    main()
