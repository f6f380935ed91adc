"""Names that a user registers: which are taken, and which functions fit."""

import functools

import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.data.partition import PARTITIONS
from tests.registered import nothing_registered

TRAINING = fl.LocalTraining(optax.sgd(0.1))


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
    ("client", "line"),
    [
        (([0, 1], [], [2]), "d: client 0 is a tuple; it must be fl.ClientIndices"),
        (fl.ClientIndices([True, False], [], [2]), "d: client 0: train is a list, bool"),
        (fl.ClientIndices([0, 1], [], [1]), "d: client 0: sample 1 is in train and in test"),
    ],
)
def test_the_split_of_a_registered_partition_is_checked(client, line):
    fl.register_partition("mine", lambda dataset, num_clients, rng: [client])
    dataset = fl.Dataset("d", [[0.0], [1.0], [2.0]], [0, 1, 1])
    with pytest.raises(ValueError, match=line):
        fl.make_partition("mine", dataset, 1)


METHOD, PARTITION = fl.register_method, fl.register_partition
FORM = r"it must take \(training, \*, options with defaults\): "


@pytest.mark.parametrize(
    ("register", "name", "function", "line"),
    [
        (METHOD, "fedproto", fedmine, "'fedproto' is the library's own; .* under another name"),
        (PARTITION, "dirichlet", by_turns, "'dirichlet' is the library's own; .* another name"),
        (METHOD, "fed:mine", fedmine, "name is 'fed:mine'; .* letters, digits and underscores"),
        (METHOD, 3, fedmine, "name is 3; .* letters, digits and underscores"),
        (METHOD, "mine", fedmine(TRAINING), "is a Method; register the function .* itself"),
        (METHOD, "mine", lambda: None, rf"takes \(\); {FORM}too many positional arguments"),
        (METHOD, "mine", lambda training, *, weight: None, r"takes \(training, \*, weight\)"),
        (PARTITION, "mine", lambda dataset, num_clients: None, r"it must take \(dataset"),
    ],
)
def test_a_name_or_a_function_that_cannot_be_registered_is_one_line(register, name, function, line):
    known = dict(fl.METHODS), dict(PARTITIONS)
    with pytest.raises(ValueError, match=line) as error:
        register(name, function)
    assert "\n" not in str(error.value)
    assert known == (fl.METHODS, PARTITIONS)


def test_a_name_that_another_function_took_is_refused():
    fl.register_method("fedmine", fedmine)
    line = (
        r"method 'fedmine' is already registered by tests\.check\.test_registration\.fedmine; "
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
