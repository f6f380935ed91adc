"""Reads the text of an entry, `NAME[@tuned][:KEY=VALUE]...`, see `entries`."""

import ast
import inspect
from collections.abc import Mapping
from typing import Any

from fedjax_ht.core.annotations import kind_of
from fedjax_ht.core.names import meant
from fedjax_ht.methods import METHODS, names_user_method

OVERRIDDEN = ("training", "model")
"""Sections of the config that an entry may change."""


def split_spec(spec: str) -> list[str]:
    """Splits an entry into NAME, which may be a "module:function", and each KEY=VALUE; text without
    = belongs to the value before it."""
    first, *rest = spec.split(":")
    is_method = first.partition("@")[0] in METHODS
    if rest and not is_method and names_user_method(f"{first}:{rest[0].partition('@')[0]}"):
        first, rest = f"{first}:{rest[0]}", rest[1:]
    parts = [first]
    for part in rest:
        if "=" not in part and len(parts) > 1:
            parts[-1] += f":{part}"
        else:
            parts.append(part)
    return parts


def parsed_setting(
    spec: str,
    setting: str,
    defaults: Mapping[str, Mapping[str, Any]],
    parameters: Mapping[str, inspect.Parameter],
) -> tuple[str, str, Any]:
    """Returns "method", "training" or "model", the field that a KEY=VALUE sets there, and its
    value."""
    key, equals, text = setting.partition("=")
    part, dot, field = key.rpartition(".")
    if not dot:
        part = "method"
    if not equals or field not in defaults.get(part, {}):
        raise ValueError(f"entry {spec!r}: {setting!r} sets nothing{_settable(key, defaults)}")
    default = defaults[part][field]
    kind = type(default)
    if default is None:  # of an option: sections have plain values here
        kind = kind_of(parameters[field].annotation)
    try:
        return part, field, _cast(literal(text), kind)
    except TypeError:
        raise ValueError(
            f"entry {spec!r}: {field} cannot be {text!r}; it is {default!r} by default"
        ) from None


def _settable(key: str, defaults: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the settings that an entry may have, or the name that `key` is closest to, as the end
    of a message."""
    names, forms = list(defaults["method"]), list(defaults["method"])
    for part in OVERRIDDEN:
        forms.append(f"{part}.FIELD")
        names += [f"{part}.{field}" for field in defaults[part]]
    return meant(key, names, f"KEY=VALUE may set {', '.join(forms)}")


def literal(text: str) -> Any:
    """Returns the Python value that a text writes, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _cast(value: Any, kind: type) -> Any:
    """Returns a value as one of `kind`, by the rules of a ConfigDict: an int may be a float, a list
    a tuple, and None anything.

    Raises:
      TypeError: it is another one.
    """
    if kind is float and isinstance(value, int):
        return float(value)
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    if value is None or isinstance(value, kind):
        return value
    raise TypeError
