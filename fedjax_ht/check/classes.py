"""Kinds of objects that annotations name: which values belong to them, and how to describe them."""

import dataclasses
from collections.abc import Callable
from typing import Any, get_origin

import numpy as np

from fedjax_ht.check.names import with_article

SIMULATION = "a simulation of fl.make_simulation(method, federation, data)"
MADE = {
    "ClientIndices": "fl.ClientIndices(train, val, test), arrays of sample indices",
    "Dataset": "a fl.Dataset(...) or what fl.load_dataset(name) returns",
    "Federation": "a federation of fl.make_federation(...)",
    "FederationData": "data of fl.make_federation_data(dataset, partition, federation)",
    "Method": "a method, such as fl.local(fl.LocalTraining(optax.sgd(0.1)))",
    "Module": "a Flax module, such as fl.SplitModel(base, head)",
    "Rounds": SIMULATION,
    "Simulation": SIMULATION,
    "SimulationState": "a state of simulation.init() or fl.run",
}
"""Class names of users' arguments -> where to get an instance."""

FOREIGN = ("flax", "optax")
"""Packages whose objects are checked where they are used, with specific messages."""


def is_kind(annotation: Any) -> bool:
    """Returns whether values must be instances of the annotation.

    These are dataclasses and NamedTuples, except those of `FOREIGN` packages.
    """
    if not isinstance(annotation, type):
        return False
    is_built = dataclasses.is_dataclass(annotation) or is_named_tuple(annotation)
    return is_built and annotation.__module__.partition(".")[0] not in FOREIGN


def is_named_tuple(kind: type) -> bool:
    """Returns whether a class is a NamedTuple."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def is_of_kind(annotation: Any, value: Any) -> bool | None:
    """Returns whether a value is of the kind that an annotation names; None if it names none.

    Lists are accepted as arrays.
    """
    if is_kind(annotation) or _is_path(annotation):
        return isinstance(value, annotation)
    if annotation is np.ndarray:
        return isinstance(value, list | tuple | range) or hasattr(value, "__array__")
    if _is_of(annotation, Callable):
        return callable(value)
    if _is_of(annotation, dict):
        return isinstance(value, dict)
    return None


def kind_text(annotation: Any) -> str | None:
    """Describes the kind that an annotation names, e.g. "a function"; None if it names none."""
    name = getattr(annotation, "__name__", "")
    if name in MADE:
        return MADE[name]
    if is_kind(annotation):
        return f"{with_article(name)}(...)"
    if _is_path(annotation):
        return "a path"
    for kind, text in ((np.ndarray, "an array"), (Callable, "a function"), (dict, "a dict")):
        if _is_of(annotation, kind):
            return text
    return None


def _is_of(annotation: Any, kind: Any) -> bool:
    """Returns whether an annotation is a generic kind, with or without arguments."""
    return kind in (annotation, get_origin(annotation))


def _is_path(annotation: Any) -> bool:
    """Returns whether an annotation is a path class."""
    return isinstance(annotation, type) and hasattr(annotation, "__fspath__")
