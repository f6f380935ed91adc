"""Spaces of settings for a search, as written in `--over`, and the points in them."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_ht.check.options import SearchRange, search_ranges
from fedjax_ht.lab.config.entries import split_spec
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.methods import method_factory

FACTOR = 8.0  # of the config's learning rate, up and down
RATE = "training.learning_rate"

Space = Mapping[str, tuple[str, ...] | SearchRange]
"""A setting, named as in an entry (entries.py) -> its values, written as in an entry, or their
range."""
Point = dict[str, str]


def parse_space(over: Sequence[str]) -> Space:
    """Parses a space: "weight=0.1,1,10", "weight=log:0.1:10", "method.options.mu=uniform:0:1".

    Raises:
      ValueError: a specification is invalid. One line.
    """
    space: Space = {}
    for spec in over:
        key, equals, text = spec.partition("=")
        key = key.removeprefix("method.options.").removeprefix("method.")
        if not key or not equals or not text:
            raise ValueError(
                f"--over is {spec!r}; it must be KEY=VALUE,VALUE,... or KEY=log:LOW:HIGH or "
                "uniform:LOW:HIGH"
            )
        if key in space:
            raise ValueError(f"--over names {key} twice")
        kind, *ends = text.split(":")
        space[key] = _range(spec, kind, ends) if ends else tuple(text.split(","))
    return space


def _range(spec: str, kind: str, ends: Sequence[str]) -> SearchRange:
    try:
        low, high = map(float, ends)
    except ValueError:
        low = high = math.nan  # no comparison holds
    search_range = SearchRange(low, high, kind == "log")
    if kind not in ("log", "uniform") or not search_range.is_range:
        raise ValueError(
            f"--over is {spec!r}; a range is log:LOW:HIGH, above 0, or uniform:LOW:HIGH, such as "
            "log:0.01:1"
        )
    return search_range


def grid(space: Space) -> list[Point]:
    """Returns all combinations; the last setting changes fastest.

    Raises:
      ValueError: a setting has a range.
    """
    choices = []
    for key, values in space.items():
        if isinstance(values, SearchRange):
            raise ValueError(
                f"{key} has a range, which a grid cannot enumerate; give a number of points by "
                "--draws"
            )
        choices.append(values)
    return [dict(zip(space, values)) for values in itertools.product(*choices)]


MOST_DIGITS = 6  # those of :g


def draw(space: Space, count: int, seed: int = 0) -> list[Point]:
    """Returns `count` points of a Latin hypercube, which covers each setting's range evenly.

    A pure function of its arguments. Values have two significant digits, for readable labels, or
    as many as keep them in their range and the points distinct.
    """
    rng = np.random.default_rng(seed)
    shares = {key: (rng.permutation(count) + rng.random(count)) / count for key in space}
    points: list[Point] = []
    for i in range(count):
        point: Point = {}
        for digits in range(2, MOST_DIGITS + 1):
            point = {key: _value(space[key], shares[key][i], digits) for key in space}
            if point not in points:
                break
        points.append(point)
    return points


def _value(values: tuple[str, ...] | SearchRange, share: float, digits: int) -> str:
    """Returns a value, a number with so many digits, or as many as keep it in its range."""
    if not isinstance(values, SearchRange):
        return values[int(share * len(values))]
    if values.log:
        low, high = math.log(values.low), math.log(values.high)
        number = math.exp(low + share * (high - low))
    else:
        number = values.low + share * (values.high - values.low)
    for most in range(digits, MOST_DIGITS + 1):
        text = f"{float(f'{number:.{most}g}'):g}"
        if values.low <= float(text) <= values.high:
            return text
    return repr(number)


def points_of(entry: str, space: Space, draws: int | None) -> list[str]:
    """Returns the labels of a space's points: one per draw, or all of a grid without draws.

    With draws, the entry itself comes first.

    Raises:
      ValueError: the space is empty or has a setting of the entry, or a grid has a range.
    """
    if not space:
        raise ValueError(
            "--over names no setting to search, such as --over=training.learning_rate=0.01,0.1"
        )
    for setting in split_spec(entry)[1:]:
        if (key := setting.partition("=")[0].removeprefix("method.")) in space:
            raise ValueError(f"{entry} sets {key}, which the search varies; leave it out")
    if draws is not None and draws < 1:
        raise ValueError(f"--draws is {draws}; it must be at least 1")
    points = grid(space) if draws is None else [{}, *draw(space, draws)]
    labels = (":".join([entry, *map("=".join, point.items())]) for point in points)
    return list(dict.fromkeys(labels))


def space_of(method: str, config: Config, recipe: Space | None = None) -> Space:
    """Returns the search space of a method.

    It contains the learning rate, other fields of the recipe, and the options that the method's
    factory declares with a `check.options.SearchRange`.

    Args:
      method: name of the method.
      config: the config of the comparison; its learning rate is the middle of the range.
      recipe: fields of `training` with their values or ranges, the same for all methods. They
        precede a method's own options, so that all methods have the same draws of them, up to
        rounding.

    Raises:
      ValueError: a setting of the recipe is not a field of `training`, or is the learning rate
        without a range.
    """
    recipe = recipe or {}
    for key in recipe:
        if not key.startswith("training."):
            raise ValueError(
                f"--over names {key!r}; with --fair it must name a field of training, which all "
                "methods have, such as --over=training.batch_size=64,512"
            )
        if key == RATE and not isinstance(recipe[key], SearchRange):
            raise ValueError(
                f"--over lists values of {RATE}, all that some methods search; with --fair give a "
                f"range, such as --over={RATE}=log:0.01:1"
            )
    rate = config.training.learning_rate
    ranges = search_ranges(method_factory(method))
    return {RATE: SearchRange(rate / FACTOR, rate * FACTOR), **recipe, **ranges}


def described_space(space: Space) -> str:
    """Describes the settings of a space: "weight from 0.01 to 10, training.epochs 1 or 10"."""
    parts = []
    for key, values in space.items():
        if isinstance(values, SearchRange):
            parts.append(f"{key} from {values.low:g} to {values.high:g}")
        else:
            parts.append(f"{key} {' or '.join(values)}")
    return ", ".join(parts)
