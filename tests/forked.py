"""Commands in processes forked from one that has imported what they all need: each starts seconds
earlier than a fresh Python, which on two cores is minutes of the suite. What is imported here
defines no flags and touches no device."""

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_SHARED = ("fedjax_ht.lab.runs.train", "fedjax_ht.lab.generators", "scipy.stats")


class Forks:
    """A process that waits for commands.

    Args:
      cwd: the folder in which they run.
      env: their environment.
      shared: further modules that they need; neither these nor what they import define flags.
    """

    def __init__(self, cwd: Path, env: dict[str, str], shared: Sequence[str] = ()):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", *shared], cwd=cwd, env=env, **pipes
        )

    def run(
        self,
        module: str,
        *arguments: str,
        timeout: int = 240,
        cwd: Path | None = None,
        drawn: bool = True,
    ) -> subprocess.CompletedProcess:
        """`python -m MODULE ARGUMENTS`, or `python -c CODE` for the module "-c", when it has ended;
        after so many seconds the alarm's signal ends it. It runs in the folder `cwd`, or else in
        the one of all. Without `drawn` its figures are made, but are blank as files."""
        folder = None if cwd is None else str(cwd)
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            self._server.stdin.write(
                json.dumps([timeout, folder, drawn, module, arguments, out.name, err.name]) + "\n"
            )
            self._server.stdin.flush()
            code = int(self._server.stdout.readline())
            return subprocess.CompletedProcess([module, *arguments], code, out.read(), err.read())

    def close(self) -> None:
        self._server.stdin.close()
        self._server.wait()


def _serve(shared: Sequence[str]) -> None:
    for name in (*_SHARED, *shared):
        __import__(name)
    # Python ends with two searches for garbage. In a forked process they would copy every page of
    # what was imported, a processor second for a command that takes a tenth of one.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return _run(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def blank(figure, kind: str) -> bytes:
    """Stands for `report.plots.rendered`, which takes longer than a tiny run."""
    return b"<svg></svg>"


def _run(
    timeout: int, folder: str | None, drawn: bool, module: str, arguments: list[str], *outputs: str
) -> None:
    signal.alarm(timeout)
    if folder is not None:
        os.chdir(folder)
    if not drawn:
        from fedjax_ht.lab.report import plots

        plots.rendered = blank
    for number, file in enumerate(("/dev/null", *outputs)):
        os.dup2(os.open(file, os.O_RDWR), number)
    sys.argv = [module, *arguments]
    if module == "-c":
        exec(arguments[0], {})
        return
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
