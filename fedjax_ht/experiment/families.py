"""What has to be compiled for the points of a search: those that differ in numbers alone share a
program."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_ht.core.method import Method, varied
from fedjax_ht.data.client_data import make_federation_data
from fedjax_ht.experiment.build import Experiment, make_method
from fedjax_ht.experiment.entries import OVERRIDDEN, Entry, as_run
from fedjax_ht.simulation.simulation import Simulation, make_trials


class Family(NamedTuple):
    """Points that one program serves.

    Attributes:
      labels: theirs.
      method: the first one's, whose `keys` are arguments of its functions.
      settings: label -> value of each of those keys.
    """

    labels: list[str]
    method: Method
    settings: dict[str, dict[str, float]]


def families(experiment: Experiment, config: ConfigDict, trace: bool = True) -> list[Family]:
    """The points of an experiment by what has to be compiled for them.

    Args:
      trace: False compiles each for itself.
    """
    entries, every = (
        experiment.entries,
        {label: _settings(e, config) for label, e in experiment.entries.items()},
    )
    differing = {
        key
        for own in every.values()
        for key in own
        if len({repr(o.get(key)) for o in every.values()}) > 1
    }
    alike: dict[tuple, list[str]] = {}
    for label, own in every.items():
        numbers = [
            key
            for key in sorted(differing)
            if type(own.get(key)) is float and not key.startswith("model.")
        ]
        keys = tuple(key for key in numbers if trace and _may_vary(entries[label], config, key))
        fixed = repr({key: value for key, value in own.items() if key not in keys})
        alike.setdefault((entries[label].method, keys, fixed), []).append(label)
    found = []
    for (_, keys, _), labels in alike.items():
        settings = {label: {key: every[label][key] for key in keys} for label in labels}
        first, method = entries[labels[0]], experiment.methods[labels[0]]
        if keys:
            method = varied(
                lambda values, entry=first: _with(entry, config, values), settings[first.label]
            )
        found.append(Family(labels, method, settings))
    return found


def _settings(entry: Entry, config: ConfigDict) -> dict[str, Any]:
    """All that an entry trains and exchanges by, as it names them."""
    own = as_run(entry, config)
    return entry.options | {
        f"{part}.{field}": value for part in OVERRIDDEN for field, value in own[part].items()
    }


def _with(entry: Entry, config: ConfigDict, values: Mapping[str, Any]) -> Method:
    """An entry's method with other values of some settings, which may be traced."""
    training, options = as_run(entry, config).training.to_dict(), dict(entry.options)
    for key, value in values.items():
        part, _, field = key.rpartition(".")
        (training if part == "training" else options)[field] = value
    return make_method(entry._replace(options=options), SimpleNamespace(**training))


def _may_vary(entry: Entry, config: ConfigDict, key: str) -> bool:
    """Whether a method can be made without knowing this number."""
    try:
        jax.eval_shape(
            lambda value: _with(entry, config, {key: value}) and value,
            _settings(entry, config)[key],
        )
    except jax.errors.ConcretizationTypeError:
        return False
    return True


def simulations(
    experiment: Experiment, trials: int, found: Sequence[Family]
) -> Callable[[Sequence[str]], Simulation]:
    """(labels of one family) -> their simulation: the trials of the first, then those of the next.
    Compiled once for as many points."""
    seed, made = experiment.options.seed, {}

    def simulation(labels: Sequence[str]) -> Simulation:
        family = next(f for f in found if labels[0] in f.labels)
        own = [family.settings[label] for label in labels for _ in range(trials)]
        settings = {key: np.array([each[key] for each in own]) for key in own[0]} or ()
        seeds = [seed + t for _ in labels for t in range(trials)]
        key = family.labels[0], len(labels)
        if key in made:
            return made[key].of_trials(seeds, settings)
        if any(family.labels[0] != first for first, _ in made):
            made.clear()  # thousands of memory maps, of which Linux lets a process have 65,530
        federation = experiment.federations[labels[0]]
        data = [
            make_federation_data(experiment.dataset, p, federation) for p in experiment.partitions
        ] * len(labels)
        made[key] = make_trials(
            family.method, federation, data, experiment.options, seeds=seeds, settings=settings
        )
        return made[key]

    return simulation
