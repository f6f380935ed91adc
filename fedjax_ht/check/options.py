"""Options: annotations declare the allowed values, and decorated functions reject others.

    @checked
    def fedfoo(
        training,
        weight: NonNegative = 1.0,
        steps: Count | None = None,
        variant: Literal["a", "b"] = "a",
    ): ...

Supported annotations are bool, str, int and float (the latter two optionally with `Within`),
Literal, unions, tuples, sequences and mappings of these, dicts, arrays (lists are accepted), paths,
functions, and kinds: dataclasses and NamedTuples, of which a value must be an instance. All other
annotations allow any value. A number is never NaN or infinite: without narrower bounds an int must
fit into int32 and a float into float32, their types in compiled functions. An int is accepted as a
float, a float not as an int, and True is not a number. Traced values are allowed: they were checked
where they were chosen (see `core.method.varied`).
"""

import dataclasses
import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
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

import numpy as np
from jax.core import Tracer

from fedjax_ht.check.classes import is_kind, is_named_tuple, is_of_kind, kind_text
from fedjax_ht.check.names import kind_of_value, meant, unknown_option, with_article

F = TypeVar("F", bound=Callable)
T = TypeVar("T")

SHOWN = 100  # characters of a value in a message
NAMES = {bool: "True or False", str: "a string", None: "None", types.NoneType: "None"}

INT = 2**31 - 1  # the largest int32
MAX_SEED = 2**32 - 1  # seeds cross into compiled functions as uint32
FLOAT = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).tiny)  # compiled code flushes smaller numbers to 0


class SearchRange(NamedTuple):
    """The range in which a fair comparison searches an option, from `low` to `high`.

    It is part of the option's annotation and does not restrict its values: `weight:
    Annotated[NonNegative, SearchRange(0.01, 10.0)]`. Values are evenly spaced on a logarithmic
    scale (`low` is then above 0), or without `log` on a linear one.
    """

    low: float
    high: float
    log: bool = True

    @property
    def is_range(self) -> bool:
        """True if finite, low < high, and above 0 on a logarithmic scale."""
        low_fits = self.low > 0 or not self.log
        return self.low < self.high and math.isfinite(self.high - self.low) and low_fits


class NotGiven(NamedTuple):
    """The value in config files that means "not given", which is None in Python.

    It is part of the option's annotation, `Annotated[Count | None, NotGiven(0)]`, and does not
    restrict its values.
    """

    plain: int | float | str


class Within(NamedTuple):
    """Bounds of a number, or of a tuple's length.

    Attributes:
      least, most: inclusive bounds.
      above, below: exclusive bounds.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None


class Limits(NamedTuple):
    """All four bounds of a number, as in `Within`."""

    least: float
    most: float
    above: float
    below: float


Positive = Annotated[float, Within(above=0)]
NonNegative = Annotated[float, Within(least=0)]
Share = Annotated[float, Within(0, 1)]
Part = Annotated[float, Within(above=0, most=1)]  # a share above 0
Rest = Annotated[float, Within(least=0, below=1)]  # a share below 1
Count = Annotated[int, Within(1)]
Whole = Annotated[int, Within(0)]  # for options where 0 has a special meaning
Seed = Annotated[int, Within(0, MAX_SEED)]
OptionalCount = Annotated[Count | None, NotGiven(0)]
OptionalText = Annotated[str | None, NotGiven("")]


@functools.cache
def annotations_of(function: Callable) -> dict[str, Any]:
    """Returns the annotations of a function's arguments by name, without *args and **kwargs.

    Annotations that name imports for type checkers only stay strings, and so allow any value.
    """
    annotations = {}
    for name, parameter in options_of(function).items():
        if parameter.annotation is not parameter.empty:
            annotations[name] = parameter.annotation
    return annotations


def options_of(function: Callable) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a function by name.

    *args are skipped, and **options are replaced by the keyword-only parameters of the functions
    and classes that document them, see `check.docstrings.documented_by`.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:
        signature = inspect.signature(function)
    options, passed_on = {}, {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            for source in getattr(getattr(function, "func", function), "documented_by", ()):
                for key, other in options_of(source).items():
                    if other.kind is other.KEYWORD_ONLY:
                        passed_on[key] = other
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            options[name] = parameter
    for key, other in passed_on.items():
        options.setdefault(key, other)
    return options


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """Returns the annotations of a class's fields, with the extras of `Annotated`."""
    return get_type_hints(kind, include_extras=True)


def traced(value: Any) -> bool:
    """Returns whether an option is traced, see `core.method.varied`.

    Its value was checked where it was chosen, and no branch may depend on it.
    """
    return isinstance(value, Tracer)


def allows(annotation: Any, value: Any) -> bool:
    """Returns whether an annotation allows a value."""
    kind, within = bounded(annotation)
    if traced(value):
        return True
    if kind in (int, float):
        return number_fits(value, kind, within)
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind is str:
        return isinstance(value, str)
    if kind in (None, types.NoneType):
        return value is None
    verdict = is_of_kind(kind, value)
    if verdict is not None:
        return verdict
    return _form_allows(kind, within, value)


def entries_of(annotation: Any, value: Any) -> list[tuple[Any, Any, Any]] | None:
    """Returns (index or key, entry, annotation) of each entry of a tuple, list or dict.

    None if the value or the annotation is another one.
    """
    form, arguments = get_origin(annotation), get_args(annotation)
    if form in (Union, types.UnionType) and arguments[1:] == (types.NoneType,):
        return entries_of(arguments[0], value)
    is_row = isinstance(value, tuple | list) and not is_named_tuple(type(value))
    if form in (tuple, Sequence) and is_row:
        return [(place, entry, arguments[0]) for place, entry in enumerate(value)]
    if form is Mapping and isinstance(value, Mapping):
        return [(key, entry, arguments[1]) for key, entry in value.items()]
    return None


def _form_allows(kind: Any, within: Within | None, value: Any) -> bool:
    """Returns whether a choice, a union, a tuple, a sequence or a mapping allows a value."""
    form, arguments = get_origin(kind), get_args(kind)
    if form is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if form in (Union, types.UnionType):
        return any(allows(argument, value) for argument in arguments)
    if form is tuple:
        is_sequence = isinstance(value, tuple | list | np.ndarray)
        return is_sequence and _tuple_allows(arguments, within, list(value))
    if form in (Sequence, Mapping):
        entries = entries_of(kind, value)
        return entries is not None and all(allows(each, entry) for _, entry, each in entries)
    return True


def _tuple_allows(arguments: tuple, within: Within | None, values: list) -> bool:
    if arguments[-1] is Ellipsis:
        arguments = arguments[:1] * len(values)
    if within is not None and not number_fits(len(values), int, within):
        return False
    return len(arguments) == len(values) and all(map(allows, arguments, values))


def number_fits(value: Any, kind: type, within: Within | None) -> bool:
    """Returns whether a value is a number of this kind, int or float, within its bounds."""
    number, (least, most, above, below) = scalar(value), limits(kind, within)
    if number is None or (kind is int and not isinstance(number, int)):
        return False
    return least <= number <= most and above < number < below


def limits(kind: type, within: Within | None) -> Limits:
    """Returns all four bounds of a number; undeclared ones are those of int32 or float32."""
    widest = Limits(least=-FLOAT, most=FLOAT, above=-np.inf, below=np.inf)
    if kind is int:
        widest = widest._replace(least=-INT - 1, most=INT)
    stated = {}
    for name, bound in (within or Within())._asdict().items():
        if bound is not None:
            stated[name] = bound
    if kind is float and stated.get("above") == 0:
        widest = widest._replace(least=TINY)
    return widest._replace(**stated)


def kind_of(annotation: Any) -> type:
    """Returns the type of an option's values other than None: bool, int, float, str or tuple.

    It is float if the annotation names several types, or none of these.
    """
    kind, _ = bounded(annotation)
    if get_origin(kind) is Literal:
        kinds = {type(choice) for choice in get_args(kind)}
    elif get_origin(kind) in (Union, types.UnionType):
        kinds = {kind_of(argument) for argument in get_args(kind) if argument is not types.NoneType}
    elif get_origin(kind) is tuple:
        kinds = {tuple}
    else:
        kinds = {kind}
    if len(kinds) == 1 and kinds <= {bool, int, float, str, tuple}:
        return kinds.pop()
    return float


def search_ranges(function: Callable) -> dict[str, SearchRange]:
    """Returns the options of a factory that have a `SearchRange`, in the order of its signature.

    Raises:
      ValueError: a range is empty or not finite, or has values that the option does not allow,
        such as the fractions of an integer's. One line.
    """
    ranges = {}
    for name, parameter in options_of(function).items():
        search_range = extra_of(parameter.annotation, SearchRange)
        if search_range is None:
            continue
        if not search_range.is_range:
            above = ", and low above 0 without log=False" if search_range.log else ""
            raise ValueError(f"{name} has {search_range}; it must be finite, low < high{above}")
        for end in (search_range.low, search_range.high):
            check_value(f"{name}, in its SearchRange,", float(end), parameter.annotation)
        ranges[name] = search_range
    return ranges


def bounded(annotation: Any) -> tuple[Any, Within | None]:
    """Splits an annotation into its type and its bounds (None without any)."""
    if get_origin(annotation) is not Annotated:
        return annotation, None
    return get_args(annotation)[0], extra_of(annotation, Within)


def extra_of(annotation: Any, kind: type) -> Any:
    """Returns the metadata of this type in `Annotated`; None without one."""
    if get_origin(annotation) is not Annotated:
        return None
    for extra in get_args(annotation)[1:]:
        if isinstance(extra, kind):
            return extra
    return None


def scalar(value: Any) -> int | float | None:
    """Converts a number, also of NumPy or jax, to Python's; returns None for other values."""
    if getattr(value, "ndim", None) == 0:
        try:
            value = value.item()
        except NotImplementedError:  # a random key
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def describe(annotation: Any, value: Any = None) -> str:
    """Describes the values that an annotation allows.

    Args:
      annotation: an annotation of a field, in a form of the module's docstring.
      value: the rejected value; the implicit bounds of numbers are named only if it exceeds them.
    """
    kind, within = bounded(annotation)
    form, arguments = get_origin(kind), get_args(kind)
    if kind in (int, float):
        return _describe_number(kind, _told_bounds(kind, within, scalar(value)))
    if form in (Union, types.UnionType):
        return _either([describe(argument, value) for argument in arguments])
    if form is Literal:
        return _either([repr(argument) for argument in arguments])
    if form is tuple:
        return _describe_tuple(arguments, within, value)
    if form is Mapping:
        return f"a dict, name -> {describe(arguments[1])}"
    if form is Sequence:
        return f"a list, each {describe(arguments[0])}"
    return kind_text(kind) or NAMES.get(kind, "a value")


def choices(annotation: Any) -> list[Any]:
    """Returns the choices (values of Literal) in an annotation."""
    kind, _ = bounded(annotation)
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    values = []
    for argument in get_args(kind):
        values += choices(argument)
    return values


def _either(texts: Sequence[str]) -> str:
    """Joins strings as "a, b or c", without duplicates."""
    *first, last = dict.fromkeys(texts)
    if not first:
        return last
    return f"{', '.join(first)} or {last}"


def _told_bounds(kind: type, within: Within | None, number: int | float | None) -> Within:
    """Returns a number's bounds to name: the declared ones, and its type's if it exceeds them."""
    within, widest = within or Within(), limits(kind, None)
    if number is not None and within.least is None and number < widest.least:
        within = within._replace(least=widest.least)
    if number is not None and within.most is None and number > widest.most:
        within = within._replace(most=widest.most)
    return within


def _describe_number(kind: type, within: Within) -> str:
    name = "an integer" if kind is int else "a number"
    if within.least is not None and within.most is not None:
        return f"{name} from {_number(within.least)} to {_number(within.most)}"
    ends = {
        "at least": within.least,
        "above": within.above,
        "at most": within.most,
        "below": within.below,
    }
    text = " and ".join(f"{word} {_number(end)}" for word, end in ends.items() if end is not None)
    # "a number above 0 and at most 1", but "a number of at most 1"
    if text.startswith("at "):
        text = f"of {text}"
    return f"{name} {text}".rstrip()


def _describe_tuple(arguments: tuple, within: Within | None, value: Any) -> str:
    if arguments[-1] is not Ellipsis:
        entries = ", ".join(map(describe, arguments))
        if len(arguments) == 1:
            entries += ","
        return f"({entries})"
    refused = None
    if isinstance(value, tuple | list | np.ndarray):
        refused = next((entry for entry in value if not allows(arguments[0], entry)), None)
    text = "a tuple"
    if within:
        text += f" of at least {within.least}"
    return f"{text}, each {describe(arguments[0], refused)}"


def _number(end: int | float) -> str:
    if isinstance(end, float):
        return f"{end:g}"
    return str(end)


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Checks that an annotation allows a value.

    Raises:
      ValueError: it does not. One line, such as "weight is nan; it must be a number of at least 0".
    """
    if allows(annotation, value):
        return
    for key, entry, kind in entries_of(annotation, value) or ():
        if is_kind(kind):
            check_value(f"{name}[{key!r}]", entry, kind)
    rule = f"it must be {describe(annotation, value)}"
    if isinstance(value, str):
        names = [choice for choice in choices(annotation) if isinstance(choice, str)]
        raise ValueError(f"{name} is {_shown(value)}{meant(value, names, rule)}")
    raise ValueError(f"{name} is {_shown(value)}; {rule}")


def check_fields(self: Any, prefix: str = "") -> None:
    """Checks the fields of a dataclass or NamedTuple, e.g. in its `__post_init__`.

    Args:
      self: the instance to check.
      prefix: prefix of field names in messages.

    Raises:
      ValueError: see `check_value`.
    """
    for name, annotation in hints_of(type(self)).items():
        check_value(f"{prefix}{name}", getattr(self, name), annotation)


def checked(function: F) -> F:
    """Makes a function reject arguments that its annotations do not allow, see `check_value`.

    Example:
      >>> @fl.checked
      ... def mymethod(training, weight: fl.NonNegative = 1.0):
      ...     return weight
      >>> mymethod(None, weight=-1.0)
      Traceback (most recent call last):
      ...
      ValueError: weight is -1.0; it must be a number of at least 0
    """
    if hasattr(function, "checks_its_arguments"):
        return function
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            arguments = signature.bind(*args, **kwargs).arguments | kwargs
        except TypeError:  # too many or too few arguments: Python's message is clearest
            refuse_unknown(function.__name__, kwargs, signature)
            return function(*args, **kwargs)
        for name, annotation in annotations_of(function).items():
            if name in arguments and not allows(annotation, arguments[name]):
                _refuse(function, name, arguments)
        return function(*args, **kwargs)

    marked: Any = call  # functions declare no attributes
    marked.checks_its_arguments = True
    return marked


def named_options(kind: type[T]) -> type[T]:
    """Makes a dataclass list its fields when it gets an unknown keyword."""
    make = kind.__init__
    signature = inspect.signature(kind)

    @functools.wraps(make)
    def init(self, *args, **kwargs):
        refuse_unknown(kind.__name__, kwargs, signature)
        make(self, *args, **kwargs)

    kind.__init__ = init
    return kind


def refuse_unknown(owner: str, kwargs: Mapping[str, Any], signature: inspect.Signature) -> None:
    """Raises a one-line TypeError if a keyword is not in a signature."""
    parameters = signature.parameters
    unknown = [name for name in kwargs if name not in parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        more = _taker(unknown[0], signature)
        raise TypeError(unknown_option(owner, unknown[0], list(parameters), more))


def _taker(name: str, signature: inspect.Signature) -> str:
    """Returns "; pass seed by options=SimulationOptions(seed=...)" for a field of a parameter."""
    for parameter in signature.parameters.values():
        annotation = parameter.annotation
        for kind in (annotation, *get_args(annotation)):
            is_class = isinstance(kind, type) and dataclasses.is_dataclass(kind)
            if is_class and name in hints_of(kind):
                return f"; pass {name} by {parameter.name}={kind.__name__}({name}=...)"
    return ""


def _refuse(function: Callable, name: str, arguments: Mapping[str, Any]) -> None:
    """Raises the ValueError of `check_value`.

    If another parameter takes such a value, the message ends with the order of parameters.
    """
    annotations, kind = annotations_of(function), type(arguments[name])
    try:
        check_value(name, arguments[name], annotations[name])
    except ValueError as error:
        takers = [annotation for annotation in annotations.values() if _is_of(annotation, kind)]
        if not takers:
            raise
        parameters = inspect.signature(function).parameters.values()
        order = ", ".join(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        raise ValueError(f"{error}; the order is {function.__name__}({order})") from None


def _is_of(annotation: Any, kind: type) -> bool:
    """Returns whether an annotation is a kind, or a union that contains it."""
    return is_kind(kind) and kind in (annotation, *get_args(annotation))


def _shown(value: Any) -> str:
    """Formats a value for a message, on one short line."""
    number = scalar(value)
    if inspect.isfunction(value):
        return f"the function {value.__name__}"
    if is_kind(type(value)):
        return with_article(type(value).__name__)
    text = " ".join(repr(value if number is None else number).split())
    if " at 0x" in text:  # an object that contains functions
        text = with_article(type(value).__name__)
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}..." if isinstance(value, str) else kind_of_value(value)
