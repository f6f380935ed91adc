"""The real runner: its files, resume, signals, and the evaluation of one client."""

import csv
import json
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from fedjax_ht.lab.config.base import method_config
from fedjax_ht.lab.runs import train
from tests.deploy.processes import free_port
from tests.runs import ROOT, command, config_of, environment, metrics, shared_programs

METHODS = ("fedtgp", "local")
KEEP = "--config.checkpoint.keep=1000"  # else the second may be gone before anybody looks
ALONE = ("--config.entries=()", "--config.report.maps=none")  # local training without FedTGP


@pytest.fixture(scope="module")
def finished(run_module, tiny_config, tmp_path_factory):
    """An uninterrupted run of three rounds."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    done = run_module("main", f"--config={tiny_config}", f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    return workdir, done


def test_a_run_writes_what_it_says(finished):
    workdir, done = finished
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert [row.split("|")[1].strip() for row in table] == ["method", "---", *METHODS]
    written = [
        line.strip() for line in done.stdout.split("written:")[1].splitlines() if line.strip()
    ]
    assert len(written) == 20
    for path in written:
        assert (ROOT / path).exists(), path
    pictures = {f"plots/{name}.png" for name in ("accuracy", "costs", "clients", "spread", "split")}
    pictures |= {f"{method}/features.png" for method in METHODS}
    assert pictures <= {str(path.relative_to(workdir)) for path in workdir.rglob("*.png")}
    assert (workdir / "report.html").read_text().count("After round 3, trial 0.") == len(METHODS)
    assert set(json.loads((workdir / "lanes.json").read_text()).values()) == {1}
    for method in METHODS:
        assert [row["round"] for row in metrics(workdir, method)] == [0, 1, 2, 3]
        assert len(list(csv.reader((workdir / method / "clients.csv").open()))[1]) == 2 + 4
        of_classes = list(csv.DictReader((workdir / method / "classes.csv").open()))
        samples = {(row["round"], row["client"]): 0 for row in of_classes}
        assert set(samples) == {(str(i), str(client)) for i in range(4) for client in range(4)}
    samples, classes, setting, *lines = done.stderr.splitlines()
    assert samples.endswith("200 images of 6x6x1 uint8, 0 to 209")
    assert classes == "4 classes: 0, 1, 2, 3, of 50 each"
    assert setting.startswith("4 clients on ") and setting.endswith(f" Writing to {workdir}.")
    compiling = [line for line in lines if "compiling 2 architectures for " in line]
    assert [line.partition(":")[0] for line in compiling] == list(METHODS)
    assert lines.pop() == "drawing plots and maps (--config.report.maps=none skips maps)"
    evaluated = [f"{name}, round {i} of 3: acc " for name in METHODS for i in range(4)]
    assert [line for line in lines if line not in compiling] == [
        line for start in evaluated for line in lines if line.startswith(start) and ", up " in line
    ]  # a line an evaluation, and no chatter


def start(run_module, tiny_config, workdir):
    """A run long enough to be interrupted, in its first rounds."""
    arguments = f"--config={tiny_config}:method=local", f"--workdir={workdir}", *ALONE, KEEP
    process = subprocess.Popen(
        command("main", *arguments, "--config.rounds=100000"),
        cwd=ROOT,
        # it is stopped when it has compiled
        env=environment(run_module.home) | shared_programs(),
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 200
    while not (workdir / "local" / "checkpoints" / "2").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(process.communicate()[1])
        time.sleep(0.05)
    return process


def test_a_signal_saves_what_was_done_and_the_run_goes_on_from_any_checkpoint(
    run_module, tiny_config, finished, tmp_path
):
    """SIGINT stands for SIGTERM: test_run_signals.py has both. test_durability.py kills runs."""
    workdir = tmp_path / "run"
    process = start(run_module, tiny_config, workdir)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT
    assert "work is saved in" in errors
    rows, steps = metrics(workdir, "local"), workdir / "local" / "checkpoints"
    assert rows[:4] == metrics(finished[0], "local")[: len(rows)]
    assert max(int(path.name) for path in steps.iterdir()) == rows[-1]["round"]
    for step in list(steps.iterdir()):  # as if it had been killed in its third round
        if int(step.name) > 2:
            shutil.rmtree(step)
    config = f"--config={tiny_config}:method=local"
    done = run_module("main", config, f"--workdir={workdir}", *ALONE, KEEP)
    assert done.returncode == 0, done.stderr
    assert metrics(workdir, "local") == metrics(finished[0], "local")


def test_one_client_is_evaluated_and_exported(run_module, finished, tmp_path):
    workdir, _ = finished
    target = tmp_path / "client.npz"
    done = run_module("evaluate", f"--workdir={workdir}", "--client=3", f"--export={target}")
    assert done.returncode == 0, done.stderr
    expected = metrics(workdir, "fedtgp")[-1]["clients"][3]
    assert f"test accuracy by prototype: {100 * expected:.2f} %" in done.stdout
    with np.load(target) as arrays:
        assert "params/base/fc1/kernel" in arrays and "params/head/bias" in arrays


def test_the_result_comes_before_the_pictures_and_maps_can_be_left_out(
    monkeypatch, blank_pictures, tiny_config, tmp_path
):
    config, folder, happened = config_of(tiny_config), tmp_path / "run", []
    config.entries, config.method, config.rounds = (), method_config("local"), 1
    config.report.maps = "none"

    def shown():
        happened.clear()
        return train.train_and_evaluate(
            config, folder, stage=happened.append, show_result=happened.append
        )

    result = shown()
    assert happened[-2].markdown() == result.summary and happened[-1] == "drawing plots"
    assert result.summary.startswith("local reaches ") and "| method |" in result.summary
    assert not list(folder.glob("local/features.*"))
    config.report.maps = "auto"
    shown()  # the run goes on, and there is nothing to train
    assert happened[-1] == "drawing plots and maps (--config.report.maps=none skips maps)"
    assert len(list(folder.glob("local/features.*"))) == 3


@pytest.mark.slow
def test_trials_share_a_program_and_a_table(run_module, tiny_config, finished, tmp_path):
    workdir = tmp_path / "run"
    arguments = ("--config.trials=2", "--config.partition.per_trial=True", "--config.rounds=2")
    done = run_module("main", f"--config={tiny_config}", f"--workdir={workdir}", *arguments)
    assert done.returncode == 0, done.stderr
    first, second = ([r for r in metrics(workdir, "fedtgp") if r["trial"] == t] for t in (0, 1))
    assert [r["round"] for r in first] == [r["round"] for r in second] == [0, 1, 2]
    alone = metrics(finished[0], "fedtgp")[:3]
    assert [r["clients"] for r in first] == [r["clients"] for r in alone]
    assert [r["clients"] for r in second] != [r["clients"] for r in alone]
    mean = 50 * (max(r["accuracy"] for r in first) + max(r["accuracy"] for r in second))
    assert f"| fedtgp | {mean:.2f} ± " in done.stdout
    evaluated = run_module("evaluate", f"--workdir={workdir}", "--client=3", "--trial=1")
    assert f"{100 * second[-1]['clients'][3]:.2f} %" in evaluated.stdout
    missing = run_module("evaluate", f"--workdir={workdir}", "--client=3", "--trial=2")
    assert missing.returncode == 2 and "no trial 2; trials run from 0 to 1" in missing.stderr


@pytest.mark.slow
def test_two_processes_make_one_run(run_module, tiny_config, finished, tmp_path):
    workdir = tmp_path / "run"
    common = (f"--config={tiny_config}", f"--workdir={workdir}", "--config.rounds=2")
    common = (*common, f"--coordinator=localhost:{free_port()}", "--processes=2")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = []
    for index in range(2):
        arguments = command("main", *common, f"--process={index}")
        home = environment(run_module.home)
        processes.append(subprocess.Popen(arguments, cwd=ROOT, env=home, **pipes))
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "written:" in outputs[0][0] and "written:" not in outputs[1][0]
    for method in METHODS:
        got, want = metrics(workdir, method), metrics(finished[0], method)[:3]
        assert [row["clients"] for row in got] == [row["clients"] for row in want]
    # one process goes on from there
    again = run_module("main", f"--config={tiny_config}", f"--workdir={workdir}")
    assert again.returncode == 0, again.stderr
    for method in METHODS:
        got, want = metrics(workdir, method), metrics(finished[0], method)
        assert [row["clients"] for row in got] == [row["clients"] for row in want]
