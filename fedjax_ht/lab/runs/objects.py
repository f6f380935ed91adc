"""Objects from Python in place of a config's names.

Config and folder know an object by a name, "object:NAME", and a SHA-256; whoever reads the folder
later gives the object again.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from fedjax_ht.core.function_keys import checksum_of
from fedjax_ht.core.method import Method
from fedjax_ht.core.user_code import OBJECT, names_object
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.config.sections import (
    Config,
    DatasetConfig,
    MethodConfig,
    ModelConfig,
    TrainingConfig,
)
from fedjax_ht.lab.config.typed import shared_fields, to_plain

READ_BY = ("label", "features", "group")
"""Fields of `dataset` that only the reading of a file asks for."""
READ_BY_PUBLIC = ("image_size", "text_length", "tokenizer")
"""Those that the reading of a public set asks for, too."""
OF_GROUPS = ("feature_dim", "norm", "rates", "output_relu")
"""Fields of `model` that only the library's groups ask for."""


NAME = re.compile(r"[\w.+-]+")
"""Names of methods and models that a config and a folder can have."""


def with_names(
    config: Config,
    dataset: Dataset | None,
    models: Mapping[str, nn.Module] | None,
    methods: Mapping[str, Method] | None,
) -> Config:
    """Returns the config with the names of the objects in place of its own.

    Raises:
      ValueError: an object has no name that a config can have, the config names one that is not
        given, or it sets what an object does not read. One line.
    """
    for argument, values in (("models", models), ("methods", methods)):
        if values is not None and not values:
            raise ValueError(f"{argument} is empty; leave it out, or give one")
        for name in values or ():
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"{argument} has the name {name!r}; it must be of letters, digits, _, ., + and "
                    "-"
                )
    methods = methods or {}
    _refuse_absent(config, dataset, models, methods)
    sections: dict[str, Any] = {}
    if dataset is not None:
        fields = READ_BY if config.dataset.public else READ_BY + READ_BY_PUBLIC
        _refuse_unread("dataset", config.dataset, DatasetConfig(), fields)
        sections["dataset"] = dataclasses.replace(config.dataset, name=OBJECT + dataset.name)
    if models is not None:
        _refuse_unread("model", config.model, ModelConfig(), OF_GROUPS)
        sections["model"] = dataclasses.replace(config.model, group=group_of(models))
    if methods:
        known = {entry["label"] for entry in config.entries if isinstance(entry, Mapping)}
        entries = [_entry(label, methods[label], config) for label in methods if label not in known]
        sections["method"] = MethodConfig(None)
        sections["entries"] = (*entries, *config.entries)
    return dataclasses.replace(config, **sections)


def group_of(models: Mapping[str, nn.Module]) -> str:
    """Returns the name of a group of modules: "object:narrow+wide"."""
    return OBJECT + "+".join(models)


def _entry(label: str, method: Method, config: Config) -> dict[str, Any]:
    """Returns the entry of a method, as config.json records it, with the recipe that it has."""
    recipe = shared_fields(method.training, TrainingConfig)
    # functions have one name together, which entries with one recipe share
    functions = [recipe.pop(name) for name in ("optimizer", "schedule", "augmentation")]
    optimizer = OBJECT + checksum_of(functions)[:8]
    plain = to_plain(dataclasses.replace(TrainingConfig(), optimizer=optimizer, **recipe))
    before = to_plain(config.training)
    names = sorted([*recipe, "optimizer", "schedule", "augmentation"])
    training = {name: plain[name] for name in names if plain[name] != before[name]}
    return {
        "label": label,
        "method": OBJECT + label,
        "options": {},
        "training": training,
        "model": {},
    }


def _refuse_absent(config: Config, dataset: Any, models: Any, methods: Mapping[str, Any]) -> None:
    """Refuses a config that names objects which are not given."""
    absent = []
    if names_object(config.dataset.name) and dataset is None:
        absent.append(config.dataset.name)
    if names_object(config.model.group) and models is None:
        absent.append(config.model.group)
    for entry in config.entries:
        method = str(entry.get("method")) if isinstance(entry, Mapping) else ""
        if names_object(method) and method.removeprefix(OBJECT) not in methods:
            absent.append(method)
    if absent:
        raise ValueError(
            f"{', '.join(absent)}: this run was given objects from Python, which no file has; make "
            "its experiment again by fl.make_experiment, and call fl.report_run(folder, "
            "experiment), or fl.train_and_evaluate to go on"
        )


def _refuse_unread(part: str, section: Any, default: Any, fields: tuple[str, ...]) -> None:
    """Refuses fields of a section that are set and that nothing would read."""
    for field in fields:
        value, usual = getattr(section, field), to_plain(default)[field]
        if value != getattr(default, field):
            raise ValueError(
                f"{part}.{field} is {value!r}, which an object given from Python does not read; "
                f"leave it at {usual!r}"
            )


def object_sums(
    dataset: Dataset | None,
    models: Mapping[str, nn.Module] | None,
    methods: Mapping[str, Method] | None,
) -> dict[str, str]:
    """Returns the name of each object -> a SHA-256 by which another process knows it again.

    Samples have a checksum of their own (`fingerprints`); that of a data set is of how they are
    read.
    """
    sums = {}
    if dataset is not None:
        rules = dataset.preprocess, dataset.class_names, dataset.vocabulary
        sums[OBJECT + dataset.name] = checksum_of(rules)
    if models is not None:
        sums[group_of(models)] = checksum_of(dict(models))
    for label, method in (methods or {}).items():
        sums[OBJECT + label] = checksum_of(method)
    return sums
