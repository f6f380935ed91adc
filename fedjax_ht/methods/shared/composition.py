"""Factories of distilling methods: made of two losses, and composed with a base.

A config names a composition "fedrolex+dfrd": DFRD on the base FedRolex, see `bases`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.context import Metrics
from fedjax_ht.core.docstrings import documented_by
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.averaging import Weighting
from fedjax_ht.methods.shared.bases import BASES, Base, Server, make_base
from fedjax_ht.methods.shared.distillation import FORMS, Distillation
from fedjax_ht.methods.shared.fine_tuning import fine_tuning
from fedjax_ht.methods.shared.variants import Variant, settled

# attributes of a function of losses that the factory made of it keeps
NAMES = ("__module__", "__name__", "__qualname__", "__doc__")


def distilling(
    distil: Callable[..., tuple[Server, Metrics]], **defaults
) -> Callable[[Callable[..., Any]], Callable[..., Method]]:
    """Turns a function (recipe, **options) -> losses into the factory of a method of its name.

    The factory takes local training, `base`, `variant`, the fields of `Distillation`, and the
    function's options. `base` is "none" for data-free, a name in `BASES`, or a `Base`. Options that
    are None, and the weighting of a base by name, take the variant's value, see
    `distillation.FORMS`.

    Args:
      distil: (recipe, losses, federation, teachers, server, context) -> (server, mean losses), the
        server's training, `methods.dfrd.distil`.
      **defaults: the method's defaults of fields of `Distillation`.
    """
    usual = Distillation(**defaults)

    def decorate(objective: Callable[..., Any]) -> Callable[..., Method]:
        @functools.wraps(objective, NAMES)
        def make(
            training: LocalTraining,
            base: str | Base = "none",
            variant: Variant = "paper",
            **options,
        ) -> Method:
            recipe, losses = losses_of(make, variant, **options)
            base = base_of(base, training, variant) if isinstance(base, str) else base
            return fine_tuning(
                objective.__name__,
                training,
                base,
                recipe=recipe,
                distil=functools.partial(distil, recipe, losses),
                with_moments=losses.with_moments,
            )

        fields = []
        for name, parameter in parameters(Distillation).items():
            fields.append(parameter.replace(default=getattr(usual, name)))
        first = list(inspect.signature(make, follow_wrapped=False).parameters.values())[:3]
        # Listings, search and checks read the options off the signature.
        factory: Any = documented_by(Distillation, fine_tuning, base_of)(make)
        factory.__signature__ = inspect.Signature(
            [*first, *fields, *parameters(objective).values()]
        )
        return checked(factory)

    return decorate


def losses_of(
    factory: Callable[..., Method], variant: Variant = "paper", **options
) -> tuple[Distillation, Any]:
    """Makes a distilling method's recipe and losses; arguments as of its factory, but no `base`."""
    defaults = {name: p.default for name, p in parameters(factory).items() if name != "variant"}
    options = settled(variant, defaults | options, FORMS)
    recipe = Distillation(**{name: options.pop(name) for name in parameters(Distillation)})
    return recipe, inspect.unwrap(factory)(recipe, **options)


def composed(base: str, factory: Callable[..., Method]) -> Callable[..., Method]:
    """Makes the factory of a distilling method on a base.

    Args:
      base: a key of `BASES`.
      factory: the distilling method's.

    Returns:
      (training, **options) -> Method, which takes the options of both.
    """
    options_of_top, inherited = parameters(factory), parameters(BASES[base][0])
    weighting = inherited["weighting"]
    inherited["weighting"] = weighting.replace(default=None, annotation=weighting.annotation | None)

    @documented_by(BASES[base][0], factory)
    def make(training: LocalTraining, **options) -> Method:
        of_base = {name: options.pop(name) for name in inherited if name in options}
        variant = options.get("variant", options_of_top["variant"].default)
        return factory(training, base_of(base, training, variant, **of_base), **options)

    first = inspect.Parameter("training", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    every = [first, *options_of_top.values(), *inherited.values()]
    make.__signature__ = inspect.Signature(every)
    return make


def base_of(
    name: str,
    training: LocalTraining,
    variant: Variant,
    weighting: Weighting | None = None,
    **options,
) -> Base:
    """Makes a base by name; errors as of `make_base`.

    Args:
      name: a key of `BASES`.
      training: local training.
      variant: form of the method, the paper's or the released code's, which gives options that are
        None their values.
      weighting: weights of the base's mean over clients; None takes the variant's.
      **options: further options of the base.
    """
    weighting = weighting or FORMS[variant].weighting
    if name != "none" and weighting:  # data-free, nothing is averaged
        options["weighting"] = weighting
    return make_base(name, training, **options)


def parameters(factory: Callable) -> dict[str, inspect.Parameter]:
    """Returns the options of a factory or a function of losses, as keyword-only parameters.

    Left out are its subjects (local training, the recipe) and the options that composition sets.
    """
    fixed = ("training", "base", "whole_head", "recipe")
    options = {}
    for name, parameter in inspect.signature(factory).parameters.items():
        if name not in fixed:
            options[name] = parameter.replace(kind=parameter.KEYWORD_ONLY)
    return options
