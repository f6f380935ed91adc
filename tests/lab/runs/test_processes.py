"""Processes of one run meet at a coordinator, or end in one line."""

import socket

import pytest

from fedjax_ht.lab.runs import processes
from tests.deploy.processes import free_port
from tests.runs import ROOT

ALONE = """
import functools, sys
sys.argv = {}
from absl import app
from fedjax_ht.lab import cli
from fedjax_ht.lab.runs import processes, run
run.join_processes = functools.partial(processes.join_processes, seconds=1)
app.run(run.main, flags_parser=cli.parse_flags)
"""


@pytest.mark.parametrize("process", [0, 1])
def test_processes_whose_others_do_not_come_end_in_one_line(forks, tiny_config, tmp_path, process):
    """Process 0 waits at its own address, and process 1 at that of a process that never starts."""
    address = f"localhost:{free_port()}"
    arguments = ["fedjax-ht run", f"--config={tiny_config}", f"--workdir={tmp_path / 'run'}"]
    arguments += [f"--coordinator={address}", "--processes=2", f"--process={process}"]
    done = forks[0].run("-c", ALONE.format(arguments), timeout=60)
    line = (
        f"error: the 2 processes have not met at {address} after 1 s (this is process {process});"
    )
    assert done.returncode == 2 and done.stderr.startswith(line) and done.stderr.count("\n") == 1


SRUN = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
SRUN |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
MPIRUN |= {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.0.0.1:34911"}
JOB = {"JAX_COORDINATOR_ADDRESS": "first:1234", "JAX_NUM_PROCESSES": "4"}


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        (SRUN, ("srun", None, 2, 1)),
        (SRUN | {"JAX_COORDINATOR_ADDRESS": "here:1234"}, ("srun", "here:1234", 2, 1)),
        (MPIRUN, ("mpirun", None, 2, 0)),
        (JOB | {"JAX_PROCESS_ID": "0"}, ("JAX_NUM_PROCESSES", "first:1234", 4, 0)),
        (JOB | {"JOB_COMPLETION_INDEX": "3"}, ("Kubernetes", "first:1234", 4, 3)),
    ],
)
def test_processes_started_together_are_detected(environment, launch):
    assert processes.detected(environment) == launch


ARRAY = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
ALONE_BY = {
    "a job array": ARRAY,
    "a task of srun": SRUN | {"SLURM_STEP_NUM_TASKS": "1"},
    "a batch script of two tasks": {name: SRUN[name] for name in SRUN if "STEP" not in name},
    "one of mpirun": MPIRUN | {"OMPI_COMM_WORLD_SIZE": "1"},
    "an indexed job": {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"},
    "an address alone": {"JAX_COORDINATOR_ADDRESS": "first:1234"},
    "nothing": {},
}


@pytest.mark.parametrize("environment", ALONE_BY.values(), ids=ALONE_BY)
def test_what_is_started_alone_stays_alone(environment):
    assert processes.detected(environment) is None


def test_processes_without_a_coordinator_are_refused():
    newer = {name: MPIRUN[name] for name in MPIRUN if "WORLD" in name}
    with pytest.raises(ValueError, match=r"mpirun started 2 .* JAX_COORDINATOR_ADDRESS=HOST"):
        processes.detected(newer)


@pytest.mark.parametrize(
    ("coordinator", "listens"), [("localhost:1234", "localhost:1234"), ("node1:1234", None)]
)
def test_processes_of_one_machine_meet_at_the_loopback_address(monkeypatch, coordinator, listens):
    asked = {}
    monkeypatch.setattr("jax.distributed.initialize", lambda *_, **options: asked.update(options))
    processes._connect(processes.Launch("--coordinator", coordinator, 2, 0), 5)
    assert asked["coordinator_bind_address"] == listens


@pytest.fixture
def joining(monkeypatch):
    """Environment variables of srun, and what a process joins; None stands for all cores."""
    joined = []
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "_connect", lambda launch, seconds: joined.append(launch))
    monkeypatch.setattr(processes, "use_all_cores", lambda: joined.append(None))
    return joined


def test_flags_win_over_what_is_detected(joining):
    processes.join_processes(None, None, None)
    processes.join_processes(None, 1, None)
    processes.join_processes("localhost:1234", 3, 2)
    assert joining == [("srun", None, 2, 1), None, ("--coordinator", "localhost:1234", 3, 2)]


def test_a_process_takes_the_only_accelerator_that_it_sees():
    assert processes.local_devices({"CUDA_VISIBLE_DEVICES": "3"}) == [0]
    assert processes.local_devices({"CUDA_VISIBLE_DEVICES": "0,1"}) is None
    assert processes.local_devices({}) is None


@pytest.mark.parametrize(
    "coordinator", ["localhost", "localhost:", ":1234", "localhost:many", "localhost:70000"]
)
def test_a_coordinator_is_host_and_port(coordinator):
    with pytest.raises(ValueError, match=r"it must be HOST:PORT, such as localhost:1234"):
        processes.join_processes(coordinator, 2, 0)
    with pytest.raises(ValueError, match="give all three"):
        processes.join_processes("localhost:1", 2, None)


def test_a_port_that_is_taken_is_named():
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = f"process 0 cannot listen on port {port} of this machine"
        with pytest.raises(OSError, match=message):
            processes.join_processes(f"localhost:{port}", 2, 0)


def test_the_time_that_is_waited_is_the_one_documented():
    assert f"{processes.JOIN_SECONDS} s" in (ROOT / "BUILD.md").read_text()
    assert f"{processes.JOIN_SECONDS} s" in (ROOT / "docs" / "reliability.md").read_text()
