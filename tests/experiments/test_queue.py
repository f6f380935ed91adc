"""The queue: commands settle without data, make works them off, and a status says how far."""

import json
import os
import shutil
import subprocess

import pytest

from experiments.chosen import chosen, entries_with
from experiments.queue_commands import QUEUE, plan_of, plans_of, read_queue
from experiments.queue_status import table_of
from fedjax_ht.lab.config.entries import entries_of
from fedjax_ht.lab.runs.plan import settle
from tests.experiments.folders import history, write_run

ROWS = read_queue()
PLANS = plans_of(ROWS)
MAKEFILE = QUEUE.with_name("Makefile")


@pytest.mark.parametrize("name", PLANS)
def test_a_command_makes_a_config_without_a_mistake(name):
    plan = PLANS[name]
    settled = settle(plan.config)
    assert len(settled.runs) == len(entries_of(plan.config)) > 0 and plan.rounds > 0


def test_seeds_have_splits_of_their_own():
    for name, plan in PLANS.items():
        partition = plan.config.partition
        assert partition.per_trial or plan.config.trials == 1 or name.startswith("dfrd"), name
    seeds = PLANS["two-classes-seeds"].config
    search = PLANS["two-classes-local"].config
    assert (seeds.seed, seeds.trials, search.seed) == (1, 2, 0)
    assert seeds.partition.seed == search.partition.seed + 1


def searched(folder, points):
    """The folder of a search that has chosen the last of its points."""
    write_run(folder, dict.fromkeys(points, ()), rounds=2)
    scores = {label: 0.1 * place for place, label in enumerate(points)}
    (folder / "search.json").write_text(json.dumps({2: scores}))


def test_a_comparison_takes_what_the_searches_chose(tmp_path):
    """The points that searches of row 3 chose are entries that its comparison settles with."""
    names = ["two-classes-local", "two-classes-fedssa", "two-classes-fedral"]
    entries = []
    for name in names:
        searched(tmp_path / name, [entry.label for entry in entries_of(PLANS[name].config)])
        entries.append(chosen(tmp_path / name, None, score="accuracy", by="best"))
    commands = {command.name: command for row in ROWS for command in row.commands}
    command = commands["two-classes-seeds"]
    before = command.arguments.partition(" --methods=")[0].split()
    plan, _ = plan_of("compare", [*before, f"--methods={','.join(entries)}"])
    settled = settle(plan.config)
    assert list(settled.runs) == entries
    training = [run.config.training for run in settled.runs.values()]
    assert {(t.batch_size, t.learning_rate, t.epochs) for t in training} == {(64, 0.01, 1)}


def test_the_form_that_wins_is_taken_apart(tmp_path):
    forms = {"fedavg": 0.9, "fedavg+dfrd": 0.5, "fedavg+dfrd:variant=released": 0.6}
    histories = {}
    for label, score in forms.items():
        histories[label] = history(0.1, 0.1, global_accuracy_head=score)
    write_run(tmp_path / "forms", histories, rounds=1)
    best = chosen(tmp_path / "forms", "fedavg+dfrd", score="global_accuracy_head", by="best")
    assert entries_with(best, ["alpha=0.0"]) == ["fedavg+dfrd:variant=released:alpha=0.0"]
    write_run(tmp_path / "begun", histories, rounds=2)
    with pytest.raises(ValueError, match="fedavg has 1 of 2 rounds; give the same comparison"):
        chosen(tmp_path / "begun", "fedavg+dfrd", score="accuracy", by="best")


@pytest.mark.parametrize(
    "text",
    [
        "fedjax-ht sweep --config=quickstart --workdir=$RUNS/a",
        "# row 1 (2 core-hours): all\nfedjax-ht run --config=quickstart --workdir=$RUNS/a",
        "# row 1 (2 core-hours): all\nfedjax-ht compare --config=quickstart",
        "# row one: all",
        "# row 1 (2 core-hours): all" + 2 * "\nfedjax-ht compare --config=a --workdir=$RUNS/a",
    ],
)
def test_a_line_that_is_no_command_is_refused(tmp_path, text):
    (tmp_path / "commands.txt").write_text(text + "\n")
    with pytest.raises(ValueError, match=r"line \d: expected '# row N \(H core-hours\): "):
        read_queue(tmp_path / "commands.txt")


def test_a_choice_of_a_later_command_is_refused(tmp_path):
    choice = '--methods="$(python -m experiments.chosen --runs=$RUNS b)" --workdir=$RUNS/a'
    text = f"# row 1 (1 core-hour): all\nfedjax-ht compare --config=quickstart {choice}\n"
    (tmp_path / "commands.txt").write_text(text)
    with pytest.raises(ValueError, match="no command before it makes b"):
        plans_of(read_queue(tmp_path / "commands.txt"))


def test_the_status_counts_rounds_of_runs_and_of_searches(tmp_path):
    searched(tmp_path / "two-classes-local", ["local:training.epochs=10", "local"])
    histories = {label: history(*[0.1] * rounds) for label, rounds in (("a", 51), ("b", 11))}
    histories = {"fedtgp": histories["a"], "fedproto": histories["b"]}
    write_run(tmp_path / "fedtgp-ten-clients", histories, rounds=50, trials=3)
    lines = {line[3]: line for line in table_of(ROWS, tmp_path).rows}
    assert list(lines) == list(PLANS)
    (row,) = (row for row in ROWS if row.number == 3)
    assert lines["two-classes-local"][:3] == ["3", row.settles, "13 + 24"]
    assert lines["two-classes-local"][4:] == ["4", "1,000", "0", "done"]
    name = "two-classes-seeds"
    assert lines[name] == ["", "", "", name, "0", "1,500", "1, 2", "not begun"]
    assert lines["fedtgp-ten-clients"][4:] == ["60", "750", "0, 1, 2", "begun"]


FEDJAX_HT = """#!/bin/sh
case "$*" in *--workdir=*/level-cifar10*) test -e "$RUNS/healed" || exit 2;; esac
echo "$@" >> "$RUNS/called"
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_works_the_commands_off_once_each_and_goes_on_after_a_failure(tmp_path):
    program = tmp_path / "bin" / "fedjax-ht"
    program.parent.mkdir()
    program.write_text(FEDJAX_HT)
    program.chmod(0o755)
    # stands for `python -m experiments.chosen`, whose searches have not run here
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\necho local\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    runs = tmp_path / "runs"

    def make() -> int:
        command = ["make", "-k", "-f", str(MAKEFILE), f"RUNS={runs}", "FLAGS=--config.devices=1"]
        how = {"env": environment, "capture_output": True, "cwd": tmp_path}
        return subprocess.run(command, **how).returncode

    def called() -> list[str]:
        lines = (runs / "called").read_text().splitlines()
        assert all(line.endswith(" --config.devices=1") for line in lines)
        return [line.partition(f" --workdir={runs}/")[2].split()[0] for line in lines]

    assert make() == 2  # the first fails
    assert called() == [name for name in PLANS if name != "level-cifar10"]
    assert " --methods=local " in (runs / "called").read_text()
    (runs / "healed").touch()
    assert make() == 0 and called()[-1] == "level-cifar10" and len(called()) == len(PLANS)
    assert make() == 0 and len(called()) == len(PLANS)
