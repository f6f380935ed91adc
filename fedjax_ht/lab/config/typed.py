"""Sections of a config: dataclasses that check every assignment to a field.

A field's annotation bounds its values (check/options.py). None means that a field is not given.
Flags, config files and config.json write it as a plain value, 0, "" or "none", which the annotation
names: `Annotated[Count | None, NotGiven(0)]`.
"""

import copy
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType, NoneType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from fedjax_ht.check import options
from fedjax_ht.check.classes import is_named_tuple
from fedjax_ht.check.named_numbers import AsTuples, as_tuples
from fedjax_ht.check.names import unknown

S = TypeVar("S", bound="Section")


class Section:
    """Base of a config and of its sections, which are dataclasses.

    A field is checked when it is set, also by `dataclasses.replace`. A class sets its prefix for
    messages: `class TrainingConfig(Section, prefix="training.")`.
    """

    prefix = ""

    def __init_subclass__(cls, prefix: str = ""):
        cls.prefix = prefix

    def __setattr__(self, name: str, value: Any) -> None:
        hint = options.hints_of(type(self)).get(name)
        if hint is None:
            raise AttributeError(unknown_field(f"{self.prefix}{name}", self))
        object.__setattr__(self, name, _typed(f"{self.prefix}{name}", value, hint))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(unknown_field(f"{self.prefix}{name}", self))

    def update(self, values: Mapping[str, Any] = MappingProxyType({}), /, **fields) -> None:
        """Sets fields by name or path: {"rounds": 5, "training.epochs": 2, "model": {...}}.

        Options keep their other values, unless the method or split that has them changes too.

        Raises:
          ValueError: a field is unknown, or its value is invalid. One line.
        """
        given = dict(values) | fields
        before = {field: vars(self).get(field) for field in ("kind", "name")}
        is_other = any(given.get(field, old) != old for field, old in before.items())
        for path, value in given.items():
            name, dot, inner = path.partition(".")
            part = vars(self).get(name)
            if dot and isinstance(part, Options):
                part[inner] = value
            elif dot and isinstance(part, Section):
                part.update({inner: value})
            elif dot or name not in vars(self):
                raise ValueError(unknown_field(f"{self.prefix}{path}", self))
            elif isinstance(value, Mapping) and (
                isinstance(part, Section) or (isinstance(part, Options) and not is_other)
            ):
                part.update(value)
            else:
                setattr(self, name, value)


class Options(dict):
    """Options of a method or a split; `config.method.options.tau = 3` sets one."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"no option {name!r}; there are {', '.join(self)}")
        return self[name]

    __setattr__ = dict.__setitem__


def paths(section: Section, prefix: str = "") -> Iterator[str]:
    """Yields the paths of all fields and sections: "training" and "training.epochs"."""
    for name, value in vars(section).items():
        yield f"{prefix}{name}"
        if isinstance(value, Section):
            yield from paths(value, f"{prefix}{name}.")
        elif isinstance(value, Options):
            yield from (f"{prefix}{name}.{option}" for option in value)


def unknown_field(name: str, known: Section | Collection[str]) -> str:
    """Returns the message for a field that a section, or the config, does not have."""
    names = list(paths(known, known.prefix)) if isinstance(known, Section) else known
    return unknown("config field", name, names, "`fedjax-ht list fields` shows all of them")


def to_plain(section: Section) -> dict[str, Any]:
    """Returns the plain values of a section, with nested dictionaries for sections in it."""
    values = {}
    for name, hint in options.hints_of(type(section)).items():
        value = getattr(section, name)
        marker = options.extra_of(hint, options.NotGiven)
        if isinstance(value, Section):
            value = to_plain(value)
        elif isinstance(value, Options):
            value = dict(value)
        elif isinstance(value, tuple):
            value = tuple(each._asdict() if is_named_tuple(type(each)) else each for each in value)
        elif value is None and marker is not None:
            value = marker.plain
        values[name] = value
    return values


def unusual(section: Section) -> dict[str, Any]:
    """Returns the plain values of a section that differ from the defaults."""
    usual = to_plain(type(section)())
    return {name: value for name, value in to_plain(section).items() if value != usual[name]}


def refuse_set(section: Section, fields: Collection[str], reason: str) -> None:
    """Raises a one-line ValueError if one of the fields is not at its default, which it names.

    `reason` stands between the value and the default: "; with model.rates it must be".
    """
    for name, value in unusual(section).items():
        if name in fields:
            usual = to_plain(type(section)())[name]
            raise ValueError(f"{section.prefix}{name} is {value!r}{reason} {usual!r}")


def to_json(section: Section) -> dict[str, Any]:
    """Returns the plain values of a section as a JSON file would return them."""
    return json.loads(json.dumps(to_plain(section)))


def changed(section: S, values: Mapping[str, Any]) -> S:
    """Returns a section with other values of some fields; raises as `Section.update` does."""
    other = copy.copy(section)
    other.update(values)
    return other


def shared_fields(section: Any, kind: type) -> dict[str, Any]:
    """Returns the values of a section's fields that `kind` has under the same name.

    Code that converts one class to the other need not list such fields.
    """
    names = options.hints_of(type(section)).keys() & options.hints_of(kind).keys()
    return {name: getattr(section, name) for name in names}


def plain_hint(hint: Any) -> Any:
    """Returns the annotation of a field's plain values."""
    marker = options.extra_of(hint, options.NotGiven)
    if hint is Options:
        return Mapping[str, Any]
    if marker is None:
        return hint
    kinds = tuple(kind for kind in get_args(get_args(hint)[0]) if kind is not NoneType)
    if kinds == (options.Count,) and marker.plain == 0:
        return options.Whole
    if get_origin(kinds[0]) is Literal:
        return Literal[(*get_args(kinds[0]), marker.plain)]
    return Union[kinds]  # noqa: UP007  (of a tuple known only at run time)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """Returns a field's value for a plain one, after a check."""
    if options.traced(value):
        return value
    if isinstance(hint, type) and issubclass(hint, Section):
        return _section(name, value, hint)
    if hasattr(value, "tolist"):  # NumPy and JAX numbers, which JSON lacks
        value = value.tolist()
    marker = options.extra_of(hint, options.NotGiven)
    if marker is not None:
        is_plain = isinstance(value, int | float | str) and not isinstance(value, bool)
        if value is None or (is_plain and value == marker.plain):  # False does not count as 0
            return None
    if options.extra_of(hint, AsTuples) is not None:
        value = as_tuples(value)
    options.check_value(name, value, plain_hint(hint))
    if type(value) is int and options.bounded(hint)[0] is float:
        value = float(value)
    if isinstance(value, Mapping):
        return Options(with_tuples(value)) if hint is Options else with_tuples(value)
    return with_tuples(value)


def _section(name: str, value: Any, kind: type[Section]) -> Section:
    """Returns a section for a mapping, or for an instance of its library class (e.g. fl.Attack)."""
    if dataclasses.is_dataclass(type(value)) and type(value) in kind.__mro__[1:]:
        value = vars(value)
    if isinstance(value, Mapping):
        made = kind()
        made.update(value)
        return made
    options.check_value(name, value, kind)
    return value


def with_tuples(value: Any) -> Any:
    """Replaces lists, as JSON has them, with tuples at every level of a value or a mapping."""
    if isinstance(value, Mapping):
        return {key: with_tuples(each) for key, each in value.items()}
    if type(value) in (list, tuple):  # not a NamedTuple
        return tuple(map(with_tuples, value))
    return value
