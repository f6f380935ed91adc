"""Groups the points of a search into families: points of a family share a compiled program, because
they differ in numbers alone."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fedjax_ht.core.method import Method, varied
from fedjax_ht.lab.config.entry_text import OVERRIDDEN
from fedjax_ht.lab.runs.arm import Arm, lanes_of, simulate_trials
from fedjax_ht.lab.runs.build import Experiment
from fedjax_ht.lab.runs.method import make_method
from fedjax_ht.lab.runs.options import uplink_steps
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.simulation.simulation import Simulation


class Family(NamedTuple):
    """Points that one program serves.

    Attributes:
      labels: labels of the points.
      arm: the first point's arm; settings that vary are arguments of its method's functions.
      settings: label -> value of each varying setting.
    """

    labels: list[str]
    arm: Arm
    settings: dict[str, dict[str, float]]


def families(experiment: Experiment, trace: bool = True) -> list[Family]:
    """Returns the families of an experiment's points.

    Args:
      experiment: the experiment, with the points as its entries.
      trace: False compiles each point for itself.
    """
    arms = experiment.arms
    settings = {label: _settings(arm) for label, arm in arms.items()}
    differing = _differing(list(settings.values()))
    alike: dict[tuple, list[str]] = {}
    for label, values in settings.items():
        varying = []
        for key in differing:
            # another model is another program, and so is another integer
            is_number = type(values.get(key)) is float and not key.startswith("model.")
            if trace and is_number and _may_vary(arms[label], key):
                varying.append(key)
        fixed = repr(_selected(values, values.keys() - varying))
        alike.setdefault((arms[label].entry.method, tuple(varying), fixed), []).append(label)
    result = []
    for (_, varying, _), labels in alike.items():
        varied_settings = {}
        for label in labels:
            varied_settings[label] = {key: settings[label][key] for key in varying}
        arm = arms[labels[0]]
        if varying:
            arm = arm._replace(method=_varied(arm, varied_settings[labels[0]]))
        result.append(Family(labels, arm, varied_settings))
    return result


def _settings(arm: Arm) -> dict[str, Any]:
    """Returns all that an arm trains and exchanges by, under the names that an entry sets."""
    settings = dict(arm.entry.options)
    for part in OVERRIDDEN:
        for field, value in vars(getattr(arm.config, part)).items():
            settings[f"{part}.{field}"] = value
    return settings


def _selected(settings: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key in keys}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of which not all points have the same value, sorted."""
    values: dict[str, set[str]] = {}
    for point in settings:
        for key in point:
            values[key] = {repr(other.get(key)) for other in settings}
    return sorted(key for key in values if len(values[key]) > 1)


def _varied(arm: Arm, settings: Mapping[str, float]) -> Method:
    def method_of(values: Mapping[str, Any]) -> Method:
        return _with(arm, values)

    return varied(method_of, settings)


def _with(arm: Arm, values: Mapping[str, Any]) -> Method:
    """Returns an arm's method with other values of some settings, which may be traced."""
    training, options = arm.config.training, dict(arm.entry.options)
    for key, value in values.items():
        part, _, field = key.rpartition(".")
        if part == "training":
            training = dataclasses.replace(training, **{field: value})
        else:
            options[field] = value
    codes = uplink_steps(arm.config, CODES)
    return make_method(arm.entry._replace(options=options), training, codes)


def _may_vary(arm: Arm, key: str) -> bool:
    """Returns True where a method can be made without knowing the number under `key`."""

    def make(value):
        _with(arm, {key: value})
        return value

    try:
        jax.eval_shape(make, _settings(arm)[key])
    except jax.errors.ConcretizationTypeError:
        return False
    return True


def point_simulations(groups: Sequence[Family]) -> Callable[[str], list[Simulation]]:
    """Returns a function: label of a point -> the simulations of its runs. The points of a family
    compile once."""
    first: list[Simulation] = []  # whose samples on the devices all others take

    def simulations(label: str) -> list[Simulation]:
        family = next(family for family in groups if label in family.labels)
        options = dataclasses.replace(family.arm.options, lanes=lanes_of(family.arm))
        made = simulate_trials(
            family.arm._replace(options=options),
            settings=family.settings[label] or (),
            beside=first[0] if first else None,
        )
        first.extend(made[: 1 - len(first)])
        return made

    return simulations
