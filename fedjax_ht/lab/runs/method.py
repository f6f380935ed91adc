"""Builds an entry's method, local training, and simulation options from the config.

The options include the attack, privacy and defences.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import optax

from fedjax_ht.check.named_numbers import as_tuples, read_spec
from fedjax_ht.check.names import kind_of_value, meant, unknown, unknown_option
from fedjax_ht.check.options import Count, NonNegative, Part, Rest, check_value
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.core.local_training import LocalTraining, trial_step
from fedjax_ht.core.method import Method
from fedjax_ht.core.recipes import OTHERS, by_architecture
from fedjax_ht.core.user_code import OBJECT, failure, names_object
from fedjax_ht.core.wire import TRANSFORMS
from fedjax_ht.data.augment import compose
from fedjax_ht.lab.config.base import method_options
from fedjax_ht.lab.config.entries import Entry, literal
from fedjax_ht.lab.config.sections import Config, DatasetConfig, PrivacyConfig, TrainingConfig
from fedjax_ht.lab.config.typed import changed, shared_fields
from fedjax_ht.lab.runs.devices import make_profile
from fedjax_ht.lab.safe.bounded import in_one_line
from fedjax_ht.methods import is_own, method_factory
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.runs import Ending
from fedjax_ht.simulation.selection import SELECTIONS, Selection
from fedjax_ht.trust.attacks import Attack, attackers
from fedjax_ht.trust.defences import DEFENCES
from fedjax_ht.trust.options import Privacy

SCHEDULES = {"constant": (), "cosine": (Count,), "step": (Count, Part)}
SCHEDULE_RULE = (
    "it must be constant, cosine/ROUNDS, or step/ROUNDS/FACTOR with a factor of at most 1, such as "
    "step/100/0.1"
)


def make_method(
    entry: Entry,
    training: TrainingConfig,
    codes: Sequence[Callable[[Method], Method]] = (),
    *,
    objects: Mapping[str, Method] = MappingProxyType({}),
) -> Method:
    """Returns an entry's method, wrapped in the codes of `config.uplink`.

    Args:
      entry: the entry.
      training: the section of the config that its factory gets as a recipe.
      codes: the codes.
      objects: label -> a method given from Python, which needs no factory.

    Raises:
      ValueError: an option is unknown, or its value is invalid. One line.
    """
    method = objects[entry.label] if names_object(entry.method) else _made(entry, training)
    for code in codes:
        method = code(method)
    return method


def _made(entry: Entry, training: TrainingConfig) -> Method:
    """Returns the method that an entry's factory makes."""
    factory = method_factory(entry.method)
    options = {name: value for name, value in entry.options.items() if value is not None}
    known = list(method_options(entry.method))
    refuse_unknown(entry.method, options, known, f"method={entry.method}")

    def make(recipe: LocalTraining) -> Method:
        try:
            method = factory(recipe, **options)
        except ValueError as error:
            raise ValueError(f"{entry.label}: {error}") from None
        except Exception as error:
            if not is_own(entry.method):
                raise
            raise failure("method", entry.method, error) from error
        if not isinstance(method, Method):
            raise ValueError(
                f"method {entry.method!r} returns {kind_of_value(method)}; it must return an "
                "fl.Method"
            )
        return method

    if training.of:
        return by_architecture(make, recipes(training))
    return make(local_training(training))


def refuse_unknown(owner: str, options: Iterable[str], known: Sequence[str], argument: str) -> None:
    """Raises ValueError if `owner` does not have one of the options.

    Usually a method or split was replaced but kept the other's options. `argument`, of a config
    file, avoids this.
    """
    if unexpected := sorted(set(options) - set(known)):
        more = f". --config=FILE.py:{argument} starts from its own options"
        raise ValueError(unknown_option(owner, unexpected[0], known, more))


def check_pretraining(method: Method, dataset: DatasetConfig) -> None:
    """Raises ValueError if a generator was trained on the federation's own data.

    The config may allow it.
    """
    name = dataset.name.removeprefix(OBJECT)
    if name in method.needs.pretrained.trained_on and not dataset.seen_before:
        raise ValueError(
            f"the generator of {method.name} was trained on {name}, the federation's own "
            "data; choose another, or allow it with dataset.seen_before=True"
        )


def local_training(training: TrainingConfig) -> LocalTraining:
    """Returns the recipe of clients whose architecture has none of its own.

    Numbers of `training` may be traced if no branch depends on them, see `core.method.varied`.
    """
    fields = shared_fields(training, LocalTraining) | {
        "optimizer": optimizer(training),
        "augmentation": compose(training.augmentation),
        "schedule": schedule(training.schedule),
    }
    return LocalTraining(**fields)


def recipes(training: TrainingConfig) -> dict[str, LocalTraining]:
    """Returns the recipe of each architecture in `config.training.of`, and under "*" of all others.

    Raises:
      ValueError: an entry of `config.training.of` is not NAME:KEY=VALUE:..., or has an invalid
        field or value. One line.
    """
    common = dataclasses.replace(training, of=())
    made = {OTHERS: local_training(common)}
    for text in training.of:
        # a colon within a value is kept: optimizer=optax:adamw/b1=0.8
        name, *settings = re.split(r":(?=\w+=)", text)
        if not settings or not name or name in made:
            raise ValueError(
                f"training.of has {text!r}; it must be NAME:KEY=VALUE:..., each architecture once, "
                "with fields of training, such as resnet8:learning_rate=0.01:batch_size=32"
            )
        values = {}
        for setting in settings:
            field, _, value = setting.partition("=")
            values[field] = literal(value)
        if "of" in values:
            raise ValueError(f"training.of has {text!r}; recipes cannot be nested")
        try:
            made[name] = local_training(changed(common, values))
        except ValueError as error:
            raise ValueError(f"training.of has {text!r}: {error}") from None
    return made


def recipe_by_name(training: TrainingConfig) -> Callable[[str], LocalTraining]:
    """Returns (architecture) -> its recipe; raises as `recipes` does."""
    made = recipes(training)
    return lambda architecture: made.get(architecture, made[OTHERS])


def optimizer(training: TrainingConfig) -> optax.GradientTransformation:
    """Returns a chain of clipping, weight decay and the optimiser itself, in this order.

    Raises:
      ValueError: there is no such optimiser, or its numbers are invalid. One line.
    """
    steps = []
    if training.clip_norm:
        steps.append(optax.clip_by_global_norm(training.clip_norm))
    if training.weight_decay:
        steps.append(optax.add_decayed_weights(training.weight_decay))
    if training.optimizer == "sgd":
        # with None optax keeps no trace; with 0.0 it would keep one of the parameters' size
        steps.append(optax.sgd(training.learning_rate, momentum=training.momentum or None))
    elif training.optimizer == "adam":
        steps.append(optax.adam(training.learning_rate, b1=training.beta1))
    else:
        steps.append(_of_optax(training))
    return optax.chain(*steps)


_DECAYS = ("b1", "b2", "b3", "decay", "momentum", "rho")
"""Options of optax that are decay rates of a mean or trace; all others are at least 0."""


def _of_optax(training: TrainingConfig) -> optax.GradientTransformation:
    """Returns the optimiser that "optax:NAME/OPTION=NUMBER/..." names."""
    text = training.optimizer
    prefix, _, rest = text.partition(":")
    name, *settings = rest.split("/")
    factory = getattr(optax, name, None) if prefix == "optax" else None
    options = inspect.signature(factory).parameters if inspect.isfunction(factory) else {}
    if factory is None or "learning_rate" not in options:
        rule = (
            "it must be sgd, adam, or an optax optimiser with a learning rate and its own "
            "numbers, such as optax:adamw/b1=0.8"
        )
        known = [f"optax:{text}"] if hasattr(optax, text) else ["sgd", "adam"]
        raise ValueError(f"training.optimizer is {text!r}{meant(text, known, rule)}")
    for field, usual in (("momentum", 0.0), ("beta1", 0.9)):
        if getattr(training, field) != usual:
            raise ValueError(
                f"training.{field} is {getattr(training, field)}, which {text} does not read; "
                f"append its own number, such as optax:{name}/b1=0.8"
            )
    numbers = dict(_option(text, name, list(options), setting) for setting in settings)
    if len(numbers) < len(settings):
        raise ValueError(f"training.optimizer is {text!r}; give each of its numbers once")
    with in_one_line(f"training.optimizer is {text!r}, which cannot be used"):
        made = factory(learning_rate=training.learning_rate, **numbers)
        trial_step(made)
    return made


def _option(text: str, name: str, known: list[str], setting: str) -> tuple[str, float]:
    """Parses an "OPTION=NUMBER" of an optax optimiser."""
    option, _, number = setting.partition("=")
    known.remove("learning_rate")
    if option not in known:
        raise ValueError(unknown_option(f"optax.{name}", option, known))
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"training.optimizer is {text!r}; {setting!r} is not a number") from None
    check_value(f"training.optimizer: {option}", value, Rest if option in _DECAYS else NonNegative)
    return option, value


def schedule(text: str) -> optax.Schedule | None:
    """Returns the factor of the learning rate by round; None for a constant one.

    The text has its own number of rounds, independent of the run's, so that a run can be extended.

    Raises:
      ValueError: `text` is not a schedule. One line.
    """
    kind, numbers = read_spec("training.schedule", text, SCHEDULES, SCHEDULE_RULE)
    if kind == "constant":
        return None
    if kind == "cosine":
        return optax.cosine_decay_schedule(1.0, int(numbers[0]))
    rounds, factor = numbers
    return optax.exponential_decay(1.0, int(rounds), float(factor), staircase=True)


def selection(text: str) -> Selection | None:
    """Returns the client selection of a config; None for uniform draws.

    Raises:
      ValueError: `text` names no selection. One line.
    """
    known = {"uniform": lambda: None} | SELECTIONS
    (made,) = steps_of("selection", "select", as_tuples([text]), known)
    return made


STATIC_BATCH = 64
"""Evaluation batch size for norms that use the statistics of the batch."""


def simulation_options(config: Config) -> SimulationOptions:
    """Returns the options of the simulation, which are the same for every method.

    Raises:
      ValueError: fields contradict each other. One line.
    """
    devices = make_profile(config.devices_profile, config.partition.num_clients)
    scoring = Scoring(**vars(config.scoring))
    if scoring.batch_size is None and config.model.norm == "static_batch":
        scoring = dataclasses.replace(scoring, batch_size=STATIC_BATCH)
    made = {
        "scoring": scoring,
        "attack": Attack(**vars(config.attack)),
        "uplink": uplink_steps(config, TRANSFORMS),
        "downlink": steps_of("transform", "downlink", config.downlink, TRANSFORMS),
        "select": selection(config.select),
        "robust": steps_of("defence", "robust", config.robust, DEFENCES),
        "devices_profile": devices,
        "privacy": privacy(config.privacy),
    }
    return SimulationOptions(**shared_fields(config, SimulationOptions) | made)


def uplink_steps(config: Config, kind: Mapping[str, Callable]) -> tuple:
    """Builds the entries of `config.uplink` that are of one kind.

    They are transforms of messages (`TRANSFORMS`), or codes, which transform the method (`CODES`).
    """
    steps = steps_of("transform", "uplink", config.uplink, TRANSFORMS | CODES)
    return tuple(step for step, (name, *_) in zip(steps, config.uplink) if name in kind)


def privacy(config: PrivacyConfig) -> Privacy | None:
    """Returns the privacy of `config.privacy`, or None. Its secret is never written to a config."""
    return None if config.unit is None else Privacy(**shared_fields(config, Privacy))


def evaluated_clients(config: Config) -> np.ndarray | None:
    """Returns ids of the clients whose accuracy counts, int64 ascending; None for all.

    A pure function of the config: all clients but attackers, or `config.evaluate.sample` of them if
    it is given.
    """
    num_clients = config.partition.num_clients
    generator = host_generator(config.seed, Purpose.EVALUATION, 0)
    clients = generator.permutation(num_clients)
    clients = clients[~attackers(config.attack, num_clients)[clients]]
    sample = np.sort(clients[: config.evaluate.sample])
    return None if len(sample) == num_clients else sample


def ending_of(config: Config) -> Ending:
    """Returns the limits that end the config's runs before their last round."""
    return Ending(config.evaluate.patience, config.give_up)


def steps_of(what: str, field: str, entries: Iterable, known: Mapping[str, Callable]) -> tuple:
    """Builds every `(name, *numbers)` entry of a field with the factory under its name.

    Args:
      what: name of an entry in messages: "transform".
      field: name of the field in messages.
      entries: tuples such as `("gaussian_noise", 0.05, 0.2)`.
      known: name -> factory.

    Raises:
      ValueError: an entry is not such a tuple, or its name or numbers are invalid. One line.
    """
    return tuple(_step(what, field, entry, known) for entry in entries)


def _step(what: str, field: str, entry: Any, known: Mapping[str, Callable]) -> Any:
    if not isinstance(entry, tuple | list) or not entry:
        raise ValueError(
            f"{field} has {entry!r}; it must be a name and its numbers, as "
            f"--config.{field}=NAME/NUMBER, or ('NAME/NUMBER',) from Python"
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
