"""Runs `fedjax-ht COMMAND`, the library's only program.

In a clone, `python -m experiments.main` is the same as `fedjax-ht run`.
"""

import contextlib
import errno
import functools
import gc
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from fedjax_ht.lab.runs.signals import end_on_signals
from fedjax_ht.lab.version import library_version

HELP = {"-h", "-help", "--help", "-helpshort", "--helpshort"}


class Command(NamedTuple):
    """A command of the program.

    Attributes:
      about: a description for the overview.
      takes_words: True for a command that takes positional arguments besides flags.
      module: name of the module that defines its `main`; "" for that of its name in lab/runs.
    """

    about: str
    takes_words: bool = False
    module: str = ""


COMMANDS = {
    "run": Command("train what a config describes"),
    "compare": Command("train several methods on one split, and say what each cost"),
    "sweep": Command("search a method's settings on validation sets"),
    "evaluate": Command("score one client's trained model, or export it; or tuned clients"),
    "report": Command("show a run again, and rewrite its tables, pictures and page"),
    "merge": Command("merge entries trained in several folders into one run", takes_words=True),
    "data": Command(
        "download data sets, list those that can be read, and show one", takes_words=True
    ),
    "deploy": Command(
        "split, server or client: a federation whose clients are elsewhere",
        takes_words=True,
        module="fedjax_ht.deploy.command",
    ),
    "list": Command(
        "list methods, models, groups, partitions, datasets, configs, generators, or config fields",
        takes_words=True,
    ),
}


def main(command: str | None = None) -> None:
    """Runs a command on the command line's arguments.

    Args:
      command: the command's name; by default the first argument.
    """
    end_on_signals()  # before anything that takes time to import
    # Traced programs are many long-lived objects. A collection after every 700 of them (2,000 from
    # Python 3.13 on) takes a tenth of a short run.
    gc.set_threshold(20_000, 20, 50)
    print_any_text()
    arguments = sys.argv[1:] if command is None else [command, *sys.argv[1:]]
    if not arguments or arguments[0] in ("help", "-h", "-help", "--help"):
        show(overview())
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--version":
        show(library_version())
        sys.exit(0)
    from absl import app

    from fedjax_ht.check.names import printable, unknown
    from fedjax_ht.check.packages import require
    from fedjax_ht.lab.cli import fail, orderly_main, parse_flags

    name, *rest = arguments
    if name not in COMMANDS:
        fail(ValueError(unknown("command", name, COMMANDS)))
    try:
        require(f"fedjax-ht {name}", "run")
    except ImportError as error:
        fail(error)
    module = importlib.import_module(COMMANDS[name].module or f"fedjax_ht.lab.runs.{name}")
    if "jax" in sys.modules:  # not every command needs it
        from fedjax_ht.core.numerics import use_standard_numerics

        use_standard_numerics()
    if HELP & set(rest):
        show(usage(name, module))
        sys.exit(0)
    parse = functools.partial(parse_flags, takes_words=COMMANDS[name].takes_words)
    out: Any = _Printable(sys.stdout, printable)
    err: Any = _Printable(sys.stderr, printable)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        app.run(orderly_main(module.main), argv=[f"fedjax-ht {name}", *rest], flags_parser=parse)


class _Printable:
    """A stream that escapes control characters, so that text cannot steer the terminal.

    Labels, class names and messages may come from untrusted files. Once its reader is gone, text is
    dropped, so that a run does not end with the `tee` or the terminal that shows it.
    """

    def __init__(self, stream: Any, printable: Callable[[str], str]):
        self._stream, self._printable = stream, printable

    def write(self, text: str) -> int:
        with to_a_reader(self._stream):
            self._stream.write(self._printable(text))
        return len(text)

    def flush(self) -> None:
        with to_a_reader(self._stream):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_any_text() -> None:
    """Escapes characters that the locale cannot encode, as Python's standard error does.

    Names of classes and files may hold any character.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def show(text: str) -> None:
    """Prints the output of a command."""
    with to_a_reader(sys.stdout):
        print(text, flush=True)


@contextlib.contextmanager
def to_a_reader(stream: Any) -> Iterator[None]:
    """Writes to a stream; without a reader, redirects its file to the null device.

    The reader may be `head`, which has seen enough, or a terminal that was closed.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def overview() -> str:
    """Returns the text of `fedjax-ht --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.about}" for name, command in COMMANDS.items()]
    usage_line = "usage: fedjax-ht COMMAND [--help] [--FLAG=VALUE ...]"
    return "\n".join([usage_line, "", *lines, "", "fedjax-ht run --config=quickstart"])


def usage(command: str, module: ModuleType) -> str:
    """Returns the text of a command's --help: its module's docstring and flags."""
    from absl import flags

    ours = []
    for name, module_flags in flags.FLAGS.flags_by_module_dict().items():
        if name.startswith(("fedjax_ht.lab", "fedjax_ht.deploy")):
            ours += module_flags
    lines = []
    for flag in sorted(ours, key=lambda flag: flag.name):
        default = "" if flag.default in (None, "", [], 0) else f" [{flag.default}]"
        lines.append(f"  --{flag.name}: {flag.help}{default}")
    title = f"fedjax-ht {command}: {COMMANDS[command].about}"
    return "\n".join([title, "", (module.__doc__ or "").strip(), "", *lines])
