"""Runs on a cluster: a driver with an inline cluster, and Ray itself, where it is installed."""

import copy
import functools
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedjax_ht.lab.config.entries import folder_of
from fedjax_ht.lab.runs import ray_cluster, run, tasks
from fedjax_ht.lab.runs.tasks import Outcome, Tasks, note_runs
from fedjax_ht.lab.runs.train import train_and_evaluate
from tests.runs import ROOT, metrics


class Inline:
    """A cluster whose tasks run when they are waited for, one at a time, in this process."""

    accelerated = False

    def __init__(self):
        self.posted, self.calls, self.is_stopping = [], [], False

    def submit(self, *call):
        self.calls.append(call)
        return len(self.calls) - 1

    def finished(self, handles, seconds):
        return handles[:1]

    def result(self, handle):
        function, *arguments = self.calls[handle]
        if self.is_stopping:
            return None
        return function(*arguments, self.report)

    def report(self, event):
        self.posted.append(event)
        return self.is_stopping

    def events(self):
        posted, self.posted = self.posted, []
        return posted

    def stop(self):
        self.is_stopping = True


@pytest.fixture
def inline(monkeypatch):
    """An `Inline` cluster, whose tasks leave the settings of this process as they are."""
    monkeypatch.setattr(tasks, "_prepare_process", lambda devices: None)
    yield Inline()
    tasks.kept.cache_clear()


def test_a_cluster_leaves_the_folder_of_one_process(config, tmp_path, inline, blank_pictures):
    config, rows = copy.deepcopy(config), []
    config.trials, config.rounds, config.report.maps = 2, 1, "none"
    train_and_evaluate(config, tmp_path / "one")
    train_and_evaluate(
        config, tmp_path / "many", lambda *row: rows.append(row), tasks=Tasks(lambda: inline, None)
    )
    assert metrics(tmp_path / "many", "local") == metrics(tmp_path / "one", "local")
    assert [call[3:5] for call in inline.calls] == [("local", 0), ("local", 1)]
    assert sorted((row["trial"], row["round"]) for _, row in rows) == [
        (trial, round) for trial in range(2) for round in range(2)
    ]
    assert tasks.kept.cache_info()[:2] == (1, 1)  # built for the first task, and for the second
    alone, in_tasks = (
        {path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*")}
        for name in ("one", "many")
    )
    assert alone == in_tasks
    train_and_evaluate(config, tmp_path / "many", tasks=Tasks(lambda: inline, None))
    assert len(inline.calls) == 2  # what is finished needs no cluster


def test_tasks_of_one_process_share_what_they_build_and_keep_the_last_alone():
    def make(*of):
        return set(of)

    first = tasks.kept(make, "run", 1)
    assert tasks.kept(make, "run", 1) is first
    gone = weakref.ref(first)
    del first
    assert tasks.kept(make, "search", 1) == {"search", 1} and gone() is None
    tasks.kept.cache_clear()


@pytest.fixture
def play(inline, monkeypatch):
    """Runs tasks of an experiment that they do not look at."""
    monkeypatch.setattr(tasks, "workplace", lambda *_: None)
    return functools.partial(Tasks(lambda: inline, None).play, None, None, notify=print)


def test_the_first_error_comes_when_the_others_have_stopped(play):
    def task(place, name, report):
        if name == "bad":
            raise ValueError("no such thing")
        return name

    done = {}
    with pytest.raises(ValueError, match="no such thing"):
        calls = {name: (task, name) for name in ("good", "bad", "late")}
        play(calls, caught=[], done=done.__setitem__)
    assert done == {"good": "good"}


def test_a_signal_stops_all_tasks(play, inline):
    play({0: (print,)}, caught=[2], done=pytest.fail)
    assert inline.is_stopping


def test_rows_of_a_stopped_run_are_in_its_folder(tmp_path):
    row = {"round": 0, "trial": 1, "accuracy": 0.5, "clients": [0.5]}
    note_runs(tmp_path, [None, Outcome([[row]], {})])
    assert '"trial": 1' in (tmp_path / "metrics.jsonl").read_text()
    note_runs(tmp_path, [Outcome([[row | {"trial": 0}]], {}), None])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2  # of a task that has not begun again, rows of before


def test_a_machine_that_does_not_see_the_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "SEEN", -1.0)
    place = tasks.Workplace(tmp_path / "far", "another sum", str(tmp_path), (), None, 1)
    message = r"does not see .*far like the machine that started"
    with pytest.raises(OSError, match=message), tasks.in_place(place, lambda event: False):
        pass


def test_a_task_takes_an_accelerator_or_cores():
    plain, fast = {"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}
    assert ray_cluster.resources_of([plain], None) == {"CPU": 1}
    assert ray_cluster.resources_of([plain, fast], None) == {"CPU": 1, "GPU": 1}
    assert ray_cluster.resources_of([plain, fast], 8) == {"CPU": 8}
    assert ray_cluster.resources_of([{"CPU": 96.0, "TPU": 4.0}], None) == {"CPU": 1, "TPU": 1}
    for cores in (0, 9):
        with pytest.raises(ValueError, match=rf"--task_cores is {cores}; .*from 1 to 8"):
            ray_cluster.resources_of([plain, fast], cores)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"_TASK_CORES": 2}, "--task_cores is given without --on; a cluster needs --on=ray"),
        ({"_ON": "ray", "_COORDINATOR": "localhost:1234"}, "--on is given with --coordinator"),
    ],
)
def test_flags_that_do_not_go_together_are_one_line(flags, message, monkeypatch):
    for name in ("_ON", "_TASK_CORES", "_COORDINATOR", "_PROCESSES", "_PROCESS"):
        monkeypatch.setattr(run, name, SimpleNamespace(value=flags.get(name)))
    with pytest.raises(ValueError, match=re.escape(message)), run._cluster():
        pass


OWN = """
import fedjax_ht as fl
from fedjax_ht.methods.local import local

def alone(training: fl.LocalTraining) -> fl.Method:
    return local(training)
"""


def start(config: Path, workdir: Path, *flags: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "fedjax_ht", "compare", f"--config={config}"]
    command += [f"--workdir={workdir}", "--methods=local,fedtgp", "--trials=2"]
    command += ["--config.report.maps=none", *flags]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def until(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def workers() -> list[int]:
    """Process ids of Ray's workers that run a task of ours."""
    ids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::run_task" in path.read_bytes():
                ids.append(int(path.parent.name))
        except OSError:
            continue
    return ids


def rounds_in(folder: Path) -> int:
    """Returns the newest round saved of any run."""
    names = [path.name for path in folder.glob("*/checkpoints*/*")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


class StartedRay(SimpleNamespace):
    """A Ray module that notes how it is started."""

    def __init__(self, found=None, version="2.52.0", error=None):
        services = SimpleNamespace(canonicalize_bootstrap_address=lambda address: found)
        constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True)
        private = SimpleNamespace(services=services, ray_constants=constants)
        config = SimpleNamespace(initialize=lambda text: None)
        super().__init__(_private=private, __version__=version, started=None, error=error)
        self._raylet = SimpleNamespace(Config=config)

    def is_initialized(self):
        return False

    def init(self, **options):
        if self.error:
            raise self.error
        self.started = options | {"token": os.environ.get("RAY_AUTH_TOKEN")}

    def shutdown(self):
        pass


@pytest.fixture
def started(monkeypatch):
    """Returns a function (ray) -> how `open_ray` starts it."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # so that what is set is undone
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    monkeypatch.setattr(ray_cluster, "RayCluster", lambda cores: None)

    def start(ray):
        monkeypatch.setitem(sys.modules, "ray", ray)
        with ray_cluster.open_ray(None):
            return ray

    return start


def test_a_cluster_that_is_started_asks_for_a_token_and_listens_on_loopback(started):
    ray = started(StartedRay())
    assert ray.started["address"] == "local" and len(ray.started["token"]) == 64
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert ray._private.ray_constants.ENABLE_RAY_CLUSTER is False


def test_a_cluster_that_runs_keeps_its_settings(started, monkeypatch):
    for address in ("", "10.0.0.1:6379"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        ray = started(StartedRay(found="10.0.0.1:6379"))
        assert "address" not in ray.started and ray.started["token"] is None
        assert ray._private.ray_constants.ENABLE_RAY_CLUSTER is True


def test_a_ray_without_tokens_or_that_does_not_start_is_one_line(started):
    with pytest.raises(ImportError, match=r"needs ray 2\.52 or newer.* found 2\.40\.0; run pip"):
        started(StartedRay(version="2.40.0"))
    with pytest.raises(ConnectionError, match=r"no Ray cluster can be used \(no room\)$"):
        started(StartedRay(error=RuntimeError("no room\nTraceback")))


ROUNDS = "--config.rounds=60"


@pytest.mark.slow
def test_a_worker_that_is_killed_and_ctrl_c_leave_the_folder_of_one_process(tiny_config, tmp_path):
    pytest.importorskip("ray")
    process = start(tiny_config, tmp_path / "one", ROUNDS)
    assert process.wait(300) == 0, process.communicate()[0]

    stopped = start(tiny_config, tmp_path / "many", ROUNDS, "--on=ray")
    until(lambda: rounds_in(tmp_path / "many") >= 5)
    os.kill(workers()[0], signal.SIGKILL)
    before = rounds_in(tmp_path / "many")
    until(lambda: rounds_in(tmp_path / "many") >= before + 5)
    stopped.send_signal(signal.SIGINT)
    text = stopped.communicate(timeout=120)[0]
    assert stopped.returncode == 128 + signal.SIGINT, text
    assert "stopped by SIGINT; finished work is saved in" in text
    assert list((tmp_path / "many").glob("*/metrics.jsonl"))

    again = start(tiny_config, tmp_path / "many", ROUNDS, "--on=ray")
    text = again.communicate(timeout=300)[0]
    assert again.returncode == 0, text
    for method in ("local", "fedtgp"):
        assert metrics(tmp_path / "many", method) == metrics(tmp_path / "one", method)
    assert (tmp_path / "many" / "trials.csv").read_text() == (
        tmp_path / "one" / "trials.csv"
    ).read_text()


LISTENING = """
import os
from fedjax_ht.lab.runs.ray_cluster import open_ray
with open_ray(1):
    os.system("ss -tlnpH | grep -E 'gcs_server|raylet|ray::'")
"""


@pytest.mark.slow
def test_ports_are_at_the_loopback_address(tmp_path):
    pytest.importorskip("ray")
    command = [sys.executable, "-c", LISTENING]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ports = [line.split()[3] for line in text.splitlines()]
    assert ports and all("127.0.0.1" in port for port in ports), text


@pytest.mark.slow
def test_an_entry_of_a_users_own_trains_in_tasks(tiny_config, tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "ours_on_ray.py").write_text(OWN)
    config = tmp_path / "ours.py"
    config.write_text(tiny_config.read_text())
    process = start(
        config, tmp_path / "run", "--on=ray", "--methods=local,ours_on_ray:alone", "--trials=1"
    )
    text = process.communicate(timeout=300)[0]
    assert process.returncode == 0, text
    local, alone = (
        metrics(tmp_path / "run", name) for name in ("local", folder_of("ours_on_ray:alone"))
    )
    assert [row["accuracy"] for row in local] == [row["accuracy"] for row in alone]
