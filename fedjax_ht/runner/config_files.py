"""Reads config files: the flag --config, and what the command line sets in a config."""

import importlib.util
import re
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, config_flags

from fedjax_ht.configs import shipped
from fedjax_ht.core.names import unknown, unknown_option
from fedjax_ht.runner.cli import BadConfigFile, paths, words

MODULE = "config_file"  # the name that a config file's module has
FREE = ("method.options.", "partition.options.")  # fields that belong to a method or a split


def define_config() -> flags.FlagHolder:
    """The flag --config=FILE[:ARGUMENT], and --config.FIELD=VALUE for every field of what the file
    returns."""
    holder = config_flags.DEFINE_config_file(
        "config",
        None,
        "The experiment: a file, or a name of `fedjax-ht list configs`.",
    )
    # ml_collections tells of mistakes in many lines
    flags.FLAGS["config"].parser.parse = read_config_file
    return holder


def read_config_file(named: str) -> ConfigDict:
    """What get_config of a config file returns, locked, for the fields that the command line sets.

    Args:
      named: a file, or the name of a config that comes with the library; and behind a colon the
        argument of get_config.

    Raises:
      BadConfigFile: there is no such file; it raises something, or returns something else; or it
        has no such field.
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
        raise BadConfigFile(
            f"{file}, line 1: there is no function get_config(argument=None) in this file"
        )
    if not isinstance(config, ConfigDict):
        raise BadConfigFile(
            f"{place(file, None, get_config)}: get_config returns {type(config).__name__}; it "
            "must return a "
            "ConfigDict, such as fedjax_ht.base_config()"
        )
    check_overrides(config, sys.argv)
    return config.lock()


def config_path(named: str) -> str:
    """A config file as it is named: its path, or without a folder the name of one that comes with
    the library."""
    ours, name = shipped(), named.removesuffix(".py")
    if Path(named).is_file():
        return named
    if name in ours:
        return str(ours[name])
    if Path(named).name == named:
        raise BadConfigFile(
            unknown("config", named, ours, "`fedjax-ht list configs` shows those there are")
        )
    known = Path(name).name in ours
    raise BadConfigFile(
        f"no config file {named}" + known * f"; the library's own is --config={Path(name).name}"
    )


def place(file: str, error: BaseException | None, get_config: object) -> str:
    """The line of a config file from which an error came: of what it called last, else that of
    get_config."""
    here = Path(file).resolve()
    frames = traceback.extract_tb(error.__traceback__) if error else []
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == here]
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == here:
        lines.append(error.lineno)
    code = getattr(get_config, "__code__", None)
    return f"{file}, line {lines[-1] if lines else code.co_firstlineno if code else 1}"


def check_overrides(config: ConfigDict, arguments: list[str]) -> None:
    """BadConfigFile where the command line sets a field that there is not."""
    known = list(paths(config))
    for argument in flags.FLAGS.read_flags_from_files(arguments, force_gnu=False):
        found = re.match(r"--?(?:no)?config\.([^=\[]+)", argument)
        if found is None or found[1] in known:
            continue
        field, free = found[1], next((part for part in FREE if found[1].startswith(part)), None)
        if free is None:
            raise BadConfigFile(
                unknown(
                    "config field", field, known, "see fedjax_ht/configs/base.py for the fields"
                )
            )
        part = config[free.partition(".")[0]]
        owner = part.name if free.startswith("method") else f"partition {part.kind!r}"
        raise BadConfigFile(unknown_option(owner, field.removeprefix(free), list(part.options)))
