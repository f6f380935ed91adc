"""Makes an experiment of a config and of objects that a user has in Python."""

import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from fedjax_ht.check.options import checked
from fedjax_ht.core.method import Method
from fedjax_ht.core.numerics import with_standard_numerics
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.config.base import AnyConfig
from fedjax_ht.lab.runs.build import Experiment, build
from fedjax_ht.lab.runs.objects import Objects

LABEL = re.compile(r"[\w.+-]+")


@checked
@with_standard_numerics
def make_experiment(
    config: AnyConfig,
    *,
    dataset: Dataset | None = None,
    models: Mapping[str, nn.Module] | None = None,
    methods: Mapping[str, Method] | None = None,
) -> Experiment:
    """Makes what a config describes, with objects of yours in place of names; `train_and_evaluate`
    runs it in a folder.

    Args:
      config: the config, such as `fedjax_ht.base_config()`. The split, the federation's options and
        the number of rounds and trials are its own.
      dataset: the data set, in place of `config.dataset.name`. `classes`, `subset`, `shift`,
        `public` and `standardise` change it as any other.
      models: architecture -> module, which clients take in turn, in place of `config.model.group`.
      methods: label -> method, in place of `config.method`; entries of `config.entries` run beside
        them. A method trains by its own recipe, and not by `config.training`.

    Raises:
      ValueError, FileNotFoundError, ImportError: the objects and the config do not fit, or a field
        has a value that it cannot have. One line, before anything is compiled.

    Examples:
      >>> training = fl.LocalTraining(optax.sgd(0.1))  # doctest: +SKIP
      >>> methods = {"fedproto": fl.fedproto(training), "local": fl.local(training)}
      ... # doctest: +SKIP
      >>> experiment = fl.make_experiment(fl.base_config(), methods=methods)  # doctest: +SKIP
      >>> fl.train_and_evaluate(experiment, "runs/two")  # doctest: +SKIP
    """
    return build(config, objects=given_objects(dataset, models, methods))


def given_objects(dataset: Any, models: Any, methods: Any = None) -> Objects:
    """Returns the objects that a user gives, with names that a config and a folder can have."""
    for argument, values in (("models", models), ("methods", methods)):
        if values is not None and not values:
            raise ValueError(f"{argument} is empty; leave it out, or give one")
        for name in values or ():
            if not LABEL.fullmatch(name):
                raise ValueError(
                    f"{argument} has the name {name!r}; it must be of letters, digits, _, ., + and "
                    "-"
                )
    return Objects(dataset, models, methods or {})
