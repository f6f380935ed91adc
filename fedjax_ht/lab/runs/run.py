"""Runs an experiment: fedjax-ht run --config=quickstart [--config.rounds=50].

The same command resumes a stopped run.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from absl import flags
from tqdm import tqdm

from fedjax_ht.check.packages import require
from fedjax_ht.core.compiling import enable_compilation_cache
from fedjax_ht.lab.cli import fail
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.config_files import absolute, define_config
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.report.document import Document
from fedjax_ht.lab.report.results import Aim
from fedjax_ht.lab.runs.processes import CoordinatorTimeout, join_processes, use_cpu
from fedjax_ht.lab.runs.progress import Progress, print_files, print_result, tell
from fedjax_ht.lab.runs.ray_cluster import RayCluster, open_ray
from fedjax_ht.lab.runs.signals import Interrupted
from fedjax_ht.lab.runs.tasks import Tasks
from fedjax_ht.lab.runs.train import GaveUp, Result, Unwritable, train_and_evaluate

# compare and sweep share these flags and functions
_CONFIG = define_config()
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "host:port of the first of several processes."
)
_PROCESSES = flags.DEFINE_integer("processes", None, "The number of processes.")
_PROCESS = flags.DEFINE_integer("process", None, "The number of this process, from 0.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "The folder to write to; by default one in checkpoints/runs."
)
_ON = flags.DEFINE_enum(
    "on", None, ["ray"], "Train each run in a task of this cluster; by default in this process."
)
_TASK_CORES = flags.DEFINE_integer(
    "task_cores",
    None,
    "With --on: cores per task; by default it has an accelerator if the cluster has any, else "
    "one core.",
)


def main(_) -> None:
    config, name = configured()
    workdir = chosen_workdir(name, config)
    with orderly(workdir) as tasks:
        result = execute(config, workdir, tasks=tasks)
    print_files(result.files)


def configured() -> tuple[Config, str]:
    """Returns the config that the command line names, and a name for it."""
    if _CONFIG.value is None:
        raise ValueError("no --config; for example --config=quickstart")
    return typed_config(_CONFIG.value.fields), run_name(_CONFIG.value.name)


def refuse_method_flags(by: str, entries: str) -> None:
    """Rejects flags of the config's method beside `by`: only the flag `entries` has options."""
    for name in flags.FLAGS:
        if name.startswith("config.method.") and flags.FLAGS[name].present:
            raise ValueError(
                f"--{name} is not read with --{by}; write the options as --{entries}=NAME:KEY=VALUE"
            )


def run_name(config: str) -> str:
    """Returns a run's name: "quickstart-fedproto" for "quickstart.py:method=fedproto"."""
    file, _, argument = config.partition(":")
    values = [part.rpartition("=")[2] for part in argument.split(",") if part]
    return "-".join([Path(file).stem, *values])


def config_file() -> str | None:
    """Returns "FILE[:ARGUMENT]" of --config; None if called from Python."""
    named = _CONFIG.value if flags.FLAGS.is_parsed() else None
    return absolute(named.name) if named else None


def chosen_workdir(name: str, config: Config) -> Path:
    """Returns the folder of --workdir, or a default with this name and the config's seeds."""
    if _WORKDIR.value == "":  # an unset variable of a script
        raise ValueError("--workdir is empty; name the folder to write to, or leave the flag out")
    trials = f"-trials{config.trials}" if config.trials > 1 else ""
    return Path(_WORKDIR.value or f"checkpoints/runs/{name}-seed{config.seed}{trials}")


def execute(
    config: Config,
    workdir: Path,
    aim: Aim | None = None,
    *,
    tasks: Tasks | None = None,
) -> Result:
    """Calls `train_and_evaluate` with progress bars, in an `orderly` program.

    It prints the result before anything is drawn.
    """
    shown = Progress(config.rounds, config.trials, side_by_side=tasks is not None)
    with contextlib.closing(shown) as progress:

        def show_result(result: Document) -> None:
            progress.close()  # otherwise the last bar would be drawn again below the table
            print_result(result)

        return train_and_evaluate(
            config,
            workdir,
            progress_fn=progress,
            warn=tqdm.write,
            stage=tell,
            aim=aim,
            show_result=show_result,
            config_file=config_file(),
            tasks=tasks,
        )


def end_interrupted(stop: Interrupted, workdir: Path) -> NoReturn:
    """Ends the program of a run that a signal stopped, with exit code 128 + the signal's number."""
    print(
        f"{stop}; finished work is saved in {workdir}. The same command continues from there.",
        file=sys.stderr,
    )
    sys.exit(128 + stop.signal)


@contextlib.contextmanager
def orderly(workdir: Path) -> Iterator[Tasks | None]:
    """Caches programs, joins a run's processes, and turns errors into one line and an exit code.

    Yields the tasks of --on; None without it. The exit code is 2 for a user error, 1 for a failure
    after the start of the run, and 128 + the signal's number for a signal.
    """
    enable_compilation_cache()
    try:
        with _cluster() as tasks:
            yield tasks
    except Interrupted as stop:
        end_interrupted(stop, workdir)
    except CoordinatorTimeout as error:
        fail(error, at_once=True)
    except (Unwritable, GaveUp) as error:
        fail(error, code=1)


@contextlib.contextmanager
def _cluster() -> Iterator[Tasks | None]:
    """Joins the processes that the flags name; yields the tasks of --on.

    Their cluster lasts for the block.
    """
    meeting = _COORDINATOR.value, _PROCESSES.value, _PROCESS.value
    if _ON.value is None:
        if _TASK_CORES.value is not None:
            raise ValueError("--task_cores is given without --on; a cluster needs --on=ray")
        join_processes(*meeting)
        yield None
        return
    if meeting != (None, None, None):
        raise ValueError("--on is given with --coordinator; a cluster starts its own processes")
    require("--on=ray", "ray")
    use_cpu()  # the tasks use the accelerators

    with contextlib.ExitStack() as stack:

        @functools.cache
        def open_cluster() -> RayCluster:
            return stack.enter_context(open_ray(_TASK_CORES.value))

        yield Tasks(open_cluster, config_file())
