"""Recipes and losses of data-free methods, with their factories' defaults."""

import inspect
import sys
from collections.abc import Callable

from fedjax_ht.core.method import Method
from fedjax_ht.methods.data_free.distil import Objective
from fedjax_ht.methods.data_free.method import settle
from fedjax_ht.methods.data_free.options import Distillation


def losses_of(
    factory: Callable[..., Method], variant: str = "paper", **options
) -> tuple[Distillation, Objective]:
    """Returns the recipe and the losses that a factory makes of its options."""
    parameters = inspect.signature(factory).parameters.items()
    defaults = {name: p.default for name, p in parameters if p.kind is p.KEYWORD_ONLY}
    losses = sys.modules[inspect.unwrap(factory).__module__].losses
    return settle(losses, variant, defaults | options)
