"""Keys of functions: equal where functions do the same, and only there."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.function_keys import checksum_of, key_of, keyed
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.methods.fedproto import fedproto


def scaled(factor, bias=0.0):
    def scale(x, power=1):
        return factor * x**power + bias

    return scale


def through_self(depth):
    def descend(n):
        return depth if n == 0 else descend(n - 1)

    return descend


def recipe(rate=0.1):
    return LocalTraining(optax.chain(optax.clip(1.0), optax.sgd(rate, momentum=0.9)))


class Own:
    def __init__(self, value):
        self.value = value

    def scale(self, x):
        return self.value * x


@dataclasses.dataclass(frozen=True)
class WithNote:
    value: float
    note: str = dataclasses.field(default="", compare=False)


ALIKE = {
    "closures": lambda: scaled(2.0),
    "closures of themselves": lambda: through_self(3),
    "partials": lambda: functools.partial(scaled(2.0), power=3),
    "jitted": lambda: jax.jit(scaled(2.0)),
    "arrays": lambda: scaled(np.arange(3.0)),
    "arrays of jax": lambda: scaled(jnp.arange(3.0)),
    "random keys": lambda: scaled(jax.random.key(3)),
    "own objects": lambda: Own([1, {"a": 2.0}]).scale,
    "modules": lambda: nn.Dense(3, kernel_init=nn.initializers.constant(0.5)),
    "optimizers": recipe,
    "methods": lambda: fedproto(recipe(), weight=0.5),
    "functions of a cell that is run again": lambda: module_of_a_user(0.5).through,
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_made_again_has_the_same_key_and_checksum(name):
    first, second = keyed(ALIKE[name]()), keyed(ALIKE[name]())
    assert first == second
    assert hash(first) == hash(second)
    assert checksum_of(first.value) == checksum_of(second.value)


DIFFERENT = {
    "cells": (scaled(2.0), scaled(3.0)),
    "defaults": (lambda x=1: x, lambda x=2: x),
    "code": (lambda x: x + 1, lambda x: x + 2),
    "kinds of numbers": (scaled(1), scaled(1.0)),
    "truth and number": (scaled(1), scaled(True)),
    "signs of zero": (scaled(0.0), scaled(-0.0)),
    "arguments of partials": (functools.partial(scaled(2.0), 1), functools.partial(scaled(2.0), 2)),
    "entries of arrays": (scaled(np.array([1.0, 2.0])), scaled(np.array([1.0, 3.0]))),
    "dtypes of arrays": (scaled(np.zeros(2, np.int32)), scaled(np.zeros(2, np.float32))),
    "shapes of arrays": (scaled(np.zeros((2, 3))), scaled(np.zeros((3, 2)))),
    "order of dicts": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "classes": (Own(1.0), WithNote(1.0)),
    "own objects": (Own(1.0).scale, Own(2.0).scale),
    "learning rates": (recipe(0.1), recipe(0.2)),
    "options of methods": (fedproto(recipe(), weight=0.5), fedproto(recipe(), weight=1.0)),
    "names of methods": (fedproto(recipe()), fedproto(recipe())._replace(name="x")),
    "objects of others": (scaled(object()), scaled(object())),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_has_another_key_and_checksum(name):
    first, second = DIFFERENT[name]
    assert key_of(first) != key_of(second)
    by_class = name == "objects of others"  # all that another process would know of them
    assert (checksum_of(first) == checksum_of(second)) == by_class


def test_fields_that_equality_leaves_out_are_left_out():
    assert key_of(WithNote(1.0, "a")) == key_of(WithNote(1.0, "b"))


def test_a_changed_array_has_another_key():
    values = np.zeros(3)
    before = key_of(scaled(values))
    values[1] = 1.0
    assert key_of(scaled(values)) != before


def module_of_a_user(alpha: float) -> types.ModuleType:
    """A module that is not installed, as a notebook is, with functions of a global."""
    module = types.ModuleType("__main__")
    text = (
        "def direct(x):\n    return ALPHA * x\n"
        "def nested(x):\n    return (lambda y: ALPHA * y)(x)\n"
        "def through(x):\n    return direct(x)\n"
        "class Base:\n    def run(self, x):\n        return ALPHA * x\n"
        "class Model(Base):\n    pass\n"
        "def by_class(x):\n    return Base().run(x)\n"
        "def by_base(x):\n    return Model().run(x)\n"
    )
    exec(compile(text, "notebook", "exec"), module.__dict__)
    module.__dict__["ALPHA"] = alpha
    return module


@pytest.mark.parametrize("name", ["direct", "nested", "through", "by_class", "by_base"])
def test_globals_of_a_users_module_count(name):
    module = module_of_a_user(0.5)
    function = getattr(module, name)
    before, checksum = key_of(function), checksum_of(function)
    assert key_of(function) == before
    module.__dict__["ALPHA"] = 2.0
    assert key_of(function) != before and checksum_of(function) != checksum


def test_a_class_with_the_methods_of_a_compiled_function_is_a_class():
    class Name(np.bytes_):  # has `trace` and `lower`, as functions by jax.jit
        pass

    assert key_of(Name) == key_of(Name)


def test_packages_of_another_environment_are_installed(monkeypatch):
    """An environment may take them from the system's."""

    def scaled(x):
        return x * FACTOR["by"]  # noqa: F821, a global of the module

    module = types.ModuleType("of_the_system")
    module.__file__ = "/usr/lib/python3/dist-packages/of_the_system.py"
    monkeypatch.setitem(sys.modules, "of_the_system", module)
    scaled = types.FunctionType(scaled.__code__, vars(module))
    keys = []
    for factor in (1, 2):
        module.FACTOR = {"by": factor}
        keys.append(key_of(scaled))
    assert keys[0] == keys[1]


SUMS = """
import json, optax
from fedjax_ht.core.function_keys import checksum_of

def scaled(factor):
    return lambda x: factor * x in {"a", "b", "c"}

print(json.dumps([checksum_of(x) for x in (optax.adam(0.1), optax.adam(0.2), scaled(1), scaled(2))]))
"""


def test_another_process_finds_the_same_checksums(capsys):
    """Names hash otherwise there, and objects lie elsewhere."""
    exec(SUMS, {"__name__": "__main__"})
    here = json.loads(capsys.readouterr().out)
    call, environment = [sys.executable, "-c", SUMS], os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(call, capture_output=True, check=True, env=environment)
    assert json.loads(done.stdout) == here and len(set(here)) == 4


def test_use_changes_no_checksum():
    class Net(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.width)(x)

    net = Net(3)
    before = checksum_of(net)
    jax.eval_shape(net.init, jax.random.key(0), jnp.ones((1, 2)))
    assert checksum_of(net) == before == checksum_of(Net(3)) != checksum_of(Net(4))
    assert checksum_of(jax.lax.Precision.HIGHEST) != checksum_of(jax.lax.Precision.DEFAULT)
