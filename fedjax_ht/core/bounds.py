"""Which values an option may have: said in its annotation, where it is documented, and checked
here.

    @checked
    def fedfoo(training, weight: NonNegative = 1.0, steps: Count | None = None, variant:
    Literal["a", "b"] = "a"): ...

Understood are bool, str, int and float, the latter two with `Within` or without, Literal, unions,
tuples and mappings of these, and dataclasses, of which a value must be an instance; everything else
passes. A number is never NaN or infinite: without narrower bounds an int fits in int32 and a float
in float32, which is what they become in compiled functions. A float may be given as an int, an int
never as a float, and True is no number. Traced values pass: they were checked where they were
chosen (see `core.method.varied`).
"""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import numpy as np

from fedjax_ht.core.names import meant

F = TypeVar("F", bound=Callable)

INT = 2**31 - 1  # the largest int32
MAX_SEED = 2**32 - 1  # seeds cross into compiled functions as uint32
FLOAT = float(np.finfo(np.float32).max)
SHOWN = 100  # characters of a value in a message


class SearchRange(NamedTuple):
    """The range in which a fair comparison searches an option, from `low` to `high`.

    It stands in the option's annotation, `weight: Annotated[NonNegative, SearchRange(0.01, 10.0)]`,
    and bounds nothing. Values are spread evenly by their logarithms (`low` is then above 0), or,
    without `log`, as they are.
    """

    low: float
    high: float
    log: bool = True


class Within(NamedTuple):
    """Bounds of a number, or of a tuple's length: from `least` to `most`, or without the ends from
    `above` to `below`."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None


Positive = Annotated[float, Within(above=0)]
NonNegative = Annotated[float, Within(least=0)]
Share = Annotated[float, Within(0, 1)]
Part = Annotated[float, Within(above=0, most=1)]  # a share that is something
Rest = Annotated[float, Within(least=0, below=1)]  # a share that leaves something
Count = Annotated[int, Within(1)]
Whole = Annotated[int, Within(0)]  # where 0 has a meaning of its own
Seed = Annotated[int, Within(0, MAX_SEED)]


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Refuses a value that its annotation does not allow.

    Raises:
      ValueError: the value is none that the annotation allows. One line, such as "weight is nan; it
        must be a number of at least 0".
    """
    if passes(value, annotation):
        return
    number, words = _scalar(value), [word for word in _choices(annotation) if isinstance(word, str)]
    shown = " ".join(repr(value if number is None else number).split())
    if " at 0x" in shown:  # functions, and what is made of them
        shown = f"a {type(value).__name__}"
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    rule = f"it must be {describe(annotation, value)}"
    raise ValueError(
        f"{name} is {shown}"
        + (meant(value, words, rule) if isinstance(value, str) else f"; {rule}")
    )


def check_fields(self: Any, prefix: str = "") -> None:
    """Checks the fields of a dataclass, or of a NamedTuple, as its `__post_init__` may; errors as
    of `check_value`."""
    for name, annotation in hints_of(type(self)).items():
        check_value(f"{prefix}{name}", getattr(self, name), annotation)


def checked(function: F) -> F:
    """The function, made to refuse arguments that its annotations do not allow; errors as of
    `check_value`."""
    if hasattr(function, "checks_its_arguments"):
        return function
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # an argument too many or too few: Python says it best
            return function(*args, **kwargs)
        for name, annotation in annotations_of(function).items():
            if name in given:
                check_value(name, given[name], annotation)
        return function(*args, **kwargs)

    call.checks_its_arguments = True
    return call


@functools.cache
def annotations_of(function: Callable) -> dict[str, Any]:
    """Of a function's arguments, by name; not of *args and **kwargs. Annotations that are text stay
    so, and everything passes, where they name what only type checkers import."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:
        signature = inspect.signature(function)
    found = signature.parameters.values()
    return {
        p.name: p.annotation
        for p in found
        if p.kind not in variadic and p.annotation is not p.empty
    }


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """The annotations of a class's fields, with what `Annotated` adds."""
    return get_type_hints(kind, include_extras=True)


def traced(value: Any) -> bool:
    """Whether an option is an argument of compiled functions, see `core.method.varied`: it was
    checked where it was chosen, and no branch can hang on it."""
    return isinstance(value, jax.core.Tracer)


def passes(value: Any, annotation: Any) -> bool:
    """Whether an annotation allows a value."""
    kind, within = _bounded(annotation)
    origin, arguments = get_origin(kind), get_args(kind)
    if traced(value):
        return True
    if kind in (int, float):
        return _number_passes(value, kind, within)
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind is str:
        return isinstance(value, str)
    if kind in (None, types.NoneType):
        return value is None
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin in (Union, types.UnionType):
        return any(passes(value, each) for each in arguments)
    if origin is tuple:
        return isinstance(value, tuple | list | np.ndarray) and _tuple_passes(
            list(value), arguments, within
        )
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            passes(each, arguments[1]) for each in value.values()
        )
    return isinstance(value, kind) if dataclasses.is_dataclass(kind) else True


def describe(annotation: Any, value: Any = None) -> str:
    """What an annotation allows, in words, as in "it must be ..."; of the bounds that every number
    has those that `value` is beyond."""
    kind, within = _bounded(annotation)
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (int, float):
        return _describe_number(kind, within, _scalar(value))
    if kind in (bool, str):
        return "True or False" if kind is bool else "text"
    if origin in (Union, types.UnionType):
        *first, last = [describe(each, value) for each in arguments]
        return f"{', '.join(first)} or {last}"
    if origin is Literal:
        *first, last = map(repr, arguments)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is tuple:
        return _describe_tuple(arguments, within, value)
    if origin is Mapping:
        return f"names with {describe(arguments[1])} each"
    if dataclasses.is_dataclass(kind):
        return f"a {kind.__name__}(...)"
    return "None" if kind in (None, types.NoneType) else "a value"


def numbers(annotation: Any) -> Iterator[tuple[type, Within | None]]:
    """The numbers that an annotation allows: int or float, and their bounds, None where none are
    stated."""
    kind, within = _bounded(annotation)
    if kind in (int, float):
        yield kind, within
    elif get_origin(kind) in (Union, types.UnionType, tuple, Mapping):
        for each in get_args(kind):
            yield from numbers(each)


def kind_of(annotation: Any) -> type:
    """Returns the type of an option's values that are not None, as a config has it: bool, int,
    float, str or tuple; float where the annotation names several or none of these."""
    kind, _ = _bounded(annotation)
    if get_origin(kind) is Literal:
        kinds = {type(choice) for choice in get_args(kind)}
    elif get_origin(kind) in (Union, types.UnionType):
        kinds = {kind_of(each) for each in get_args(kind) if each is not types.NoneType}
    elif get_origin(kind) is tuple:
        kinds = {tuple}
    else:
        kinds = {kind}
    return kinds.pop() if len(kinds) == 1 and kinds <= {bool, int, float, str, tuple} else float


def limits(kind: type, within: Within | None) -> Within:
    """All four bounds of a number, those of int32 or float32 where none are stated."""
    within, widest = within or Within(), INT if kind is int else FLOAT
    return Within(
        -widest - (kind is int) if within.least is None else within.least,
        widest if within.most is None else within.most,
        -np.inf if within.above is None else within.above,
        np.inf if within.below is None else within.below,
    )


def search_ranges(function: Callable) -> dict[str, SearchRange]:
    """Returns the options of a factory whose annotations have a `SearchRange`, in the order of its
    signature."""
    ranges = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        search_range = _extra(parameter.annotation, SearchRange)
        if search_range is not None:
            ranges[name] = search_range
    return ranges


def _bounded(annotation: Any) -> tuple[Any, Within | None]:
    """What is annotated, and its bounds."""
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return kind, _extra(annotation, Within)


def _extra(annotation: Any, kind: type) -> Any:
    """Returns what `Annotated` adds of a kind, None where it adds nothing of it."""
    extras = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((extra for extra in extras if isinstance(extra, kind)), None)


def _scalar(value: Any) -> int | float | None:
    """A number, NumPy's and jax's among them, as Python's; None of anything else."""
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number_passes(value: Any, kind: type, within: Within | None) -> bool:
    number, (least, most, above, below) = _scalar(value), limits(kind, within)
    fits = isinstance(number, int) or (kind is float and number is not None)
    return fits and least <= number <= most and above < number < below


def _tuple_passes(values: list, arguments: tuple, within: Within | None) -> bool:
    if arguments[-1] is Ellipsis:
        arguments = arguments[:1] * len(values)
    long_enough = within is None or _number_passes(len(values), int, within)
    return long_enough and len(arguments) == len(values) and all(map(passes, values, arguments))


def _describe_number(kind: type, within: Within | None, number: int | float | None) -> str:
    least, most, above, below = within or Within()
    widest = limits(kind, None)
    # the bounds that every number has are said of a number that is beyond them
    if number is not None:
        least = widest.least if least is None and number < widest.least else least
        most = widest.most if most is None and number > widest.most else most
    name, ends = "an integer" if kind is int else "a number", []
    if least is not None and most is not None:
        return f"{name} from {_bound(least)} to {_bound(most)}"
    for words, end in (
        ("of at least", least),
        ("above", above),
        ("of at most", most),
        ("below", below),
    ):
        if end is not None:
            ends.append(f"{words.removeprefix('of ') if ends else words} {_bound(end)}")
    return " ".join([name, *[" and ".join(ends)] * bool(ends)])


def _describe_tuple(arguments: tuple, within: Within | None, value: Any) -> str:
    values = list(value) if isinstance(value, tuple | list | np.ndarray) else []
    if arguments[-1] is not Ellipsis:
        return f"({', '.join(describe(each) for each in arguments)}{',' * (len(arguments) == 1)})"
    wrong = next((each for each in values if not passes(each, arguments[0])), None)
    length = f" of at least {within.least}" if within else ""
    return f"a tuple{length}, each {describe(arguments[0], wrong)}"


def _choices(annotation: Any) -> list[Any]:
    kind, _ = _bounded(annotation)
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [choice for each in get_args(kind) for choice in _choices(each)]


def _bound(end: int | float) -> str:
    return f"{end:g}" if isinstance(end, float) else str(end)
