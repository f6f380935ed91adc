"""Reads config files: defines the flags --config, and --config.FIELD for each field of a config."""

import ast
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from absl import flags

from fedjax_ht.check.names import unknown
from fedjax_ht.check.options import hints_of, kind_of
from fedjax_ht.core.user_code import importable_from, refuse_code, user_modules_in
from fedjax_ht.data.partition import partition_options
from fedjax_ht.lab.cli import SEE_HELP, BadConfigFile, config_folder
from fedjax_ht.lab.config.base import ToDict, base_config, method_options, option_kind, typed_config
from fedjax_ht.lab.config.entries import chosen, literal
from fedjax_ht.lab.config.sections import Config, MethodConfig
from fedjax_ht.lab.config.typed import Options, Section, paths, unknown_field

MODULE = "config_file"  # the name of a config file's module
OF_CLONE = Path("experiments/configs")  # in the root of a clone
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


class NamedConfig(NamedTuple):
    """The value of --config: its text, and the result of get_config.

    Flags --config.FIELD set fields of the latter.
    """

    name: str
    fields: Config


class ConfigParser(flags.ArgumentParser):
    """Reads the config file that --config names, and defines a flag for each field of its config.

    These flags may follow on the command line.
    """

    def __init__(self, flag_values: flags.FlagValues):
        self.flag_values = flag_values

    def parse(self, argument: str) -> NamedConfig:
        config = read_config_file(argument)
        for path in paths(config):
            define_field(config, path, self.flag_values)
        return NamedConfig(argument, config)

    def unknown_flag(self, name: str, argument: str) -> str:
        """Returns a suggestion for an unknown flag `name`, written as `argument`.

        For a field of the config, it is --config.FIELD.
        """
        named = flags.FLAGS["config"].value
        fields = list(paths(base_config() if named is None else named.fields))
        if name in fields:
            setting = f"--config.{name}={argument.partition('=')[2] or 'VALUE'}"
            return f"unknown flag --{name}; {name} is a field of the config: write {setting}"
        prefix, dot, field = name.partition(".")
        if dot and prefix in ("config", "noconfig"):
            return undefined_field(field)
        hint = f"{SEE_HELP}, and a field of the config is set by --config.FIELD=VALUE"
        # fields by their last name: --learning_rate probably means training.learning_rate
        own_flags = [flag for flag in self.flag_values if not flag.startswith("config.")]
        return unknown("flag", name, [*own_flags, *fields], hint)


class FieldParser(flags.ArgumentParser):
    """Sets a field of a config to its flag's value. A tuple's flag may be repeated.

    absl shares parsers with equal hashable arguments; a config has no hash, so that none is shared.
    """

    def __init__(self, config: Config, path: str, read: Callable[[str], Any]):
        self.config, self.path, self.read = config, path, read
        self.values: tuple = ()

    def parse(self, argument: str) -> Any:
        value = self.read(argument)
        if self.read in (to_tuple, to_strings):
            value = self.values = self.values + value
        if self.path == "entries":
            if value:  # entries run instead of the config's method
                self.config.method = MethodConfig(None)
            value = chosen(self.config.entries, value)
        self.config.update({self.path: value})
        return value


def define_config(flag_values: flags.FlagValues = flags.FLAGS) -> flags.FlagHolder:
    """Defines the flag --config=FILE[:ARGUMENT], whose value is a `NamedConfig`."""
    about = "The experiment: a file, or a name of `fedjax-ht list configs`."
    return flags.DEFINE(ConfigParser(flag_values), "config", None, about, flag_values)


def define_field(config: Config, path: str, flag_values: flags.FlagValues) -> None:
    """Defines the flag --config.PATH, which sets that field; sections get no flag."""
    section, _, field = path.rpartition(".")
    owner: Any = _at(config, section)
    if isinstance(_at(config, path), Section | Options):
        return
    if isinstance(owner, Options):
        known: dict[str, inspect.Parameter] = {}
        if section == "partition.options":
            known = partition_options(config.partition.kind)
        elif config.method.name is not None:
            known = method_options(config.method.name)
        kind = option_kind(known[field]) if field in known else object
    else:
        hint = hints_of(type(owner))[field]
        kind = hint if hint == tuple[str, ...] else kind_of(hint)
    # allow_override: a second --config defines the flags of its own fields
    flag = flags.Flag(
        FieldParser(config, path, READERS.get(kind, literal)),
        None,
        name=f"config.{path}",
        default=None,
        help_string=f"The field {path} of the config.",
        boolean=kind is bool,
        allow_override=True,
    )
    flags.DEFINE_flag(flag, flag_values)


def to_tuple(text: str) -> tuple:
    """Reads a whole tuple, its elements or one of them: "('a', 'b')", "a,b" or "a"."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # names without quotes
        return tuple(split_words(text))
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def to_strings(text: str) -> tuple[str, ...]:
    """Reads a tuple of strings as `to_tuple` does; "3,007" are strings too, as they are written."""
    values = to_tuple(text)
    if all(isinstance(value, str) for value in values):
        return values
    words = split_words(text.strip("([ ])"))
    return tuple(x if isinstance(x, str) else word for x, word in zip(values, words))


def to_bool(text: str) -> bool:
    """Reads a boolean as other flags do: "true", "False", "1"."""
    try:
        return bool(flags.BooleanParser().parse(text))
    except ValueError:
        raise ValueError("it must be True or False") from None


READERS: dict[Any, Callable[[str], Any]] = {
    bool: to_bool,
    str: str,
    tuple: to_tuple,
    tuple[str, ...]: to_strings,
}
"""Type of a field -> parser of its flag's text; others are Python literals, or else strings."""


def split_words(text: str) -> list[str]:
    """Splits a string at commas outside brackets and quotes, such as "local,fedral:blocks=(2,4)".

    Empty entries are dropped.

    Raises:
      ValueError: a bracket or a quote is unmatched. One line.
    """
    if "," not in text:  # a name may contain a quote
        return [text.strip()] if text.strip() else []
    entries, entry = [], ""
    for part in text.split(","):
        entry = f"{entry},{part}" if entry else part
        rest = QUOTED.sub("", entry)
        opened, closed = (sum(map(rest.count, brackets)) for brackets in ("([{", ")]}"))
        if opened == closed and not {"'", '"'} & set(rest):  # all are closed
            entries.append(entry.strip())
            entry = ""
    if entry:
        raise ValueError("it has an unmatched bracket or quote; write a,b or ('a', 'b')")
    return [entry for entry in entries if entry]


class WordsParser(flags.ArgumentParser):
    """Reads a list of words, as `split_words` does."""

    def parse(self, argument: str | Sequence[str]) -> list[str]:
        return split_words(argument) if isinstance(argument, str) else list(argument)


def shipped() -> dict[str, Path]:
    """Returns the files of named configs.

    They are those of the library and, in a clone of the repository, of `experiments/configs`.
    """
    folders = (OF_CLONE, Path(__file__).parents[1] / "configs")
    return {file.stem: file for folder in folders for file in sorted(folder.glob("[!_]*.py"))}


def read_config_file(named: str) -> Config:
    """Returns the result of a config file's get_config.

    Args:
      named: a file, or the name of a config of the library; after a colon, the argument of
        get_config.

    Raises:
      BadConfigFile: the file does not exist, raises an error, or returns something else.
    """
    refuse_code([named])
    file, colon, argument = named.partition(":")
    file = config_path(file)
    get_config = made = None
    try:
        folder = config_folder(file)
        with importable_from(folder, above_package(folder)), user_modules_in(folder):
            get_config = getattr(module_of(file), "get_config", None)
            if callable(get_config):
                made = get_config(argument) if colon else get_config()
                if isinstance(made, Config | ToDict):
                    return typed_config(made)
    except (Exception, SystemExit) as error:
        raise BadConfigFile(f"{place(file, error, get_config)}: {text_of(error)}") from error
    if not callable(get_config):
        raise BadConfigFile(f"{file}, line 1: no function get_config(argument=None) in this file")
    raise BadConfigFile(
        f"{place(file, None, get_config)}: get_config returns {type(made).__name__}; it must "
        "return a Config, such as fedjax_ht.base_config()"
    )


def above_package(folder: str) -> str:
    """Returns the folder from which a folder's package is imported; itself if it is no package."""
    place = Path(folder)
    while (place / "__init__.py").is_file():
        place = place.parent
    return str(place)


def module_of(file: str) -> ModuleType:
    """Runs a config file as a module, and returns it."""
    loader = SourceFileLoader(MODULE, file)
    spec = importlib.util.spec_from_loader(MODULE, loader)
    assert spec is not None  # true for every loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    loader.exec_module(module)
    return module


def absolute(named: str) -> str:
    """Returns a config as named on the command line, with the absolute path of its file."""
    file, colon, argument = named.partition(":")
    return f"{Path(config_path(file)).resolve()}{colon}{argument}"


def config_path(named: str) -> str:
    """Returns the path of a config file: `named` itself, or the library's config of this name."""
    ours, name = shipped(), named.removesuffix(".py")
    if Path(named).is_file():
        return named
    if name in ours:
        return str(ours[name])
    if Path(named).name == named:
        advice = "`fedjax-ht list configs` shows all of them"
        if not OF_CLONE.is_dir():
            advice += f"; those of {OF_CLONE} run from the root of a clone only"
        raise BadConfigFile(unknown("config", named, ours, advice))
    line = f"no config file {named}"
    if Path(name).name in ours:
        line += f"; the library's own is --config={Path(name).name}"
    raise BadConfigFile(line)


def place(file: str, error: BaseException | None, get_config: object) -> str:
    """Returns "FILE, line N" of an error's last line in a config file, or else of get_config."""
    here = Path(file).resolve()
    frames = traceback.extract_tb(error.__traceback__) if error else []
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == here]
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == here:
        lines.append(error.lineno)
    if not lines:
        code = getattr(get_config, "__code__", None)
        lines = [code.co_firstlineno if code else 1]
    return f"{file}, line {lines[-1]}"


def text_of(error: BaseException) -> str:
    """Returns an error's message with its type.

    The type is omitted for ValueError and FileNotFoundError, whose messages are complete.
    """
    if type(error) in (ValueError, FileNotFoundError) and str(error):
        return str(error)
    message: object = error
    # str() of a KeyError escapes its message
    while isinstance(message, KeyError) and message.args:
        message = message.args[0]
    return f"{type(error).__name__}: {message}"


def undefined_field(field: str) -> str:
    """Returns the message for an undefined flag --config.FIELD."""
    named = flags.FLAGS["config"].value
    if named is None:
        return f"--config.{field} sets a field of the config, but there is no --config=FILE"
    known = list(paths(named.fields))
    if field in known:
        section = _at(named.fields, field)
        if isinstance(section, Section | Options):
            inner = section if isinstance(section, Options) else vars(section)
            return f"{field} is a section of the config; set one of its fields: {', '.join(inner)}"
        return f"--config.{field} comes before --config=FILE, which must be the first of them"
    return unknown_field(field, known)


def _at(config: Config, path: str) -> Any:
    """Returns the field or section at a path; the config itself for ""."""
    value: Any = config
    for name in filter(None, path.split(".")):
        value = value[name] if isinstance(value, Options) else getattr(value, name)
    return value
