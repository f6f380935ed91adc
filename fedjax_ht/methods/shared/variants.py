"""The two variants of a method: its paper's, and that of the released code."""

from collections.abc import Mapping
from typing import Any, Literal

Variant = Literal["paper", "released"]


def settled(
    variant: Variant, options: Mapping[str, Any], forms: Mapping[Variant, Any]
) -> dict[str, Any]:
    """Replaces options that are None by the values of a variant.

    Args:
      variant: a key of `forms`.
      options: name -> value.
      forms: variant -> NamedTuple of values by option.
    """
    form, values = forms[variant], dict(options)
    for name, value in options.items():
        if value is None:
            values[name] = getattr(form, name)
    return values
