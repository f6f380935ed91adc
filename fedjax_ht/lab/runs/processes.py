"""Sets up the processes and devices of a run, before any computation."""

import os
import socket
import threading
from collections.abc import Mapping
from typing import NamedTuple

import jax

from fedjax_ht.core.mesh import found_devices

JOIN_SECONDS = 60
"""Seconds for which the processes of a run wait for each other."""


class CoordinatorTimeout(OSError):
    """Not all processes reached the coordinator in time. One line.

    Threads that still wait for it end with this process.
    """


class Launch(NamedTuple):
    """The processes of one run, as their launcher describes them in each environment.

    Attributes:
      launcher: name of the launcher, for messages.
      coordinator: HOST:PORT of process 0; None if JAX gets it from the launcher.
      processes: number of processes.
      process: the index of this process, from 0.
    """

    launcher: str
    coordinator: str | None
    processes: int
    process: int


LAUNCHERS = (
    ("JAX_NUM_PROCESSES", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", ""),
    ("Kubernetes", "JAX_NUM_PROCESSES", "JOB_COMPLETION_INDEX", ""),
    # srun sets these for the tasks of a step. A batch script or a shell of salloc is one process,
    # although its job has several tasks.
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST"),
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri"),
)
"""Launchers and their variables: the number of processes, the index of this one, and the one from
which JAX finds the coordinator."""


def detected(environment: Mapping[str, str]) -> Launch | None:
    """Returns the launch to which this process belongs; None for a process alone.

    Args:
      environment: the variables of this process. JAX_COORDINATOR_ADDRESS overrides a launcher's
        coordinator.

    Raises:
      ValueError: there are several processes, and their coordinator is unknown. One line.
    """
    coordinator = environment.get("JAX_COORDINATOR_ADDRESS")
    for launcher, count, number, place in LAUNCHERS:
        processes, process = environment.get(count, ""), environment.get(number, "")
        if not (processes.isdecimal() and process.isdecimal() and int(processes) > 1):
            continue
        if coordinator is None and place not in environment:
            raise ValueError(
                f"{launcher} started {processes} processes, but none knows the first one's "
                "address; set JAX_COORDINATOR_ADDRESS=HOST:PORT, or give --processes=1 if each "
                "is a separate run"
            )
        return Launch(launcher, coordinator, int(processes), int(process))
    return None


def local_devices(environment: Mapping[str, str]) -> list[int] | None:
    """Returns the accelerators of a `detected` process: the only visible one, or None.

    With None, JAX takes the accelerator with the process's index on its machine under srun and
    mpirun, and otherwise all.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    return [0] if visible and "," not in visible else None


def use_all_cores() -> None:
    """Makes each core a CPU device, at most eight; accelerators are not affected.

    Several devices train whole clients in parallel, instead of using threads in small products.
    Long runs are up to 1.4 times faster (benchmarks/results/zoo_cpu.md). It must come before any
    computation.

    Raises:
      ValueError: JAX finds no device of the requested platform.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # a container may have fewer than the machine
        cores = len(os.sched_getaffinity(0))
    jax.config.update("jax_num_cpu_devices", min(cores, 8))
    found_devices()


def use_cpu() -> None:
    """Leaves the accelerators of this machine to other processes. It precedes any computation."""
    jax.config.update("jax_platforms", "cpu")
    use_all_cores()


def join_processes(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    seconds: float = JOIN_SECONDS,
) -> None:
    """Connects this process to the others of a run, before any computation.

    The arguments name the processes; without arguments, `detected` finds them. Without either, the
    process runs alone, on all cores.

    Args:
      coordinator: HOST:PORT of process 0.
      processes: number of processes; 1 without the others runs alone under any launcher.
      process: the index of this process, from 0.
      seconds: time to wait for the other processes, in seconds.

    Raises:
      ValueError: the three are inconsistent, or the coordinator of a launch is unknown.
      CoordinatorTimeout: not all processes have reached the coordinator in time.
      OSError: it cannot be reached, or process 0 cannot listen there.
    """
    named = coordinator, processes, process
    if named == (None, None, None):
        launch = detected(os.environ)
        if launch is not None and launch.coordinator is not None:
            launch = _checked(*launch[1:])
    elif named == (None, 1, None):
        launch = None
    else:
        launch = _checked(*named)
    if launch is None:
        use_all_cores()
    else:
        _connect(launch, seconds)


def _checked(coordinator: str | None, processes: int | None, process: int | None) -> Launch:
    """Returns the processes that the arguments of `join_processes` name; raises as it does."""
    if coordinator is None or processes is None or process is None or not 0 <= process < processes:
        raise ValueError(
            f"coordinator={coordinator}, processes={processes}, process={process}: give all "
            "three, process from 0 to processes - 1"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(
            f"coordinator is {coordinator!r}; it must be HOST:PORT, such as localhost:1234"
        )
    if process == 0:
        check_port(int(port))
    return Launch("--coordinator", coordinator, processes, process)


def _connect(launch: Launch, seconds: float) -> None:
    """Waits up to `seconds` for the other processes; raises as `join_processes` does."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    failed: list[Exception] = []
    timeout = int(seconds) + 3600
    # by default JAX listens on all interfaces, without authentication
    own = (launch.coordinator or "").startswith(("127.0.0.1:", "localhost:"))

    def connect() -> None:
        try:
            jax.distributed.initialize(
                launch.coordinator,
                launch.processes,
                launch.process,
                local_device_ids=local_devices(os.environ),
                initialization_timeout=timeout,
                coordinator_bind_address=launch.coordinator if own else None,
            )
        except Exception as error:
            failed.append(error)

    # At its own timeout JAX aborts the process from C++, with a core dump. It therefore waits in
    # another thread, with a much longer timeout than this one.
    waiting = threading.Thread(target=connect, daemon=True)
    waiting.start()
    waiting.join(seconds)
    if waiting.is_alive():
        raise CoordinatorTimeout(_not_met(launch, seconds))
    if failed:
        place = launch.coordinator or f"of {launch.launcher}"
        raise ConnectionError(f"coordinator {place}: {failed[0]}") from failed[0]


def _not_met(launch: Launch, seconds: float) -> str:
    if launch.coordinator is None:
        return (
            f"the {launch.processes} processes of {launch.launcher} have not met after "
            f"{seconds:g} s (this is process {launch.process}); set JAX_COORDINATOR_ADDRESS to a "
            "HOST:PORT of process 0 that the others reach, or give --processes=1 if each is a "
            "separate run"
        )
    return (
        f"the {launch.processes} processes have not met at {launch.coordinator} after "
        f"{seconds:g} s (this is process {launch.process}); start all of them with the same "
        "--coordinator, an address of process 0 that the others reach"
    )


def check_port(port: int) -> None:
    """Raises OSError if no server can listen on a port of this machine.

    JAX's server would end in a segmentation fault.
    """
    family, everywhere = socket.AF_INET, "0.0.0.0"
    if socket.has_ipv6:
        family, everywhere = socket.AF_INET6, "::"
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((everywhere, port))
        except OSError as error:
            raise OSError(
                f"process 0 cannot listen on port {port} of this machine: {error.strerror}"
            ) from error
