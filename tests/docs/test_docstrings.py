"""The examples in the docstrings of public names run, and print what stands there.

An example knows `fl`, `jax`, `jnp`, `np`, `optax` and the names of its own module, and should take
no more than a second.
"""

import doctest
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from tests.registered import nothing_registered

NAMESPACES = (fl, fl.losses, fl.models, fl.generators, fl.trust)
NAMES = {"fl": fl, "jax": jax, "jnp": jnp, "np": np, "optax": optax}
NOT_ALONE = ("copy_state", "run")  # their examples go on with a simulation


def public_values() -> dict[str, Any]:
    """Returns the functions and classes that are public, by name."""
    values = {}
    for namespace in NAMESPACES:
        for name in namespace.__all__:
            if callable(value := getattr(namespace, name)):
                values[name] = value
    return values


PUBLIC = public_values()


def with_example(name: str) -> bool:
    """Returns whether a public name, or a method of a public class, has an example."""
    value = PUBLIC[name]
    texts = [inspect.getdoc(value)]
    if inspect.isclass(value):
        texts += [inspect.getdoc(member) for member in vars(value).values()]
    return any(">>>" in text for text in texts if text)


EXAMPLES = [name for name in PUBLIC if with_example(name) and name not in NOT_ALONE]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_docstring_run(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags)
    messages = []
    value = PUBLIC[name]
    names = vars(inspect.getmodule(value)) | NAMES
    examples = doctest.DocTestFinder().find(value, name, module=False, globs=names)
    with nothing_registered():
        for test in examples:
            runner.run(test, out=messages.append)
    assert not runner.summarize(verbose=False).failed, "".join(messages)
