"""Every number of a config, of methods' options and of partitions' is refused beyond its bounds."""

import collections
import dataclasses
import functools
import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Union, get_args, get_origin

import optax
import pytest

from fedjax_ht.check.options import Within, annotations_of, bounded, hints_of, limits, options_of
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import TRANSFORMS
from fedjax_ht.data.partition import PARTITIONS, PLANS, check_partition, partition_options
from fedjax_ht.lab.config.base import base_config
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import plain_hint
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.methods.data_free.options import Distillation
from fedjax_ht.methods.shared.pair_server import Alignment
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.trust.defences import DEFENCES

TRAINING = LocalTraining(optax.sgd(0.1))


class Option(NamedTuple):
    """A setting: its place, its name there, annotation, default, and what takes it by its name."""

    place: str
    name: str
    annotation: Any
    default: Any
    take: Callable[..., Any]


def options_of_methods() -> Iterator[Option]:
    for name in (*METHODS, "fedrolex+dfrd", "feddropout+dense"):
        factory = method_factory(name)
        take = functools.partial(factory, TRAINING)
        for p in list(options_of(factory).values())[1:]:
            yield Option(name, p.name, p.annotation, p.default, take)


def options_of_partitions() -> Iterator[Option]:
    for kind in (*PLANS, *PARTITIONS):
        take = functools.partial(check_partition, kind, 20, None)
        for p in partition_options(kind).values():
            yield Option(f"partition {kind}", p.name, p.annotation, p.default, take)


def fields(kind: type = Config, prefix: str = "") -> Iterator[Option]:
    for field in dataclasses.fields(kind):
        name, annotation = f"{prefix}{field.name}", hints_of(kind)[field.name]
        if dataclasses.is_dataclass(annotation):
            yield from fields(annotation, f"{name}.")
        elif field.name != "options":
            yield Option("config", name, plain_hint(annotation), field.default, configure)


def configure(**values: Any) -> None:
    base_config().update(values)


def options_of_the_library() -> Iterator[Option]:
    for kind in (LocalTraining, SimulationOptions, Scoring, Alignment, Distillation):
        required = {"optimizer": optax.sgd(0.1)} if kind is LocalTraining else {}
        take = functools.partial(kind, **required)
        for field in dataclasses.fields(kind):
            annotation = hints_of(kind)[field.name]
            yield Option(kind.__name__, field.name, annotation, field.default, take)
    for name, make in (TRANSFORMS | DEFENCES).items():
        parameters = inspect.signature(make).parameters.values()
        take = functools.partial(make, **{p.name: 0.5 for p in parameters if p.default is p.empty})
        for option, annotation in annotations_of(make).items():
            yield Option(f"transform {name}", option, annotation, None, take)


SOURCES = {
    "methods": options_of_methods,
    "partitions": options_of_partitions,
    "config": fields,
    "library": options_of_the_library,
}


def numbers(annotation: Any) -> Iterator[tuple[type, Within | None]]:
    """Yields the numbers that an annotation allows, as (int or float, declared bounds)."""
    kind, within = bounded(annotation)
    if kind in (int, float):
        yield kind, within
    elif get_origin(kind) in (Union, types.UnionType, tuple, Mapping):
        for argument in get_args(kind):
            yield from numbers(argument)


def bad(kind: type, within) -> dict[str, Any]:
    """Values that a number must not have, by what is wrong with them."""
    least, most, above, below = limits(kind, within)
    values = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "text": "1"}
    if kind is int:
        values |= {"below": least - 1, "above": most + 1, "fraction": least + 0.5, "True": True}
        return values
    lower = above if least <= above else math.nextafter(least, -math.inf)
    higher = below if below <= most else math.nextafter(most, math.inf)
    return values | {"below": lower, "above": higher}


@pytest.mark.parametrize("source", SOURCES)
def test_every_number_has_bounds_and_is_refused_beyond_them(source):
    tried, refused, passed = collections.Counter(), collections.Counter(), []
    for option in SOURCES[source]():
        allowed, where = list(numbers(option.annotation)), f"{option.place}: {option.name}"
        assert option.annotation is not inspect.Parameter.empty, f"{where} has no annotation"
        is_number = isinstance(option.default, int | float) and not isinstance(option.default, bool)
        assert allowed or not is_number, where
        for kind, within in allowed:
            assert within is not None, f"{where} has no bounds"
            for what, value in bad(kind, within).items():
                in_tuple = [(value,)] if "tuple" in str(option.annotation) else []
                for candidate in (value, *in_tuple):
                    tried[what] += 1
                    try:
                        option.take(**{option.name: candidate})
                    except ValueError as error:
                        name = option.name.rpartition(".")[2]
                        refused[what] += f"{name} is " in str(error) and "it must be" in str(error)
                        assert "\n" not in str(error)
                    else:
                        passed.append((option.place, option.name, candidate))
    counts = ", ".join(f"{what} {refused[what]}/{tried[what]}" for what in tried)
    print(f"\nbad inputs of {source}: {refused.total()}/{tried.total()} ({counts})")
    assert not passed and refused == tried and tried.total() > 60
