"""The modules and tests of `benchmarks.mutants`, read without cosmic-ray."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_modules_and_their_tests_exist():
    tree = ast.parse((ROOT / "benchmarks" / "mutants.py").read_text())
    (table,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and node.target.id == "TESTS"
    )
    paths = [f"fedjax_ht/{module}.py" for module in table]
    for tests in table.values():
        paths += [f"tests/{test}" for test in tests]
    assert table and [path for path in paths if not (ROOT / path).is_file()] == []
