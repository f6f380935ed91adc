"""Options as they are listed: name, default, the values that each may have, and its meaning.

Values are those of the annotation, and meanings the entries of docstrings (check/docstrings.py):
both stand where an option is declared, and nowhere else.
"""

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fedjax_ht.check.docstrings import meanings
from fedjax_ht.check.options import SearchRange, describe, extra_of, hints_of
from fedjax_ht.data.partition import PARTITIONS, PLANS, partition_options
from fedjax_ht.data.partition.splits import split_plan
from fedjax_ht.lab.config.base import method_options
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import plain_hint, to_plain, unknown_field
from fedjax_ht.methods import method_factory


class Option(NamedTuple):
    """An option or a field of a config.

    Attributes:
      name: name in its section, or the whole path of a field, "training.epochs".
      default: default value, as a config file has it.
      values: the values it may have, in words.
      meaning: text of its entry in a docstring; "" without one.
    """

    name: str
    default: Any
    values: str
    meaning: str


def of_method(name: str) -> tuple[Option, ...]:
    """Returns the options of a method, or of a method on a base, "fedrolex+dfrd"."""
    return tuple(_of_parameters(method_options(name), meanings(method_factory(name))))


def of_partition(kind: str) -> tuple[Option, ...]:
    """Returns the options of a partition."""
    texts = meanings((PLANS | PARTITIONS)[kind])
    if kind in PLANS:
        texts = meanings(split_plan) | texts
    return tuple(_of_parameters(partition_options(kind), texts))


def fields(kind: type = Config, prefix: str = "") -> Iterator[Option]:
    """Yields the fields of a config, "training.epochs" with those of its section."""
    texts, defaults = meanings(kind), to_plain(kind())
    for name, hint in hints_of(kind).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from fields(hint, f"{prefix}{name}.")
        else:
            values = values_text(plain_hint(hint))
            yield Option(f"{prefix}{name}", defaults[name], values, texts.get(name, ""))


def having(options: Iterable[Option], texts: Iterable[str]) -> list[Option]:
    """Returns the options whose name or meaning has one of the texts, in any case; without texts
    all of them.

    Raises:
      ValueError: none has a text. One line.
    """
    options, texts, chosen = list(options), list(texts), []
    if not texts:
        return options
    for text in texts:
        matching = [option for option in options if text.lower() in _searched(option)]
        if not matching:
            names = [option.name for option in options]
            raise ValueError(unknown_field(text, names))
        chosen += matching
    return [option for option in options if option in chosen]


def _searched(option: Option) -> str:
    return f"{option.name} {option.meaning}".lower()


def _of_parameters(
    parameters: Mapping[str, inspect.Parameter], texts: Mapping[str, str]
) -> Iterator[Option]:
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty:
            values = values_text(parameter.annotation)
            yield Option(name, parameter.default, values, texts.get(name, ""))


def values_text(annotation: Any) -> str:
    """Writes "a number of at least 0; searched from 0.01 to 10"."""
    text = describe(annotation)
    searched = extra_of(annotation, SearchRange)
    if searched is None:
        return text
    return f"{text}; a comparison searches from {searched.low:g} to {searched.high:g}"
