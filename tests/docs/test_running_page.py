"""docs/running.md: its recipes for loggers take the rows of a run as they are."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

from tests.docs.test_examples import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
ROWS = [
    {"round": r, "trial": t, "accuracy": 0.5 + t / 10, "not_finite": [], "server_finite": True}
    for r in (0, 1)
    for t in (0, 1)
]


def recipe(tracker: str) -> str:
    """Returns the page's code that imports a tracker."""
    imported = rf"^(import|from) .*{tracker}"
    (code,) = (code for code in blocks("running.md") if re.search(imported, code, re.MULTILINE))
    return code


def test_a_finished_run_is_logged(tmp_path, monkeypatch):
    folder, logged = tmp_path / "checkpoints" / "runs" / "quickstart-seed0-trials3", []
    (folder / "fedapen").mkdir(parents=True)
    (folder / "config.json").write_text('{"rounds": 1}')
    (folder / "fedapen" / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in ROWS)
    )
    monkeypatch.chdir(tmp_path)
    wandb = types.SimpleNamespace(
        init=lambda **options: logged.append(options), log=lambda *a, **k: logged.append((a, k))
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    exec(recipe("wandb"), {})
    about, *rows = logged
    assert about["config"] == {"rounds": 1} and [step["step"] for _, step in rows] == [0, 0, 1, 1]
    assert rows[1][0][0]["trial 1/accuracy"] == 0.6 and "trial 1/not_finite" not in rows[1][0][0]


def test_the_jobs_of_the_array_train_all_entries_once(tmp_path):
    """Each job's script runs with a stand-in for the program, and all shares are merged."""
    scripts = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    (array,) = (script for script in scripts if "SBATCH" in script)
    (after,) = (script for script in scripts if "fedjax-ht merge" in script)
    program = tmp_path / "fedjax-ht"
    program.write_text('#!/bin/bash\necho "$@"\n')
    program.chmod(0o755)

    def said(script, **variables):
        run = ["bash", "-euc", script]
        path = f"{tmp_path}:{os.environ['PATH']}"
        return subprocess.run(
            run, env={"PATH": path, **variables}, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    first, last = map(int, re.search(r"--array=(\d+)-(\d+)", array).groups())
    folders, commands = [], set()
    for job in range(first, last + 1):
        (line,) = said(array, SLURM_ARRAY_TASK_ID=str(job))
        command, share, folder = re.fullmatch(
            r"(.*) --entries=(\S+) --workdir=(\S+)", line
        ).groups()
        assert share == f"{job}/{last}"
        folders.append(folder)
        commands.add(command)
    merging, tables = said(after)
    assert merging == f"merge {' '.join(folders)} --workdir=RUNS/all"
    assert {tables} == {f"{command} --workdir=RUNS/all" for command in commands}
