"""Sets up the processes and devices of a run, before any computation."""

import os
import socket
import threading

import jax

JOIN_SECONDS = 60
"""How long the processes of a run wait for each other."""


class CoordinatorTimeout(OSError):
    """Not all processes reached the coordinator in time; threads that still wait for it die with
    this process. One line."""


def use_all_cores() -> None:
    """Makes one CPU device a core, at most eight; accelerators stay as they are.

    Whole clients then train in parallel instead of threads inside small products, which is up to
    1.4 times faster (benchmarks/results/zoo_cpu.md). It must come before any computation.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # a container may have fewer than the machine
        cores = len(os.sched_getaffinity(0))
    jax.config.update("jax_num_cpu_devices", min(cores, 8))


def join_processes(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    seconds: float = JOIN_SECONDS,
) -> None:
    """Connects this process to the others of a run, before any computation; without a coordinator
    it runs alone, on all cores.

    Args:
      coordinator: HOST:PORT of process 0.
      processes: number of processes.
      process: the number of this process, from 0.
      seconds: time to wait for the other processes, in seconds.

    Raises:
      ValueError: the three do not fit together.
      CoordinatorTimeout: not all processes have reached the coordinator in time.
      OSError: it cannot be reached, or process 0 cannot listen there.
    """
    if (coordinator, processes, process) == (None, None, None):
        use_all_cores()
        return
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
    _connect(coordinator, processes, process, seconds)


def _connect(coordinator: str, processes: int, process: int, seconds: float) -> None:
    """Waits up to `seconds` for the other processes; errors as of `join_processes`."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    failed: list[Exception] = []
    timeout = int(seconds) + 3600

    def connect() -> None:
        try:
            jax.distributed.initialize(
                coordinator, processes, process, initialization_timeout=timeout
            )
        except Exception as error:
            failed.append(error)

    # At its own timeout jax aborts the process from C++, with a core dump: so another thread waits
    # there, far longer than this one waits for it.
    waiting = threading.Thread(target=connect, daemon=True)
    waiting.start()
    waiting.join(seconds)
    if waiting.is_alive():
        raise CoordinatorTimeout(
            f"the {processes} processes have not met at {coordinator} after {seconds:g} s (this "
            f"is process {process}); start all of them with the same --coordinator, an address of "
            "process 0 that the others reach"
        )
    if failed:
        raise ConnectionError(f"coordinator {coordinator}: {failed[0]}") from failed[0]


def check_port(port: int) -> None:
    """Raises an OSError where no server can listen on a port of this machine: jax's would end in a
    segmentation fault."""
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
