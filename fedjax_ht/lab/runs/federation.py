"""Builds the clients' architectures from `config.model` and the memory of their devices."""

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import flax.linen as nn
import numpy as np

from fedjax_ht.check.names import meant, unknown
from fedjax_ht.check.options import NonNegative, allows, check_value
from fedjax_ht.core.federation import Federation, make_federation, make_sliced_federation
from fedjax_ht.core.inputs import InputShape
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.task import CLASSIFICATION
from fedjax_ht.core.user_code import names_object, names_user_function
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.targets import output_names
from fedjax_ht.lab.config.sections import Config, ModelConfig
from fedjax_ht.lab.config.typed import refuse_set
from fedjax_ht.lab.runs.devices import fitting
from fedjax_ht.lab.runs.method import recipe_by_name
from fedjax_ht.lab.weights.start import missing, weights_of_model, with_weights
from fedjax_ht.metrics.memory import training_memory
from fedjax_ht.models import model_group, sliced_network, width_budgets
from fedjax_ht.models.adapters import Rank, lora
from fedjax_ht.models.registry import GROUPS, names_folder

WITHOUT_RATES = ("feature_dim", "shared", "output_relu", "weights", "weights_head", "lora")
"""Fields of `model` that only apply to whole models."""


class Task(NamedTuple):
    """The shapes that classification models need: fields of a `Dataset` without samples."""

    input_shape: InputShape
    num_classes: int
    vocabulary: int | None = None

    @property
    def num_outputs(self) -> int:
        return self.num_classes

    @property
    def task(self):
        return CLASSIFICATION


def make_clients(
    config: Config,
    dataset: Dataset | Task,
    memory: np.ndarray | None = None,
    begun: bool = False,
    *,
    architectures: Mapping[str, nn.Module] | None = None,
    training_of: Callable[[str], LocalTraining] | None = None,
) -> Federation:
    """Returns the federation of a config.

    With `config.model.rates`, clients have slices of one network. Otherwise they have whole models:
    client i has architecture i of the group, modulo their number, or the largest one that trains in
    its memory. `config.model.lora` adds adapters of some ranks to the group's architectures.

    Args:
      config: the config of one entry.
      dataset: the data set or task of the models.
      memory: bytes of each client's device, float64 [num_clients], or None.
      begun: True for a run that has begun: initial weights may be missing, except those of an
        extractor under adapters.
      architectures: architecture -> module given from Python, in place of the group.
      training_of: (architecture) -> the recipe whose memory counts, by default that of
        `config.training`.

    Raises:
      ValueError, FileNotFoundError: a field of `model` is invalid. One line.
    """
    model = config.model
    rates = width_rates(model.rates, config.partition.num_clients)
    if rates and memory is not None:
        raise ValueError(
            f"model.rates is {model.rates!r}; with devices_profile.memory it must be ''"
        )
    if rates:
        return sliced_federation(model, rates, dataset)
    modules = architectures or model_group(
        model.group,
        dataset.num_outputs,
        dataset.input_shape,
        model.feature_dim,
        model.norm,
        model.output_relu,
        dataset.vocabulary,
        getattr(dataset, "preprocess", None),
    )
    if model.shared is not None and model.shared not in modules:
        rule = f"it must be empty or one of model group {model.group!r}: {', '.join(modules)}"
        raise ValueError(f"model.shared is {model.shared!r}{meant(model.shared, modules, rule)}")
    shared = None if model.shared is None else modules[model.shared]
    modules = adapted_group(model, modules)
    federation_of = functools.partial(
        make_federation,
        modules,
        dataset.input_shape,
        dataset.num_outputs,
        shared=shared,
        task=dataset.task,
    )
    if memory is None:
        federation = federation_of(num_clients=config.partition.num_clients)
    else:
        training_of = training_of or recipe_by_name(config.training)
        # a federation with one client of each architecture, for its buckets
        buckets = federation_of(num_clients=len(modules)).buckets
        needed = {
            bucket.name: training_memory(bucket, training_of(bucket.name)) for bucket in buckets
        }
        federation = federation_of(assignment=fitting(needed, memory))
    names = output_names(dataset) if isinstance(dataset, Dataset) else None
    return _weighted(model, federation, begun, names)


def _weighted(
    model: ModelConfig, federation: Federation, begun: bool, class_names: Sequence[str] | None
) -> Federation:
    """Initialises models from the files of `config.model`, if they are needed."""
    weights = weights_of_model(model)
    if weights is None and model.lora and not begun:
        warnings.warn(
            "model.lora adapts a frozen extractor with random weights; name trained "
            "weights in model.weights",
            stacklevel=3,
        )
    # A run's checkpoints hold all weights except those of a frozen extractor.
    unneeded = begun and missing(weights) and not model.lora
    if weights is None or unneeded:
        return federation
    return with_weights(federation, weights, model.weights_head, class_names)


def sliced_federation(
    model: ModelConfig, rates: Sequence[float], dataset: Dataset | Task
) -> Federation:
    """Returns a federation in which client i has a slice, of width `rates[i]`, of one network."""
    refuse_set(model, WITHOUT_RATES, "; with model.rates it must be")
    shape, outputs = dataset.input_shape, dataset.num_outputs
    network = sliced_network(model.group, outputs, shape, model.norm, model.scaler)
    return make_sliced_federation(network, rates, shape, outputs, task=dataset.task)


def width_rates(text: str | None, num_clients: int) -> tuple[float, ...]:
    """Returns each client's width rate from `config.model.rates`; () without it, for whole models.

    Raises:
      ValueError: `text` is not valid, or has more rates than clients. One line.
    """
    if not text:
        return ()
    try:
        if text.startswith("rho="):
            rho = float(text.removeprefix("rho="))
            check_value("rho", rho, NonNegative)
            return width_budgets(num_clients, rho)
        rates = [float(Fraction(part.strip())) for part in text.split(",")]
        if all(0 < rate <= 1 for rate in rates) and len(rates) <= num_clients:
            return tuple(rates[i % len(rates)] for i in range(num_clients))
    except (ValueError, ArithmeticError):
        pass  # the message below names the field and all forms
    raise ValueError(
        f"model.rates is {text!r}; it must be empty, rho=NUMBER (at least 0), or at most "
        f"{num_clients} numbers above 0 and at most 1, such as 1,1/2,1/4, which clients take in "
        "turn"
    )


def adapted_group(model: ModelConfig, modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Returns the group's modules, with adapters if `config.model.lora` has ranks.

    Entry i combines module i and rank i, modulo their numbers, under a name such as "mlp_wide_r4";
    the combinations repeat after the least common multiple.

    Raises:
      ValueError: a field of adapters is invalid. One line.
    """
    if not model.lora:
        return dict(modules)
    ranks, names = adapter_ranks(model.lora), list(modules)
    adapted = {}
    for i in range(math.lcm(len(names), len(ranks))):
        name, rank = names[i % len(names)], ranks[i % len(ranks)]
        adapted[f"{name}_r{rank}"] = lora(
            modules[name], rank, alpha=model.lora_alpha or None, targets=model.lora_targets
        )
    return adapted


def adapter_ranks(text: str) -> tuple[int, ...]:
    """Returns the ranks of `config.model.lora`, such as (2, 4, 8) for "rank=2,4,8".

    Raises:
      ValueError: `text` is not valid. One line.
    """
    ranks = text.removeprefix("rank=").split(",")
    try:
        numbers = tuple(int(rank) for rank in ranks)
    except ValueError:
        numbers = ()
    if not text.startswith("rank=") or not numbers or not all(allows(Rank, n) for n in numbers):
        raise ValueError(
            f"model.lora is {text!r}; it must be empty or ranks from 1 to 99,999 that clients take "
            "in turn, such as rank=2,4,8"
        )
    return numbers


def check_group(group: str) -> None:
    """Raises ValueError if `config.model.group` names no group, folder or user code."""
    if names_folder(group) or names_user_function(group) or names_object(group):
        return
    if group not in GROUPS:
        known = f"the groups are {', '.join(GROUPS)}, hf:FOLDER, or module:function of your own"
        raise ValueError(unknown("model group", group, GROUPS, known))
