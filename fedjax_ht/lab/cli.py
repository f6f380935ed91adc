"""Parses command lines, and reports each user error in one line with exit code 2.

config_files.py parses --config.
"""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from absl import flags

from fedjax_ht.check.names import unknown
from fedjax_ht.core.user_code import user_modules_in

# Warnings only: jax logs much at INFO, which a user's own --verbosity=0 shows
QUIET = "--verbosity=-1"
SEE_HELP = "`--help` shows the flags"
TRUST = "Run the code that the run's config.json names: module:function, and its config file."


class BadConfigFile(Exception):
    """A config file is invalid. One line."""


def fail(error: Exception, code: int = 2, at_once: bool = False) -> NoReturn:
    """Prints an error as one line and ends the program.

    Args:
      error: the error to print.
      code: the exit code; 2 for invalid input.
      at_once: True exits without cleanup. Threads that still wait for resources of this process
        would otherwise print errors.
    """
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    if at_once:
        os._exit(code)
    sys.exit(code)


def parse_flags(arguments: list[str], takes_words: bool = False) -> list[str]:
    """Parses a command line.

    A mistake in it, or in a config file or override, ends the program with a one-line error.

    Args:
      arguments: the program's name and its arguments.
      takes_words: True for a command that takes positional arguments besides flags.

    Returns:
      The program's name and the positional arguments.
    """
    try:
        rest = flags.FLAGS([arguments[0], QUIET, *arguments[1:]])
    except flags.UnrecognizedFlagError as error:
        fail(ValueError(unknown_flag(error.flagname, error.flagvalue or "")))
    except flags.IllegalFlagValueError as error:
        # absl passes on what Python's int() says
        name, is_int, value = str(error).partition(": invalid literal for int() with base 10: ")
        fail(ValueError(f"{name}: it is {value}; it must be an integer") if is_int else error)
    except (BadConfigFile, flags.Error, ValueError, TypeError, OSError) as error:
        fail(error)
    if len(rest) > 1 and not takes_words:
        fail(ValueError(f"unexpected argument {rest[1]!r}; {_meant_by(rest[1])}"))
    return rest


def _meant_by(argument: str) -> str:
    """Returns a suggestion for an argument without the name of a flag."""
    takes_config = "config" in flags.FLAGS and flags.FLAGS["config"].value is None
    if takes_config and "=" not in argument.partition(":")[0]:
        return f"did you mean --config={argument}?"
    return "flags are written --name=value"


def config_folder(named: str) -> str:
    """Returns the folder of "FILE[:ARGUMENT]", which may hold a config's own modules."""
    return str(Path(named.partition(":")[0]).resolve().parent)


def orderly_main(main: Callable[[list[str]], None]) -> Callable[[list[str]], None]:
    """Wraps a command's main so that a user error ends it with one line.

    A "module:function" may name a module in the folder of --config's file.
    """

    @functools.wraps(main)
    def wrapped(arguments: list[str]) -> None:
        named: Any = flags.FLAGS["config"].value if "config" in flags.FLAGS else None
        folders = [] if named is None else [config_folder(named.name)]
        try:
            with user_modules_in(*folders):
                main(arguments)
        except (ValueError, OSError, ImportError) as error:
            fail(error)

    return wrapped


def unknown_flag(name: str, argument: str) -> str:
    """Returns a suggestion for an unknown flag `name`, written as `argument`.

    Commands with --config ask its `config_files.ConfigParser`, which knows the fields.
    """
    if "config" in flags.FLAGS:
        parser: Any = flags.FLAGS["config"].parser  # absl declares only the base class of parsers
        return parser.unknown_flag(name, argument)
    return unknown("flag", name, list(flags.FLAGS), SEE_HELP)
