"""Names that a user registers: which are taken, and which functions fit."""

import functools
import sys

import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.data.partition import PARTITIONS
from tests.registered import nothing_registered

TRAINING = fl.LocalTraining(optax.sgd(0.1))
KEYWORD = "keyword-only " if sys.version_info >= (3, 12) else ""  # what `inspect` says


@pytest.fixture(autouse=True)
def as_before():
    with nothing_registered():
        yield


def fedmine(training, *, weight: fl.NonNegative = 1.0):
    return fl.local(training)


def another(training):
    return fl.local(training)


def by_turns(dataset, num_clients, rng, *, tested: fl.Share = 0.5):
    return ()


def test_a_registered_method_and_partition_are_known_by_name():
    fl.register_method("fedmine", fedmine)
    fl.register_partition("by_turns", by_turns)
    assert fl.METHODS["fedmine"] is fedmine and PARTITIONS["by_turns"] is by_turns


@pytest.mark.parametrize(
    ("register", "name", "function", "line"),
    [
        (
            fl.register_method,
            "fedproto",
            fedmine,
            "method 'fedproto' is the library's own; register yours under another name",
        ),
        (
            fl.register_partition,
            "dirichlet",
            by_turns,
            "partition 'dirichlet' is the library's own; register yours under another name",
        ),
        (
            fl.register_method,
            "fed:mine",
            fedmine,
            "method name is 'fed:mine'; it must be text of letters, digits and underscores",
        ),
        (
            fl.register_method,
            3,
            fedmine,
            "method name is 3; it must be text of letters, digits and underscores",
        ),
        (
            fl.register_method,
            "mine",
            fedmine(TRAINING),
            "method 'mine' is a Method; register the function (training, *, options with defaults) "
            "itself, not what it returns",
        ),
        (
            fl.register_method,
            "mine",
            lambda: None,
            "takes (); it must take (training, *, options with defaults): too many positional "
            "arguments",
        ),
        (
            fl.register_method,
            "mine",
            lambda training, *, weight: None,
            "takes (training, *, weight); it must take (training, *, options with defaults): "
            f"missing a required {KEYWORD}argument: 'weight'",
        ),
        (
            fl.register_partition,
            "mine",
            lambda dataset, num_clients: None,
            "takes (dataset, num_clients); it must take (dataset, num_clients, rng, *, options with "
            "defaults): too many positional arguments",
        ),
    ],
)
def test_a_name_or_a_function_that_cannot_be_registered_is_one_line(register, name, function, line):
    known = dict(fl.METHODS), dict(PARTITIONS)
    with pytest.raises(ValueError) as error:
        register(name, function)
    assert str(error.value).endswith(line) and "\n" not in str(error.value)
    assert known == (fl.METHODS, PARTITIONS)


def test_a_name_that_another_function_took_is_refused():
    fl.register_method("fedmine", fedmine)
    line = (
        r"method 'fedmine' is registered already, by tests\.check\.test_registration\.fedmine; "
        r"register tests\.check\.test_registration\.another under another name"
    )
    with pytest.raises(ValueError, match=line):
        fl.register_method("fedmine", another)


def test_a_cell_that_is_run_again_registers_its_function_again():
    def again(weight):
        def mine(training):
            return fl.fedproto(training, weight=weight)

        return mine

    fl.register_method("mine", again(1.0))
    fl.register_method("mine", second := functools.partial(again(2.0)))
    assert fl.METHODS["mine"] is second


def test_the_registries_are_written_by_these_functions_alone():
    with pytest.raises(TypeError):
        fl.METHODS["fedmine"] = fedmine
    with pytest.raises(TypeError):
        PARTITIONS["by_turns"] = by_turns
