"""Reads the meaning of options from docstrings: the entries of Args and Attributes.

    @documented_by(partial_training)
    def heterofl(training, weighting="uniform"): ...

A function that passes options on names the function or class that documents them, so that each
option is documented once.
"""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable)

SECTION = re.compile(r"(Args|Attributes):$")
ENTRY = re.compile(r"  (\*{0,2}\w+(?:, \w+)*): (.*)")


def documented_by(*sources: Any) -> Callable[[F], F]:
    """Makes a decorator that records where a function's options are documented.

    Args:
      *sources: functions and classes with entries for the options that the function does not
        document itself.
    """

    def decorate(function: F) -> F:
        noted: Any = function  # functions declare no attributes
        noted.documented_by = sources
        return function

    return decorate


def meanings(documented: Any) -> dict[str, str]:
    """Returns the entries of Args or Attributes in a docstring by name, each on one line.

    Args:
      documented: a function, a class, or a `functools.partial` of one. The result includes entries
        of its sources (`documented_by`, and the function that it wraps); its own entries have
        precedence.
    """
    if isinstance(documented, functools.partial):
        return meanings(documented.func)
    sources = [*getattr(documented, "documented_by", ())]
    if hasattr(documented, "__wrapped__"):
        sources.append(documented.__wrapped__)
    texts = {}
    for source in sources:
        texts |= meanings(source)
    return texts | _entries(inspect.getdoc(documented) or "")


def first_paragraph(docstring: str | None) -> str:
    """Returns the first paragraph of a docstring on one line; "" without one."""
    return " ".join(inspect.cleandoc(docstring or "").split("\n\n")[0].split())


def _entries(docstring: str) -> dict[str, str]:
    """Returns the entries of an unindented docstring, as returned by `inspect.getdoc`."""
    lines: dict[str, list[str]] = {}
    names: list[str] = []
    in_section = False
    for line in docstring.splitlines():
        entry = ENTRY.match(line)
        if line and not line.startswith(" "):
            in_section, names = bool(SECTION.match(line)), []
        elif in_section and entry:
            names = entry[1].split(", ")
            lines |= {name: [entry[2]] for name in names}
        else:  # continues an entry; before the first one, names are empty
            for name in names:
                lines[name].append(line)
    return {name: " ".join(" ".join(text).split()) for name, text in lines.items()}
