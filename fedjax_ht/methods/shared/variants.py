"""The two variants of a method: its paper's, and that of the released code."""

from collections.abc import Mapping
from typing import Any, Literal

Variant = Literal["paper", "released"]
Forms = Mapping[Variant, dict[str, Any]]
"""Variant -> values of the options that default to None."""


def settled(variant: Variant, options: Mapping[str, Any], forms: Forms) -> dict[str, Any]:
    """Replaces options that are None by the values of a variant.

    Args:
      variant: a key of `forms`.
      options: name -> value.
      forms: the values of each variant.
    """
    form = forms[variant]
    return {name: form[name] if value is None else value for name, value in options.items()}
