"""Mutates pure modules, and lists the changes that their nearest tests do not detect.

A change is one operator, number or condition.

    python -m pip install cosmic-ray
    python -m benchmarks.mutants --out=benchmarks/results/mutants.md
    python -m benchmarks.mutants --modules=core/wire --most=1000    # all of one module

cosmic-ray makes the changes, in a throw-away copy of the working tree, and runs the module's tests
for each. At most --most places of a module are changed, drawn by --seed, each once. A survivor is a
line whose change no test detects: a test is missing, or the change does not matter.
"""

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import app, flags

from benchmarks.report import machine, publish, table
from fedjax_ht.check.packages import needing

with needing("benchmarks.mutants"):
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult

_MODULES = flags.DEFINE_list("modules", None, "Modules of `TESTS`; by default all.")
_MOST = flags.DEFINE_integer("most", 12, "Places that are changed in a module.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the choice of places and changes.")

ROOT = Path(__file__).resolve().parents[1]
TESTS: Mapping[str, Sequence[str]] = {
    "check/docstrings": ["check/test_names.py"],
    "check/names": ["check/test_names.py"],
    "core/wire": ["core/test_wire.py"],
    "data/partition/kinds": ["data/test_partition.py", "data/test_partition_kinds.py"],
    "data/partition/splits": ["data/test_partition.py", "data/test_partition_kinds.py"],
    "lab/readers/roles": ["lab/readers/test_tables.py"],
    "models/text": ["models/test_text.py"],
    "lab/config/config_files": ["lab/config/test_config_files.py", "lab/config/test_flags.py"],
    "simulation/rows": ["simulation/test_history.py", "simulation/test_accuracies.py"],
}
"""Module of the library -> its nearest tests."""

SECONDS = 300  # timeout of the tests for one change
LEFT_OUT = ("BitOr", "RemoveDecorator", "ExceptionReplacer", "Variable")
"""Parts of operator names: unions of types are not arithmetic, and the others break a module."""


class Mutant(NamedTuple):
    """A change of a module, and its line.

    Attributes:
      line: number of the line.
      change: lines before and after, "- a + b" and "+ a - b", joined.
      is_seen: True if a test failed.
    """

    line: int
    change: str
    is_seen: bool


def copy_of_tree(folder: Path) -> Path:
    """Copies the files that git does not ignore, as they are now, into `folder`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    return folder


def mutants(module: str, tree: Path, most: int, seed: int) -> Iterator[Mutant]:
    """Yields the changes of a module, after running its tests.

    Args:
      module: key of `TESTS`.
      tree: copy of the working tree.
      most: number of places to change.
      seed: seed of their choice.

    Raises:
      ValueError: the tests fail without any change. One line.
    """
    files = [f"tests/{test}" for test in TESTS[module]]
    tests = [sys.executable, "-m", "pytest", "-x", "-n0", *files]
    if subprocess.run(tests, cwd=tree, capture_output=True).returncode:
        raise ValueError(f"the tests of {module} fail without a change: {' '.join(files)}")
    config, session = tree / "mutants.toml", tree / "mutants.sqlite"
    session.unlink(missing_ok=True)
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "fedjax_ht/{module}.py"\ntimeout = {SECONDS}.0\n'
        f'excluded-modules = []\ntest-command = "{" ".join(tests)}"\n'
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    command = [sys.executable, "-m", "cosmic_ray.cli"]
    subprocess.run([*command, "init", str(config), str(session)], cwd=tree, check=True)
    with use_db(session, WorkDB.Mode.open) as database:
        keep(database, most, seed)
    subprocess.run([*command, "exec", str(config), str(session)], cwd=tree, check=True)
    with use_db(session, WorkDB.Mode.open) as database:
        for item, result in database.completed_work_items:
            if result.worker_outcome != WorkerOutcome.SKIPPED:
                is_seen = result.test_outcome != TestOutcome.SURVIVED
                yield Mutant(item.mutations[0].start_pos[0], changed(result.diff or ""), is_seen)


def keep(database: WorkDB, most: int, seed: int) -> None:
    """Keeps one change each of `most` places in a session; marks the others as skipped."""
    places: dict[tuple[int, int], list[WorkItem]] = {}
    items = sorted(database.pending_work_items, key=lambda item: str(item.mutations[0]))
    for item in items:
        mutation = item.mutations[0]
        if not any(part in mutation.operator_name for part in LEFT_OUT):
            places.setdefault(mutation.start_pos, []).append(item)
    rng = random.Random(seed)
    chosen = rng.sample(sorted(places), min(most, len(places)))
    kept = {rng.choice(places[place]).job_id for place in sorted(chosen)}
    for item in items:
        if item.job_id not in kept:
            database.set_result(item.job_id, WorkResult(WorkerOutcome.SKIPPED))


def changed(diff: str) -> str:
    """Returns the changed lines of a diff, "- before" and "+ after", as a table cell."""
    lines = [line for line in diff.splitlines() if line[:1] in ("-", "+") and line[1:2] != line[:1]]
    text = " ".join(f"{line[0]} {line[1:].strip()}" for line in lines)
    return text.replace("|", "\\|")


def main(_) -> None:
    tried, survivors = [], []
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        tree = copy_of_tree(Path(folder))
        for module in _MODULES.value or TESTS:
            made = sorted(mutants(module, tree, _MOST.value, _SEED.value))
            seen = sum(mutant.is_seen for mutant in made)
            tried.append([module, str(len(made)), str(seen), ", ".join(TESTS[module])])
            print(*tried[-1], flush=True)
            for mutant in made:
                if not mutant.is_seen:
                    survivors.append([f"{module}.py:{mutant.line}", f"`{mutant.change}`"])
                    print(*survivors[-1], flush=True)
    text = (
        f"Changes that tests see, at most {_MOST.value} places of a module, seed {_SEED.value}. "
        f"{machine()}\n\n{table(['module', 'changes', 'seen', 'tests'], tried)}\n\n"
        f"Survivors:\n\n{table(['line', 'change'], survivors)}\n"
    )
    publish(text)


if __name__ == "__main__":
    app.run(main)
