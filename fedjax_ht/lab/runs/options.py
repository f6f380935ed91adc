"""Builds the simulation's options, with its attack, privacy and defences, from the whole config."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fedjax_ht.check.names import unknown
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.core.wire import TRANSFORMS
from fedjax_ht.lab.config.sections import Config, PrivacyConfig
from fedjax_ht.lab.config.typed import shared_fields
from fedjax_ht.lab.runs.devices import make_profile
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.runs import Ending
from fedjax_ht.trust.attacks import Attack, attackers
from fedjax_ht.trust.defences import DEFENCES
from fedjax_ht.trust.options import Privacy

STATIC_BATCH = 64
"""Samples of a forward pass of evaluation where norms go by the samples of the pass."""


def simulation_options(config: Config) -> SimulationOptions:
    """Returns how the federation runs, whatever its method.

    Raises:
      ValueError: fields do not fit together. One line.
    """
    scoring = Scoring(**vars(config.scoring))
    if scoring.batch_size is None and config.model.norm == "static_batch":
        scoring = dataclasses.replace(scoring, batch_size=STATIC_BATCH)
    made = {
        "scoring": scoring,
        "attack": Attack(**vars(config.attack)),
        "uplink": uplink_steps(config, TRANSFORMS),
        "downlink": steps_of("transform", "downlink", config.downlink, TRANSFORMS),
        "robust": steps_of("defence", "robust", config.robust, DEFENCES),
        "devices_profile": make_profile(config.devices_profile, config.partition.num_clients),
        "privacy": privacy(config.privacy),
    }
    return SimulationOptions(**shared_fields(config, SimulationOptions) | made)


def uplink_steps(config: Config, kind: Mapping[str, Callable]) -> tuple:
    """Builds the entries of `config.uplink` that are of a kind: transforms of messages
    (`TRANSFORMS`), or codes, which are transforms of the method (`CODES`)."""
    steps = steps_of("transform", "uplink", config.uplink, TRANSFORMS | CODES)
    return tuple(step for step, (name, *_) in zip(steps, config.uplink) if name in kind)


def privacy(config: PrivacyConfig) -> Privacy | None:
    """Returns the privacy of `config.privacy`, or None. Its secret is never written in a config."""
    return None if config.unit is None else Privacy(**shared_fields(config, Privacy))


def evaluated_clients(config: Config) -> np.ndarray | None:
    """Returns ids of the clients whose accuracy counts, int64 ascending; None for all.

    A pure function of the config: no attackers, and of the others `config.evaluate.sample`
    if it is given.
    """
    num_clients = config.partition.num_clients
    generator = host_generator(config.seed, Purpose.EVALUATION, 0)
    clients = generator.permutation(num_clients)
    clients = clients[~attackers(config.attack, num_clients)[clients]]
    sample = np.sort(clients[: config.evaluate.sample])
    return None if len(sample) == num_clients else sample


def ending_of(config: Config) -> Ending:
    """Returns the limits at which the config's runs end before their last round."""
    return Ending(config.evaluate.patience, config.give_up)


def steps_of(what: str, field: str, entries: Iterable, known: Mapping[str, Callable]) -> tuple:
    """Builds every `(name, *numbers)` entry of a field with the factory under its name.

    Args:
      what: the entries are, in messages: "transform".
      field: the entries are of, in messages.
      entries: tuples such as `("gaussian_noise", 0.05, 0.2)`.
      known: name -> factory.

    Raises:
      ValueError: an entry is no such tuple, or its name or numbers are wrong. One line.
    """
    return tuple(_step(what, field, entry, known) for entry in entries)


def _step(what: str, field: str, entry: Any, known: Mapping[str, Callable]) -> Any:
    if not isinstance(entry, tuple | list) or not entry:
        raise ValueError(
            f"{field} has {entry!r}; it must be a name and its numbers, such as "
            "gaussian_noise/0.05/0.2 or ('gaussian_noise', 0.05, 0.2)"
        )
    name, *numbers = entry
    if name not in list(known):  # a list: `name` may be unhashable
        raise ValueError(f"{field}: {unknown(what, name, known)}")
    signature = inspect.signature(known[name])
    try:
        signature.bind(*numbers)
        return known[name](*numbers)
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        raise ValueError(f"{field} has {tuple(entry)}: {error}; {name} takes {takes}") from None
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
