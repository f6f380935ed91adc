"""fedjax-ht COMMAND: one program for all that is done with experiments; python -m experiments.main
is fedjax-ht run."""

import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from fedjax_ht.runner.signals import end_on_signals


class Command(NamedTuple):
    """A command's module, which has `main`, in this package unless it says which; what it does; and
    whether it takes words beside flags."""

    module: str
    about: str
    words: bool = False


COMMANDS = {
    "run": Command("main", "train what a config describes"),
    "compare": Command("compare", "train several methods on one split, and say what each cost"),
    "sweep": Command("sweep", "search a method's settings on validation sets"),
    "evaluate": Command("evaluate", "score one client's trained model, or export it"),
    "report": Command("show", "show a run again, and write its tables, pictures and page anew"),
    "data": Command("data", "download data sets, and say which there are", words=True),
    "deploy": Command(
        "fedjax_ht.deploy.command",
        "split, server or client: a federation whose clients are elsewhere",
        words=True,
    ),
    "list": Command(
        "listing",
        "list methods, models, groups, partitions, datasets, configs, generators",
        words=True,
    ),
}


def main(command: str | None = None) -> None:
    """Runs the command that the first word of the command line names, or the one given, on the
    words behind it."""
    end_on_signals()  # before anything that takes time to import
    words = sys.argv[1:] if command is None else [command, *sys.argv[1:]]
    if not words or words[0] in ("help", "-h", "-help", "--help"):
        print(overview())
        sys.exit(0 if words else 2)
    if words[0] == "--version":
        print(importlib.metadata.version("fedjax_ht"))
        sys.exit(0)
    if words[0] not in COMMANDS:
        from fedjax_ht.core.names import unknown
        from fedjax_ht.runner.cli import fail

        fail(ValueError(unknown("command", words[0], COMMANDS)))
    start(words[0], words[1:])


def start(command: str, words: Sequence[str]) -> None:
    """Parses a command's flags and calls its `main`."""
    from absl import app

    from fedjax_ht.runner.cli import parse_flags, parse_words

    name = COMMANDS[command].module
    module = importlib.import_module(name if "." in name else f"fedjax_ht.runner.{name}")
    if {"-h", "-help", "--help", "-helpshort", "--helpshort"} & set(words):
        print(usage(command, module))
        sys.exit(0)
    parse = parse_words if COMMANDS[command].words else parse_flags
    app.run(module.main, argv=[f"fedjax-ht {command}", *words], flags_parser=parse)


def overview() -> str:
    """What `fedjax-ht --help` says."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.about}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fedjax-ht COMMAND [--help] [--FLAG=VALUE ...]",
            "",
            *lines,
            "",
            "fedjax-ht run --config=quickstart",
        ]
    )


def usage(command: str, module: ModuleType) -> str:
    """What a command's --help says: its module's text and flags."""
    from absl import flags

    defined = flags.FLAGS.flags_by_module_dict().items()
    ours = [
        flag
        for name, found in defined
        if name.startswith(("fedjax_ht.runner", "fedjax_ht.deploy"))
        for flag in found
    ]
    lines = [
        f"  --{flag.name}: {flag.help}{shown(flag.default)}"
        for flag in sorted(ours, key=lambda flag: flag.name)
    ]
    return "\n".join(
        [f"fedjax-ht {command}: {COMMANDS[command].about}", "", module.__doc__.strip(), "", *lines]
    )


def shown(default: object) -> str:
    return "" if default in (None, "", [], 0) else f" [{default}]"


if __name__ == "__main__":
    main()
