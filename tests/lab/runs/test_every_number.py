"""Every number of a config, of methods' options and of partitions' is refused beyond its bounds."""

import collections
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import optax
import pytest

from fedjax_ht.check.options import annotations_of, hints_of, limits, numbers, options_of
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import TRANSFORMS
from fedjax_ht.data.partition import PARTITIONS, PLANS, check_partition, partition_options
from fedjax_ht.lab.config.base import base_config
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import paths, plain_hint
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.methods.data_free.options import Distillation
from fedjax_ht.methods.shared.pair_server import Alignment
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.trust.defences import DEFENCES

TRAINING = LocalTraining(optax.sgd(0.1))


class Option(NamedTuple):
    """A setting: its place, its name there, annotation, default, and how to take a value."""

    place: str
    name: str
    annotation: Any
    default: Any
    give: Callable[[Any], Any]


def options_of_methods() -> Iterator[Option]:
    for name in (*METHODS, "fedrolex+dfrd", "feddropout+dense"):
        factory = method_factory(name)
        for p in list(options_of(factory).values())[1:]:

            def give(v, factory=factory, k=p.name):
                return factory(TRAINING, **{k: v})

            yield Option(name, p.name, p.annotation, p.default, give)


def options_of_partitions() -> Iterator[Option]:
    for kind in (*PLANS, *PARTITIONS):
        for p in partition_options(kind).values():

            def give(v, kind=kind, k=p.name):
                return check_partition(kind, 20, None, **{k: v})

            yield Option(f"partition {kind}", p.name, p.annotation, p.default, give)


def fields(kind: type = Config, prefix: str = "") -> Iterator[Option]:
    for field in dataclasses.fields(kind):
        name, annotation = field.name, hints_of(kind)[field.name]
        if dataclasses.is_dataclass(annotation):
            yield from fields(annotation, f"{prefix}{name}.")
        elif name != "options":
            give = functools.partial(configure, f"{prefix}{name}")
            annotation = plain_hint(annotation)
            yield Option("config", f"{prefix}{name}", annotation, field.default, give)


def configure(path: str, value: Any) -> None:
    base_config().update({path: value})


def options_of_the_library() -> Iterator[Option]:
    for kind, required in (
        (LocalTraining, {"optimizer": optax.sgd(0.1)}),
        (SimulationOptions, {}),
        (Scoring, {}),
        (Alignment, {}),
        (Distillation, {}),
    ):
        for field in dataclasses.fields(kind):
            annotation = hints_of(kind)[field.name]

            def give(v, kind=kind, required=required, k=field.name):
                return kind(**required | {k: v})

            yield Option(kind.__name__, field.name, annotation, field.default, give)
    for name, make in (TRANSFORMS | DEFENCES).items():
        parameters = inspect.signature(make).parameters.values()
        needed = {p.name: 0.5 for p in parameters if p.default is p.empty}
        for option, annotation in annotations_of(make).items():

            def give(v, make=make, needed=needed, k=option):
                return make(**needed | {k: v})

            yield Option(f"transform {name}", option, annotation, None, give)


SOURCES = {
    "methods": options_of_methods,
    "partitions": options_of_partitions,
    "config": fields,
    "library": options_of_the_library,
}


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
def test_every_number_is_refused_beyond_its_bounds(source):
    tried, refused, passed = collections.Counter(), collections.Counter(), []
    for option in SOURCES[source]():
        for kind, within in numbers(option.annotation):
            for what, value in bad(kind, within).items():
                in_tuple = [(value,)] if "tuple" in str(option.annotation) else []
                for candidate in (value, *in_tuple):
                    tried[what] += 1
                    try:
                        option.give(candidate)
                    except ValueError as error:
                        name = option.name.rpartition(".")[2]
                        refused[what] += f"{name} is " in str(error) and "it must be" in str(error)
                        assert "\n" not in str(error)
                    else:
                        passed.append((option.place, option.name, candidate))
    counts = ", ".join(f"{what} {refused[what]}/{tried[what]}" for what in tried)
    print(f"\nbad inputs of {source}: {refused.total()}/{tried.total()} ({counts})")
    assert not passed and refused == tried and tried.total() > 60


def test_the_fields_are_those_of_the_base_config():
    config_paths = {path for path in paths(base_config()) if "options" not in path}
    field_names = {option.name for option in fields()}
    assert field_names | {path.rpartition(".")[0] for path in field_names} - {""} == config_paths


@pytest.mark.parametrize("source", SOURCES)
def test_every_number_has_bounds(source):
    for option in SOURCES[source]():
        bounded, where = list(numbers(option.annotation)), f"{option.place}: {option.name}"
        assert option.annotation is not inspect.Parameter.empty, f"{where} has no annotation"
        default = option.default
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        assert bounded or not is_number, where
        assert all(within is not None for _, within in bounded), f"{where} has no bounds"


def test_the_defaults_are_allowed():
    for option in options_of_partitions():
        option.give(option.default)
    for option in options_of_the_library():
        if option.default is not dataclasses.MISSING and not option.place.startswith("transform"):
            option.give(option.default)
    plan(base_config())
