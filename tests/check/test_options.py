"""Values that an annotation allows, and the lines that refuse all others."""

import dataclasses
import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.check.named_numbers import Spec, as_tuples, parse_spec, read_spec
from fedjax_ht.check.options import (
    FLOAT,
    INT,
    MAX_SEED,
    Count,
    NonNegative,
    Part,
    Positive,
    Rest,
    SearchRange,
    Seed,
    Share,
    Whole,
    Within,
    check_fields,
    check_value,
    checked,
    search_ranges,
)
from tests.registered import nothing_registered

TRAINING = fl.LocalTraining(optax.sgd(0.1))
Widths = Literal["auto"] | tuple[Literal["auto"]] | Annotated[tuple[Positive, ...], Within(1)]
NAN, INFINITY = math.nan, math.inf
METHOD = "a method, such as fl.local(fl.LocalTraining(optax.sgd(0.1)))"

GOOD = [
    (0.1, Positive),
    (3, Positive),
    (np.float32(0.5), Share),
    (jnp.array(2), Count),
    (0, Share),
    (1, Share),
    (0.999, Rest),
    (INT, Count),
    (0, Whole),
    (MAX_SEED, Seed),
    (FLOAT, Positive),
    (1.2e-38, Positive),
    (-3, int),
    (-3.5, float),
    (True, bool),
    (np.bool_(False), bool),
    ("a", str),
    ("a", Literal["a", "b"]),
    (None, Count | None),
    (3, Count | None),
    ("auto", Widths),
    (("auto",), Widths),
    (["auto"], Widths),  # of a JSON file
    ((1.0, 2), Widths),
    (np.array([1.0, 2.0]), Widths),
    ((), tuple[str, ...]),
    ({"cnn": 2}, Count | Mapping[str, Count]),
    (print, Callable[[int], int]),
    ("anything", jax.Array),
    (fl.Split(np.zeros(2), 2), fl.Split),
    ([fl.Split(np.zeros(2), 2)], Sequence[fl.Split]),
    ((), Sequence[fl.Split]),
    ([{"a": 1}], Sequence[dict[str, Any]]),
    (fl.AsStored(), Callable | None),
    ("data", str | os.PathLike | None),
    (Path("data"), str | Path),
    ([0, 1], np.ndarray),
    (jnp.ones(2), np.ndarray | None),
    ({"a": nn.Dense(1)}, Mapping[str, nn.Module]),
]
BAD = [  # value, annotation, what it must be, or the line where the value is shown otherwise
    (NAN, Positive, "a number above 0"),
    (INFINITY, Positive, "a number above 0 and at most 3.40282e+38"),
    (1e39, Positive, "a number above 0 and at most 3.40282e+38"),
    (-INFINITY, float, "a number of at least -3.40282e+38"),
    (NAN, float, "a number"),
    (jnp.float32(NAN), Share, "x is nan; it must be a number from 0 to 1"),
    (0, Positive, "a number above 0"),
    (5e-324, Positive, "a number above 0"),  # 0 in float32
    (-1, NonNegative, "a number of at least 0"),
    (0.0, Part, "a number above 0 and at most 1"),
    (1, Rest, "a number of at least 0 and below 1"),
    (True, Share, "a number from 0 to 1"),
    ("0.1", Positive, "a number above 0"),
    (jnp.ones(3), Positive, "x is Array([1., 1., 1.], dtype=float32); it must be a number above 0"),
    (2.0, Count, "an integer of at least 1"),
    (0, Count, "an integer of at least 1"),
    (10**12, Count, "an integer from 1 to 2147483647"),
    (10**12, Seed, "an integer from 0 to 4294967295"),
    (-(2**31) - 1, int, "an integer of at least -2147483648"),
    (1, bool, "True or False"),
    (3, str, "a string"),
    ("c", Literal["a", "b"], "'a' or 'b'"),
    (1, Literal[True, 2], "True or 2"),
    ("papers", Literal["paper", "released"], "x is 'papers'; did you mean 'paper'?"),
    (0, Count | None, "an integer of at least 1 or None"),
    ((), Annotated[tuple[Positive, ...], Within(1)], "a tuple of at least 1, each a number above"),
    ((1, NAN), tuple[Positive, ...], "a tuple, each a number above 0"),
    ((1,), tuple[Count, Count], "(an integer of at least 1, an integer of at least 1)"),
    (("medium",), Widths, "'auto', ('auto',) or a tuple of at least 1, each a number above 0"),
    ({"cnn": 0}, Mapping[str, Count], "a dict, name -> an integer of at least 1"),
    ("anything", fl.Data, "a Data(...)"),
    (jax.random.key(0), Seed, "x is Array((), dtype=key<fry>) overlaying"),
    (
        {"a": fl.fedproto},
        Mapping[str, fl.Method] | None,
        "x['a'] is the function fedproto; it must",
    ),
    (fl.AsStored(), fl.Pixels, "x is an AsStored; it must be a Pixels(...)"),
    (fl.fedproto, fl.Method, f"x is the function fedproto; it must be {METHOD}"),
    (TRAINING, fl.Method | None, f"x is a LocalTraining; it must be {METHOD} or None"),
    (fl.Split(np.zeros(2), 2), Sequence[fl.Split], "x is a Split; it must be a list, each"),
    ("ab", Sequence[str], "a list, each a string"),
    (({}, []), Sequence[dict[str, Any]], "a list, each a dict"),
    (3, Callable | None, "a function or None"),
    (3, str | os.PathLike | None, "a string, a path or None"),
    (3, np.ndarray, "an array"),
    (fl.Split, np.ndarray, "x is <class 'fedjax_ht.core.samples.Split'>; it must be an array"),
    (np.arange(999), fl.Method, f"x is a numpy.ndarray; it must be {METHOD}"),
    ([1], Mapping[str, nn.Module], "a dict, name -> a Flax module, such as fl.SplitModel(base"),
    ("a" * 500, Literal["b"], f"x is '{'a' * 99}...; it must be 'b'"),
]


@pytest.mark.parametrize(("value", "annotation"), GOOD, ids=str)
def test_a_value_that_is_allowed(value, annotation):
    check_value("x", value, annotation)


def test_of_a_dataclass_its_instances_are_allowed():
    check_value("x", TRAINING, fl.LocalTraining)


# by messages alone: the text of a function has its address, which differs by process
@pytest.mark.parametrize(("value", "annotation", "message"), BAD, ids=[row[2] for row in BAD])
def test_a_value_that_is_not_is_one_line(value, annotation, message):
    with pytest.raises(ValueError) as error:
        check_value("x", value, annotation)
    line = (
        message if message.startswith(("x is ", "x[")) else f"x is {value!r}; it must be {message}"
    )
    assert str(error.value).startswith(line)


def test_traced_values_pass():
    def inside(value):
        check_value("x", value, Positive)
        check_value("x", value, Count | None)
        return value

    jax.eval_shape(inside, -1.0)


def test_a_checked_function_keeps_its_signature_and_refuses_bad_arguments():
    def make(
        training,
        weight: NonNegative = 1.0,
        *parts: Count,
        steps: Count | None = None,
        **more: Count,
    ):
        """Words."""
        return weight, parts, steps, more

    wrapped = checked(make)
    assert inspect.signature(wrapped) == inspect.signature(make) and wrapped.__doc__ == "Words."
    assert checked(wrapped) is wrapped
    # *parts and **more are not checked
    assert wrapped(None, 2, 0, steps=3, other=-1) == (2, (0,), 3, {"other": -1})
    for arguments, options in (
        ((None, -1), {}),
        ((None,), {"weight": NAN}),
        ((None, 1.0), {"steps": 0}),
    ):
        with pytest.raises(ValueError, match="it must be"):
            wrapped(*arguments, **options)
    message = r"make\(\) missing 1 required positional argument: 'training'"
    with pytest.raises(TypeError, match=message):
        wrapped()


def test_a_partial_of_a_checked_function_is_checked():
    with pytest.raises(ValueError, match="weighting is 'all'; it must be 'samples' or 'uniform'"):
        functools.partial(fl.heterofl, whole_head=True)(TRAINING, weighting="all")


def test_annotations_written_as_text_are_understood():
    def make(training, weight: "NonNegative" = 1.0):
        return weight

    with pytest.raises(ValueError, match="weight is -1; it must be a number of at least 0"):
        checked(make)(None, weight=-1)

    def other(training: "OnlyForTypeCheckers", weight: "NonNegative" = 1.0):  # noqa: F821
        return weight

    assert checked(other)(None, weight=-1) == -1


def test_fields_of_dataclasses_and_named_tuples():
    @dataclasses.dataclass(frozen=True)
    class Recipe:
        steps: Count = 1
        rate: Positive | None = None

        def __post_init__(self):
            check_fields(self)

    class Section(NamedTuple):
        share: Share = 0.5

    assert Recipe(2, 0.1).steps == 2
    with pytest.raises(ValueError, match="rate is nan; it must be a number above 0 or None"):
        Recipe(rate=NAN)
    with pytest.raises(ValueError, match=r"section\.share is 2; it must be a number from 0 to 1"):
        check_fields(Section(2), "section.")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.fedproto(TRAINING, lam=1), "fedproto has no option 'lam'; it has training, w"),
        (
            lambda: fl.LocalTraining(optax.sgd(0.1), batchsize=4),
            "LocalTraining has no option 'batchsize'; did you mean 'batch_size'?",
        ),
        (lambda: fl.SimulationOptions(device=1), "SimulationOptions has no option 'device'; did"),
    ],
)
def test_an_unknown_keyword_is_told_the_known_ones(make, message):
    with pytest.raises(TypeError) as error:
        make()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: fl.make_simulation(seed=1), "by options=SimulationOptions(seed=...)"),
        (lambda: fl.fedproto(epochs=2), "by training=LocalTraining(epochs=...)"),
    ],
)
def test_an_option_of_an_argument_is_told_where_it_belongs(make, remedy):
    with pytest.raises(TypeError) as error:
        make()
    assert str(error.value).endswith(remedy)


def test_a_registered_method_is_checked_wherever_it_comes_from():
    def of_a_user(training, weight: float = 1.0):
        return fl.local(training)

    with nothing_registered():
        fl.register_method("of_a_user", of_a_user)
        assert fl.method_factory("of_a_user")(TRAINING, weight=2).name == "local"
        with pytest.raises(ValueError, match="weight is nan; it must be a number"):
            fl.method_factory("of_a_user")(TRAINING, weight=NAN)


FORMS = {"": (Positive,), "constant": (), "step": (Count, Part)}


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("constant", Spec("constant", ())),
        ("step/100/0.1", Spec("step", (100, 0.1))),
        ("step/100/1", Spec("step", (100, 1))),
        ("1e9", Spec("", (1e9,))),
    ],
)
def test_names_and_numbers(text, spec):
    assert parse_spec(text) == read_spec("field", text, FORMS, "") == spec


@pytest.mark.parametrize(
    "text",
    ["", "cosine", "constant/1", "step", "step/1.5/0.1", "step/1/nan", "step/1/x", "0", "/1"],
)
def test_another_form_is_one_line(text):
    with pytest.raises(ValueError) as error:
        read_spec("field", text, FORMS, "it must be constant")
    assert str(error.value) == f"field is {text!r}; it must be constant"


def test_entries_are_tuples_in_either_form():
    expected = (("norm_bound", 2), ("median",), "a/b", 3)
    assert as_tuples(("norm_bound/2", ("median",), "a/b", 3)) == expected
    assert as_tuples("median") == "median"  # no tuple of entries: its type is refused


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Annotated[NonNegative, SearchRange(0.0, 10.0)], "it must be finite, low < high, and low"),
        (Annotated[NonNegative, SearchRange(10.0, 0.1)], "it must be finite, low < high, and low"),
        (Annotated[NonNegative, SearchRange(0.0, np.nan, log=False)], "it must be finite, low <"),
        (Annotated[Count, SearchRange(1, 10)], "in its SearchRange, is 1.0; it must be an integer"),
        (
            Annotated[Share, SearchRange(0.1, 5.0)],
            "in its SearchRange, is 5.0; it must be a number",
        ),
    ],
)
def test_a_range_fits_its_option(annotation, message):
    def factory(training, weight: annotation = 1):
        pass

    with pytest.raises(ValueError, match=f"^weight.* {message}"):
        search_ranges(factory)
