"""Parses command lines, and tells every mistake in one line, exit code 2; --config is
config_files.py's."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from absl import flags

from fedjax_ht.core.names import unknown

if TYPE_CHECKING:  # benchmarks on machines without ml_collections use this module, too
    from ml_collections import ConfigDict

# warnings only: orbax and jax narrate at INFO, which a user's own --verbosity=0 shows
QUIET = "--verbosity=-1"
TRUST = "Import the code that the run's config.json names as module:function, and run it."


class BadConfigFile(Exception):
    """A config file, or what the command line sets in it, is wrong. One line."""


def fail(error: Exception, code: int = 2, at_once: bool = False) -> NoReturn:
    """Prints the error as one line and exits with a code: 2 for what was wrong from the start;
    `at_once` leaves no time to other threads, for which what they wait for ends, and which say
    so."""
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    if at_once:
        os._exit(code)
    sys.exit(code)


def parse_flags(arguments: list[str]) -> list[str]:
    """Parses the command line; a mistake in it, or in a config file or override that it names, is
    one line."""
    rest = parse_words(arguments)
    if len(rest) > 1:
        fail(ValueError(f"unexpected argument {rest[1]!r}; flags are written --name=value"))
    return rest


def parse_words(arguments: list[str]) -> list[str]:
    """The same, of a command that takes words beside flags."""
    try:
        return flags.FLAGS([arguments[0], QUIET, *arguments[1:]])
    except (KeyError, AttributeError) as error:
        fail(ValueError(words(error)))
    except flags.UnrecognizedFlagError as error:
        fail(ValueError(unknown_flag(error.flagname, error.flagvalue or "")))
    except (BadConfigFile, flags.Error, ValueError, TypeError, OSError) as error:
        fail(error)


def unknown_flag(name: str, argument: str) -> str:
    """Says what to write instead of an `argument` with an unknown flag: of a config's field
    --config.FIELD."""
    takes_config = "config" in flags.FLAGS
    fields = []
    if takes_config:
        from fedjax_ht.configs.base import base_config  # needs ml_collections, as --config does

        fields = list(paths(flags.FLAGS["config"].value or base_config()))
    if name in fields:
        setting = f"--config.{name}={argument.partition('=')[2] or 'VALUE'}"
        return f"unknown flag --{name}; {name} is a field of the config: write {setting}"
    there = "`--help` shows the flags"
    if takes_config:
        there += ", and a field of the config is set by --config.FIELD=VALUE"
    return unknown("flag", name, [*flags.FLAGS, *fields], there)


def words(error: BaseException) -> str:
    """What an error says; ours, of bad values and files, say it without their kind."""
    said: object = error
    # str() of a KeyError has escapes
    while isinstance(said, KeyError | AttributeError) and said.args:
        said = said.args[0]
    own = type(error) in (ValueError, FileNotFoundError) and str(error)
    return str(error) if own else f"{type(error).__name__}: {said}"


def paths(config: "ConfigDict", prefix: str = "") -> Iterator[str]:
    """Of all fields and sections, "training" and "training.epochs"."""
    for name in config:
        yield f"{prefix}{name}"
        if isinstance(config[name], type(config)):
            yield from paths(config[name], f"{prefix}{name}.")
