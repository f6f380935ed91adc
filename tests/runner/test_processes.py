"""Processes of one run meet at a coordinator, or end in one line."""

import socket
import subprocess
import sys

import pytest

from fedjax_ht.runner import processes
from tests.runs import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


ALONE = """
import functools, sys
from absl import app
from fedjax_ht.runner import cli, processes, run
run.join_processes = functools.partial(processes.join_processes, seconds=1)
app.run(run.main, flags_parser=cli.parse_flags)
"""


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_whose_others_do_not_come_ends_in_one_line(tiny_config, tmp_path, process):
    address = f"localhost:{free_port()}"
    arguments = [
        f"--config={tiny_config}",
        f"--workdir={tmp_path / 'run'}",
        f"--coordinator={address}",
    ]
    arguments += ["--processes=2", f"--process={process}"]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"error: the 2 processes have not met at {address} after 1 s (this is process {process}); "
        "start all of them "
        "with the same --coordinator, an address of process 0 that the others reach\n"
    )


@pytest.mark.parametrize(
    "coordinator", ["localhost", "localhost:", ":1234", "localhost:many", "localhost:70000"]
)
def test_a_coordinator_is_host_and_port(coordinator):
    with pytest.raises(ValueError, match=r"it must be HOST:PORT, such as localhost:1234"):
        processes.join_processes(coordinator, 2, 0)


def test_a_port_that_is_taken_is_named():
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=f"process 0 cannot listen on port {port} of this machine"
        ):
            processes.join_processes(f"localhost:{port}", 2, 0)


def test_the_time_that_is_waited_is_the_one_documented():
    assert f"{processes.JOIN_SECONDS} s" in (ROOT / "BUILD.md").read_text()
    assert f"{processes.JOIN_SECONDS} s" in (ROOT / "docs" / "reliability.md").read_text()
