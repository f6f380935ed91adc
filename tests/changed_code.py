"""A monkeypatch around which kept programs are dropped, where it changes what they are made of."""

import sys
import types
from typing import Any

import pytest

from fedjax_ht.simulation.engine import forget_engines

# Packages that run simulations: the library, whose functions programs are made of, imports nothing
# of them (docs/architecture.md). A generator of lab, or weights, may be part of a program.
RUNNING = tuple(
    f"fedjax_ht.{name}."
    for name in (
        "deploy",
        *(f"lab.{n}" for n in ("checkpoints", "config", "configs", "report", "runs")),
    )
)


def is_of_programs(target: Any) -> bool:
    """Returns True if programs may depend on a module, a class, an object, or a dotted name."""
    name = target
    if isinstance(target, types.ModuleType):
        name = target.__name__
    elif not isinstance(target, str):
        of = target if isinstance(target, type) else type(target)
        name = of.__module__
    package = name.partition(".")[0]
    if package == "fedjax_ht":
        return not f"{name}.".startswith(RUNNING)
    return package not in sys.stdlib_module_names


class MonkeyPatch(pytest.MonkeyPatch):
    """A change of the library's code or constants makes other kept programs; so does its end."""

    def __init__(self) -> None:
        super().__init__()
        self._has_changed = False

    def _change(self) -> None:
        self._has_changed = True
        forget_engines()

    def setattr(self, target, *args, **options) -> None:
        super().setattr(target, *args, **options)
        if is_of_programs(target):
            self._change()

    def delattr(self, target, *args, **options) -> None:
        super().delattr(target, *args, **options)
        if is_of_programs(target):
            self._change()

    def setitem(self, mapping, name, value) -> None:
        super().setitem(mapping, name, value)
        self._change()

    def delitem(self, mapping, *args, **options) -> None:
        super().delitem(mapping, *args, **options)
        self._change()

    def undo(self) -> None:
        super().undo()
        if self._has_changed:
            self._has_changed = False
            forget_engines()
