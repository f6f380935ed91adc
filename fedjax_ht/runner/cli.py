"""What the command lines share: --config, and one line for every mistake, exit code 2."""

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

from fedjax_ht.configs import shipped
from fedjax_ht.configs.base import base_config
from fedjax_ht.core.names import unknown, unknown_option

MODULE = "config_file"  # the name that a config file's module has
QUIET = "--verbosity=-1"  # warnings only: orbax and jax narrate at INFO, which a user's own --verbosity=0 shows
TRUST = "Import the code that the run's config.json names as module:function, and run it."
FREE = ("method.options.", "partition.options.")  # fields that belong to a method or a split


class BadConfigFile(Exception):
    """A config file, or what the command line sets in it, is wrong. One line."""


def fail(error: Exception, code: int = 2, at_once: bool = False) -> NoReturn:
    """Prints the error as one line and exits with a code: 2 for what was wrong from the start; `at_once` leaves no time
    to other threads, for which what they wait for ends, and which say so."""
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    if at_once:
        os._exit(code)
    sys.exit(code)


def define_config() -> flags.FlagHolder:
    """The flag --config=FILE[:ARGUMENT], and --config.FIELD=VALUE for every field of what the file returns."""
    holder = config_flags.DEFINE_config_file(
        "config",
        None,
        "The experiment: a file, or a name of `fedjax-ht list configs`.",
    )
    flags.FLAGS["config"].parser.parse = read_config_file  # ml_collections tells of mistakes in many lines
    return holder


def parse_flags(arguments: list[str]) -> list[str]:
    """Parses the command line; a mistake in it, or in a config file or override that it names, is one line."""
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
        fields = list(paths(flags.FLAGS["config"].value or base_config()))
    if name in fields:
        setting = f"--config.{name}={argument.partition('=')[2] or 'VALUE'}"
        return f"unknown flag --{name}; {name} is a field of the config: write {setting}"
    there = "`--help` shows the flags"
    if takes_config:
        there += ", and a field of the config is set by --config.FIELD=VALUE"
    return unknown("flag", name, [*flags.FLAGS, *fields], there)


def read_config_file(named: str) -> ConfigDict:
    """What get_config of a config file returns, locked, for the fields that the command line sets.

    Args:
      named: a file, or the name of a config that comes with the library; and behind a colon the argument of get_config.

    Raises:
      BadConfigFile: there is no such file; it raises something, or returns something else; or it has no such field.
    """
    file, colon, argument = named.partition(":")
    file = config_path(file)
    get_config = None
    try:
        loader = SourceFileLoader(MODULE, file)
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(MODULE, loader))
        sys.modules[MODULE] = module
        loader.exec_module(module)
        get_config = getattr(module, "get_config", None)
        config = get_config(*([argument] if colon else [])) if callable(get_config) else None
    except (Exception, SystemExit) as error:
        raise BadConfigFile(f"{place(file, error, get_config)}: {words(error)}") from error
    if not callable(get_config):
        raise BadConfigFile(f"{file}, line 1: there is no function get_config(argument=None) in this file")
    if not isinstance(config, ConfigDict):
        raise BadConfigFile(
            f"{place(file, None, get_config)}: get_config returns {type(config).__name__}; it must return a "
            "ConfigDict, such as fedjax_ht.base_config()"
        )
    check_overrides(config, sys.argv)
    return config.lock()


def config_path(named: str) -> str:
    """A config file as it is named: its path, or without a folder the name of one that comes with the library."""
    ours, name = shipped(), named.removesuffix(".py")
    if Path(named).is_file():
        return named
    if name in ours:
        return str(ours[name])
    if Path(named).name == named:
        raise BadConfigFile(unknown("config", named, ours, "`fedjax-ht list configs` shows those there are"))
    known = Path(name).name in ours
    raise BadConfigFile(f"no config file {named}" + known * f"; the library's own is --config={Path(name).name}")


def place(file: str, error: BaseException | None, get_config: object) -> str:
    """The line of a config file from which an error came: of what it called last, else that of get_config."""
    here = Path(file).resolve()
    frames = traceback.extract_tb(error.__traceback__) if error else []
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == here]
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == here:
        lines.append(error.lineno)
    code = getattr(get_config, "__code__", None)
    return f"{file}, line {lines[-1] if lines else code.co_firstlineno if code else 1}"


def words(error: BaseException) -> str:
    """What an error says; ours, of bad values and files, say it without their kind."""
    said: object = error
    while isinstance(said, KeyError | AttributeError) and said.args:  # str() of a KeyError has escapes
        said = said.args[0]
    own = type(error) in (ValueError, FileNotFoundError) and str(error)
    return str(error) if own else f"{type(error).__name__}: {said}"


def check_overrides(config: ConfigDict, arguments: list[str]) -> None:
    """BadConfigFile where the command line sets a field that there is not."""
    known = list(paths(config))
    for argument in flags.FLAGS.read_flags_from_files(arguments, force_gnu=False):
        found = re.match(r"--?(?:no)?config\.([^=\[]+)", argument)
        if found is None or found[1] in known:
            continue
        field, free = found[1], next((part for part in FREE if found[1].startswith(part)), None)
        if free is None:
            raise BadConfigFile(unknown("config field", field, known, "see fedjax_ht/configs/base.py for the fields"))
        part = config[free.partition(".")[0]]
        owner = part.name if free.startswith("method") else f"partition {part.kind!r}"
        raise BadConfigFile(unknown_option(owner, field.removeprefix(free), list(part.options)))


def paths(config: ConfigDict, prefix: str = "") -> Iterator[str]:
    """Of all fields and sections, "training" and "training.epochs"."""
    for name in config:
        yield f"{prefix}{name}"
        if isinstance(config[name], ConfigDict):
            yield from paths(config[name], f"{prefix}{name}.")
