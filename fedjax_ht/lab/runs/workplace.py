"""Puts the process of a task (tasks.py) in the place of the program that started the run: folders,
devices, a user's own code."""

import contextlib
import functools
import hashlib
import os
import socket
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from fedjax_ht.core.compiling import enable_compilation_cache
from fedjax_ht.core.numerics import use_standard_numerics
from fedjax_ht.core.user_code import module_folders, user_modules_in
from fedjax_ht.lab.config.config_files import read_config_file
from fedjax_ht.lab.runs.build import Experiment
from fedjax_ht.lab.runs.course import Listeners
from fedjax_ht.lab.runs.own_methods import own_names

T = TypeVar("T")

SEEN = 15.0
"""Seconds in which a new file is seen on all machines: file systems of networks remember for a
while that there was none."""


Event = tuple[Any, ...]
"""("row", label, row), ("warn", line) or ("stage", line) of a task."""
Report = Callable[[Event], bool]
"""Sends an event to the driver; returns True where the task is to stop."""


class Workplace(NamedTuple):
    """The place of the driver, in which its tasks work.

    Attributes:
      workdir: the run's folder.
      stamp: checksum of its config.json.
      directory: current folder of the driver, from which a config may name files.
      folders: folders of the modules of a user's own.
      config_file: "FILE[:ARGUMENT]" that registers the config's own methods, or None.
      devices: number of CPU devices; None computes on the accelerator of the task.
    """

    workdir: Path
    stamp: str
    directory: str
    folders: tuple[str, ...]
    config_file: str | None
    devices: int | None


def workplace(
    experiment: Experiment, workdir: Path, config_file: str | None, accelerated: bool
) -> Workplace:
    """Returns the place of the tasks of a run, whose config.json is written.

    Raises:
      ValueError: a method or partition is registered in this process alone. One line.
    """
    names = own_names(experiment)
    registered = names["own_methods"] + names["own_partitions"]
    if registered and config_file is None:
        raise ValueError(
            f"{registered[0]} is registered in this process alone, which the tasks of a cluster "
            "do not see; name it as module:function, or register it in the file of --config"
        )
    return Workplace(
        workdir=workdir.absolute(),
        stamp=_stamp(workdir),
        directory=os.getcwd(),
        folders=tuple(map(os.path.abspath, module_folders())),
        config_file=config_file if registered else None,
        devices=None if accelerated else len(jax.devices()),
    )


def _stamp(workdir: Path) -> str:
    path = workdir / "config.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


@contextlib.contextmanager
def in_place(place: Workplace, report: Report) -> Iterator[Listeners]:
    """Sets up the process of a task, and yields the functions that tell the driver.

    Raises:
      OSError: this machine does not see the run's folder. One line.
    """
    end = time.monotonic() + SEEN
    while _stamp(place.workdir) != place.stamp or not os.path.isdir(place.directory):
        if time.monotonic() > end:
            raise FileNotFoundError(
                f"{socket.gethostname()} does not see {place.workdir} as the machine does that "
                "started the run; --workdir and the current folder must lie where all machines of "
                "the cluster see them"
            )
        time.sleep(0.5)
    os.chdir(place.directory)
    _prepare_process(place.devices)

    def warn(line: str) -> None:
        report(("warn", line))

    def stage(line: str) -> None:
        report(("stage", f"{line}, on {socket.gethostname()}"))

    with user_modules_in(*place.folders):
        _register(place.config_file)
        yield Listeners(None, warn, stage)


@functools.lru_cache(maxsize=1)
def kept(make: Callable[..., T], *of: Hashable) -> T:
    """Returns `make(*of)`, which the tasks of this process share that ask for the same, so that a
    process builds and compiles once for many runs or points. The last one alone is kept, since it
    holds samples and programs."""
    return make(*of)


@functools.cache  # a process does several tasks; devices are chosen before any computation
def _prepare_process(devices: int | None) -> None:
    if devices is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
    use_standard_numerics()
    enable_compilation_cache(least_seconds=0.0)


@functools.cache
def _register(config_file: str | None) -> None:
    if config_file is not None:
        read_config_file(config_file)
