"""A run's stored files outlive flipped bits, kills and races (pytest -s prints the counts)."""

import collections
import random
import re
import shutil
import subprocess
import sys

import jax
import pytest

from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.lab.checkpoints.segments import plain
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.play import simulate
from fedjax_ht.lab.runs.train import train_and_evaluate
from tests.lab.checkpoints.toy import flip
from tests.runs import ROOT, command, config_of, environment, metrics

pytestmark = pytest.mark.slow
FLIPS, KILLS, RACES = 200, 54, 4


def values(restored):
    state, history = restored
    return [plain(x).tobytes() for x in jax.tree.leaves(state)], history


@pytest.mark.parametrize("participation", [1.0, 0.25])
def test_no_flipped_bit_changes_a_result_without_a_word(
    tiny_config, tmp_path, no_results, participation
):
    """Any byte of any file of a FedTGP run's two checkpoints: one of them can be read."""
    config = config_of(tiny_config)
    config.entries, config.rounds, config.participation = (), 6, participation
    train_and_evaluate(config, tmp_path / "run")
    whole = tmp_path / "run" / "fedtgp"
    simulation = simulate(plan(config).runs["fedtgp"])
    rng = random.Random(0)
    newest = values(Checkpointer(whole / "checkpoints", simulation).restore())
    shutil.copytree(whole, tmp_path / "older")
    shutil.rmtree(tmp_path / "older" / "checkpoints" / "6")
    before = values(Checkpointer(tmp_path / "older" / "checkpoints", simulation).restore())
    files = sorted(p for p in whole.glob("checkpoints*/**/*") if p.is_file() and p.stat().st_size)
    counts = collections.Counter()
    for _ in range(FLIPS):
        file = rng.choice(files)
        at, bit, warnings = rng.randrange(file.stat().st_size), rng.randrange(8), []
        flip(file, at, bit)
        restored = values(Checkpointer(whole / "checkpoints", simulation).restore(warnings.append))
        flip(file, at, bit)
        assert len(warnings) <= 1 and not any("\n" in line for line in warnings)
        assert restored == (before if warnings else newest), (file, at, bit)
        counts[bool(warnings)] += 1
    print(f"\n{FLIPS} flipped bits in {len(files)} files, named and the one before taken: {counts}")
    assert counts[True] > FLIPS / 4


def test_a_run_killed_again_and_again_equals_one_never_killed(tiny_config, tmp_path, no_results):
    text = tiny_config.read_text().replace("config.rounds = 3", "config.rounds = 25")
    text = text.replace('config.entries = ("local",)', "config.entries = ()").replace(
        '"fedtgp", server_epochs=2', '"local"'
    )
    (tmp_path / "long.py").write_text(text)
    train_and_evaluate(config_of(tmp_path / "long.py"), tmp_path / "whole")
    arguments = [sys.executable, "-m", "tests.lab.runs.killed", tmp_path / "long.py", tmp_path]
    how = {"cwd": ROOT, "env": environment(tmp_path), "capture_output": True, "text": True}
    done = subprocess.run([*arguments, str(KILLS)], **how, timeout=3000)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = done.stdout.splitlines()
    inside, anywhere = map(lines.count, ("killed inside a write", "killed at a random moment"))
    finished = [line.removeprefix("finished ") for line in lines if line.startswith("finished ")]
    restarts = [line for line in lines if line.startswith("said ")]
    print(f"\n{inside + anywhere} kills, {inside} of them inside a checkpoint's write")
    print(f"{len(finished)} runs finished, {len(restarts)} said that they start again at round 0")
    assert inside + anywhere >= 50 and inside >= 10 and finished
    said = "has no readable checkpoint; it restarts at round 0"
    assert all(said in line for line in restarts)
    for run in finished:
        assert metrics(tmp_path / run, "local") == metrics(tmp_path / "whole", "local")
    states = []
    for run in (*finished, "whole"):
        config = config_of(tmp_path / "long.py")
        simulation = simulate(plan(config).runs["local"])
        states.append(
            values(Checkpointer(tmp_path / run / "local" / "checkpoints", simulation).restore())[0]
        )
    assert all(state == states[-1] for state in states)


def test_of_processes_that_start_together_one_runs(run_module, tiny_config, tmp_path):
    refusals = 0
    for race in range(RACES):
        arguments = command("main", f"--config={tiny_config}", f"--workdir={tmp_path / str(race)}")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started = [
            subprocess.Popen(arguments, cwd=ROOT, env=environment(run_module.home), **pipes)
            for _ in range(3)
        ]
        ended = [(process.communicate(timeout=400)[1], process.returncode) for process in started]
        assert sorted(code for _, code in ended) == [0, 2, 2], ended
        refused = [errors for errors, code in ended if code == 2]
        pid = started[[code for _, code in ended].index(0)].pid
        # The second words are for a lock whose holder has not written its name yet.
        holder = re.compile(rf"error: .* is in use by (process {pid} on .*|another process); .*\n")
        assert all(map(holder.fullmatch, refused)), refused
        refusals += len(refused)
        assert [row["round"] for row in metrics(tmp_path / str(race), "fedtgp")] == [0, 1, 2, 3]
    print(f"\n{RACES} races of three processes: one ran, {refusals} were told who holds the folder")
