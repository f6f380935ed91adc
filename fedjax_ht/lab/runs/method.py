"""Builds an entry's method from its options and local training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from fedjax_ht.check.names import kind_of_value, unknown_option
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.recipes import by_architecture
from fedjax_ht.core.user_code import OBJECT, failure, names_object
from fedjax_ht.lab.config.base import method_options
from fedjax_ht.lab.config.entries import Entry
from fedjax_ht.lab.config.sections import DatasetConfig, TrainingConfig
from fedjax_ht.lab.runs.training import local_training, recipes
from fedjax_ht.methods import is_own, method_factory


def make_method(
    entry: Entry,
    training: TrainingConfig,
    codes: Sequence[Callable[[Method], Method]] = (),
    *,
    objects: Mapping[str, Method] = MappingProxyType({}),
) -> Method:
    """Returns an entry's method, with the codes of `config.uplink` around it.

    Args:
      entry: the entry.
      training: the section of the config that its factory gets as a recipe.
      codes: the codes.
      objects: label -> a method given from Python, which no factory makes.

    Raises:
      ValueError: an option is unknown, or has a value that it cannot have. One line.
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
    """Raises a ValueError where `owner` does not have one of the options.

    The usual reason is a method or split that was replaced and kept the other's options:
    `argument`, of a config file, avoids it.
    """
    if unexpected := sorted(set(options) - set(known)):
        more = f". --config=FILE.py:{argument} starts from its own options"
        raise ValueError(unknown_option(owner, unexpected[0], known, more))


def check_pretraining(method: Method, dataset: DatasetConfig) -> None:
    """Raises a ValueError where a generator was trained on the federation's own data, unless the
    config allows it."""
    name = dataset.name.removeprefix(OBJECT)
    if name in method.pretrained.trained_on and not dataset.seen_before:
        raise ValueError(
            f"the generator of {method.name} was trained on {name}, the federation's own "
            "data; choose another, or allow it by dataset.seen_before=True"
        )
