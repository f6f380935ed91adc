"""Factories of distilling methods: made of two losses, and composed with a base by a name such as
"fedrolex+dfrd"."""

import functools
import inspect
from collections.abc import Callable

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.averaging import Weighting
from fedjax_ht.methods.shared.bases import BASES, Base, make_base
from fedjax_ht.methods.shared.distillation import Distillation, Objective
from fedjax_ht.methods.shared.fine_tuning import fine_tuning
from fedjax_ht.methods.shared.prototypes import Variant
from fedjax_ht.methods.shared.variants import FORMS, settled

# of an objective, which the method made of it keeps
NAMES = ("__module__", "__name__", "__qualname__", "__doc__")


def distilling(**defaults) -> Callable[[Callable[..., Objective]], Callable[..., Method]]:
    """Turns (recipe, its own options) -> Objective into the factory of a method of that name.

    The factory takes local training, `base`, `variant`, the fields of `Distillation` with these
    defaults, and the function's own options. `base` is "none" for data-free, or what is fine-tuned:
    a name in `BASES`, or what `make_base` returned. Options that are None, and the weighting of a
    base by name, are the variant's (see `variants`).
    """
    usual = Distillation(**defaults)

    def decorate(objective: Callable[..., Objective]) -> Callable[..., Method]:
        @functools.wraps(objective, NAMES)
        def make(
            training: LocalTraining,
            base: str | Base = "none",
            variant: Variant = "paper",
            **options,
        ) -> Method:
            recipe, losses = losses_of(make, variant, **options)
            base = base_of(base, training, variant) if isinstance(base, str) else base
            return fine_tuning(objective.__name__, training, base, recipe, losses)

        fields = {
            name: p.replace(default=getattr(usual, name))
            for name, p in parameters(Distillation).items()
        }
        first = list(inspect.signature(make, follow_wrapped=False).parameters.values())[:3]
        make.__signature__ = inspect.Signature(
            [*first, *fields.values(), *parameters(objective).values()]
        )
        return checked(make)

    return decorate


def losses_of(
    factory: Callable[..., Method], variant: Variant = "paper", **options
) -> tuple[Distillation, Objective]:
    """Makes a distilling method's recipe and losses as its factory does, of the same options but
    `base`."""
    defaults = {name: p.default for name, p in parameters(factory).items() if name != "variant"}
    options = settled(variant, defaults | options)
    recipe = Distillation(**{name: options.pop(name) for name in parameters(Distillation)})
    return recipe, inspect.unwrap(factory)(recipe, **options)


def composed(base: str, factory: Callable[..., Method]) -> Callable[..., Method]:
    """The factory of a distilling method on a base: (training, its options, the base's options) ->
    Method."""
    own, inherited = parameters(factory), parameters(BASES[base][0])
    weighting = inherited["weighting"]
    inherited["weighting"] = weighting.replace(default=None, annotation=weighting.annotation | None)

    def make(training: LocalTraining, **options) -> Method:
        of_base = {name: options.pop(name) for name in inherited if name in options}
        variant = options.get("variant", own["variant"].default)
        return factory(training, base_of(base, training, variant, **of_base), **options)

    first = inspect.Parameter("training", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    make.__signature__ = inspect.Signature([first, *own.values(), *inherited.values()])
    return make


def base_of(
    name: str,
    training: LocalTraining,
    variant: Variant,
    weighting: Weighting | None = None,
    **options,
) -> Base:
    """Makes a base by name, which weighs clients as the variant says where `weighting` is None;
    errors as of `make_base`."""
    weighting = weighting or FORMS[variant].weighting
    if name != "none" and weighting:  # data-free, nothing is averaged
        options["weighting"] = weighting
    return make_base(name, training, **options)


def parameters(factory: Callable) -> dict[str, inspect.Parameter]:
    """The options of a factory or an objective, without what it is applied to and what composition
    sets."""
    fixed = ("training", "base", "whole_head", "recipe")
    found = inspect.signature(factory).parameters
    return {name: p.replace(kind=p.KEYWORD_ONLY) for name, p in found.items() if name not in fixed}
