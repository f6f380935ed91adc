"""A Ray cluster, `--on=ray`, that runs tasks. Ray is an extra, imported only in functions."""

import contextlib
import logging
import os
import secrets
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedjax_ht.check.packages import needing
from fedjax_ht.lab.runs.signals import NUMBERS

Event = tuple[Any, ...]
"""("row", label, row), ("warn", line) or ("stage", line) of a task."""
Report = Callable[[Event], bool]
"""Sends an event to the driver; returns True if the task should stop."""

RAY = (2, 52)  # the first version with tokens; also the minimum in pyproject.toml
RETRIES = 3  # restarts of a task whose process or machine died
ACCELERATORS = ("GPU", "TPU")  # as Ray names them


class Board:
    """An actor on the driver's machine: tasks post events, and read whether to stop."""

    def __init__(self):
        self.events: list[Event] = []
        self.is_stopping = False

    def post(self, event: Event) -> bool:
        self.events.append(event)
        return self.is_stopping

    def take(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def stop(self) -> None:
        self.is_stopping = True


class TaskDied(OSError):
    """The process or the machine of a task died too often. One line."""


def run_task(board: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a task's function in a process of the cluster, unless the run is already stopping."""
    import ray

    def report(event: Event) -> bool:
        return ray.get(board.post.remote(event))

    if report(("begun",)):
        return None
    return function(*arguments, report)


def resources_of(nodes: Sequence[dict[str, Any]], cores: int | None) -> dict[str, float]:
    """Returns the resources of a task.

    These are `cores` cores; without a number, an accelerator if the cluster has any, else one core.

    Args:
      nodes: the resources of each machine of the cluster.
      cores: the number of --task_cores, or None.

    Raises:
      ValueError: no machine has that many cores. One line.
    """
    if cores is not None:
        most = max((node.get("CPU", 0) for node in nodes), default=0)
        if not 1 <= cores <= most:
            raise ValueError(
                f"--task_cores is {cores}; it must be from 1 to {most:g}, the cores of the largest "
                "machine of the cluster"
            )
        return {"CPU": cores}
    for kind in ACCELERATORS:
        if any(node.get(kind, 0) >= 1 for node in nodes):
            return {"CPU": 1, kind: 1}
    return {"CPU": 1}


class RayCluster:
    """The cluster of `open_ray`, which trains tasks.

    Attributes:
      accelerated: whether a task has an accelerator.
    """

    def __init__(self, cores: int | None):
        import ray
        import ray.exceptions
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        needs = resources_of(nodes, cores)
        self.accelerated = len(needs) > 1
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._ray: Any = ray
        remote: Any = ray.remote
        self._board = remote(Board).options(num_cpus=0, scheduling_strategy=here).remote()
        options: dict[str, Any] = {"num_cpus": needs.pop("CPU"), "max_retries": RETRIES}
        if "GPU" in needs:
            options["num_gpus"] = needs.pop("GPU")
        if self.accelerated:  # a process keeps the first accelerator that it sees
            options["max_calls"] = 1
        self._task = remote(run_task).options(resources=needs, **options)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls `function(*arguments, report)` somewhere in the cluster; returns a handle."""
        return self._task.remote(self._board, function, *arguments)

    def finished(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        """Returns the handles of ended tasks, after waiting at most `seconds`."""
        return self._ray.wait(list(handles), num_returns=len(handles), timeout=seconds)[0]

    def result(self, handle: Any) -> Any:
        """Returns the result of an ended task, or raises its error; None if it was cancelled."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.TaskCancelledError:
            return None
        except errors.RayError as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise TaskDied(
                f"a task died {1 + RETRIES} times, and was not restarted: {reason}"
            ) from error

    def events(self) -> list[Event]:
        """Returns the events that tasks reported since the last call."""
        return self._asked(self._board.take)

    def stop(self) -> None:
        """Makes tasks end after their round; those that have not begun train nothing."""
        self._asked(self._board.stop)

    def _asked(self, method: Any) -> Any:
        """Returns the result of a method of the board."""
        try:
            return self._ray.get(method.remote())
        except self._ray.exceptions.RayError as error:  # e.g. a signal to a whole process group
            raise ConnectionError("the Ray cluster ended before its tasks") from error


@contextlib.contextmanager
def open_ray(cores: int | None) -> Iterator[RayCluster]:
    """Connects to the cluster at RAY_ADDRESS or one on this machine, or starts one here.

    Args:
      cores: number of cores of a task, see `resources_of`.

    Raises:
      ImportError: Ray is missing or too old. One line.
      ConnectionError: there is no cluster at RAY_ADDRESS, or none can be started. One line.
      ValueError: no machine has that many cores. One line.
    """
    with needing("--on=ray"):
        import ray
    if tuple(map(int, ray.__version__.split(".")[:2])) < RAY:
        raise ImportError(
            f"--on=ray needs ray {'.'.join(map(str, RAY))} or newer, which asks for a token; found "
            f"{ray.__version__}; run pip install -U 'fedjax_ht[ray]'"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    began = not ray.is_initialized()
    if began:
        handlers = {number: signal.getsignal(number) for number in NUMBERS}
        with warnings.catch_warnings():
            # Ray starts other programs; no fork continues with this process's threads
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            _connect(ray)
        for number, handler in handlers.items():  # Ray would end the driver on SIGTERM
            signal.signal(number, handler)
    try:
        yield RayCluster(cores)
    finally:
        if began:
            ray.shutdown()


def _connect(ray: Any) -> None:
    """Connects to a running cluster, or starts one that only this user can join."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    found = os.environ.get("RAY_ADDRESS") or ray._private.services.canonicalize_bootstrap_address(
        None
    )
    if found in (None, "local"):
        os.environ["RAY_AUTH_MODE"] = "token"
        # kept for later clusters of this process, since Ray reads it once
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # Ray's switch for clusters of one machine, which listen only at the loopback address
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
        ray._raylet.Config.initialize("")  # the mode was read at import
        options |= {"address": "local", "include_dashboard": False}
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises many types
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConnectionError(f"--on=ray: no Ray cluster can be used ({reason})") from error
