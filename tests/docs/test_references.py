"""References of docstrings, such as `module.function` and `Class.attribute`, name what exists.

A module is named by the end of its dotted name, a value of a class by the end of the class's name
in small letters: `training.augmentation` is a field of LocalTraining. Names of anything else, such as
another library's, are passed over.
"""

import ast
import functools
import importlib
import inspect
import re
from typing import Any

import pytest

from tests import style

ROOT = style.LIBRARY.parent


@functools.cache
def modules() -> dict[str, str]:
    """Returns the text of each module of the library by its dotted name."""
    texts = {}
    for path in style.python_files([style.LIBRARY]):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        texts[name.removesuffix(".__init__")] = path.read_text()
    return texts


@functools.cache
def classes() -> list[tuple[str, str]]:
    """Lists the module and the name of each class of the library."""
    names = []
    for module, text in modules().items():
        names += [(module, name) for name in re.findall(r"^class (\w+)", text, re.MULTILINE)]
    return names


def ends_with(name: str, end: str, separator: str) -> bool:
    """Returns whether a name is `end`, or has it behind a separator."""
    return name == end or name.endswith(separator + end)


def in_small_letters(name: str) -> str:
    """Writes the name of a class as a variable: LocalTraining is local_training."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def has(owner: Any, names: list[str]) -> bool:
    """Returns whether an object has an attribute, a field or a submodule of this name, and that one
    of the next name, and so on."""
    for name in names:
        if f"{getattr(owner, '__name__', '')}.{name}" in modules():
            owner = importlib.import_module(f"{owner.__name__}.{name}")
        elif hasattr(owner, name):
            owner = getattr(owner, name)
        else:  # no value, and so no attributes, that a class knows
            return is_field(owner, name)
    return True


def is_field(owner: Any, name: str) -> bool:
    """Returns whether a class declares an attribute, or lists it in its docstring."""
    if any(name in vars(kind).get("__annotations__", {}) for kind in getattr(owner, "__mro__", ())):
        return True
    return any(name in names.split(", ") for names, _ in style.entries(inspect.getdoc(owner) or ""))


def owners(reference: str) -> list[tuple[Any, list[str]]]:
    """Lists the objects that a reference may begin with, each with the names that follow."""
    parts, candidates = reference.split("."), []
    for length in range(1, len(parts)):
        start = ".".join(parts[:length])
        for name in modules():
            if ends_with(name, start, "."):
                candidates.append((importlib.import_module(name), parts[length:]))
    for module, name in classes():
        if parts[0] == name or ends_with(in_small_letters(name), parts[0], "_"):
            candidates.append((getattr(importlib.import_module(module), name), parts[1:]))
    return candidates


@functools.cache
def exists(reference: str) -> bool:
    """Returns whether a reference names a thing of the library, or none that the library knows."""
    if any(ends_with(name, reference, ".") for name in modules()):
        return True
    candidates = owners(reference)
    return not candidates or any(has(owner, names) for owner, names in candidates)


@pytest.mark.parametrize("package", style.WORDED)
def test_references_of_a_package_name_what_exists(package):
    stale = []
    for path in style.python_files([style.LIBRARY / package]):
        for line, reference in style.references(ast.parse(path.read_text())):
            if not exists(reference):
                stale.append(f"{path}:{line}: {reference}")
    assert not stale


@pytest.mark.parametrize(
    "reference",
    [
        "bucket.features",
        "core.bucket",
        "Bucket.module",
        "training.augmentation",
        "jax.jit",
        "x.shape",
    ],
)
def test_a_module_a_field_and_a_foreign_name_exist(reference):
    assert exists(reference)


@pytest.mark.parametrize(
    "reference", ["federation.features", "methods.slicing", "Bucket.own", "training.augmentationed"]
)
def test_a_stale_reference_does_not_exist(reference):
    assert not exists(reference)
