"""Reads the texts of fields' flags: --config.compare=local,fedproto:weight=3.0."""

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def split_words(text: str) -> list[str]:
    """Splits a text at commas outside brackets and quotes, such as "local,fedral:blocks=(2,4)".

    Empty entries are left out.

    Raises:
      ValueError: a bracket or a quote stands alone. One line.
    """
    if "," not in text:  # a name may have a quote of its own
        return [text.strip()] if text.strip() else []
    entries, entry = [], ""
    for part in text.split(","):
        entry = f"{entry},{part}" if entry else part
        if _is_whole(entry):
            entries.append(entry.strip())
            entry = ""
    if entry:
        raise ValueError("a bracket or a quote in it stands alone; write a,b or ('a', 'b')")
    return [entry for entry in entries if entry]


def _is_whole(text: str) -> bool:
    """Returns whether all brackets and quotes of a text are closed."""
    rest = QUOTED.sub("", text)
    opened, closed = (sum(map(rest.count, brackets)) for brackets in ("([{", ")]}"))
    return opened == closed and not {"'", '"'} & set(rest)


def to_tuple(text: str) -> tuple:
    """Reads a tuple, its elements or one of them: "('a', 'b')", "a,b" or "a"."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # names without quotes
        return tuple(split_words(text))
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def to_literal(text: str) -> Any:
    """Reads a Python literal, or else text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


class WordsParser(flags.ArgumentParser):
    """Reads a list of words, as `split_words` does."""

    def parse(self, argument: str | Sequence[str]) -> list[str]:
        return split_words(argument) if isinstance(argument, str) else list(argument)


def _number_reader(parser: flags.ArgumentParser, rule: str) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return parser.parse(text)
        except ValueError:
            raise ValueError(f"it must be {rule}") from None

    return convert


CONVERSIONS: dict[type, Callable[[str], Any]] = {
    bool: _number_reader(flags.BooleanParser(), "True or False"),
    float: _number_reader(flags.FloatParser(), "a number"),
    int: _number_reader(flags.IntegerParser(), "an integer"),
    str: str,
    tuple: to_tuple,
}
"""Type of a field -> how its flag's text is read; others are read as Python literals."""
