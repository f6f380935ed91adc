"""Objects that a run was given from Python, in place of a config's names.

In the run's config and folder an object is known by a name, "object:NAME", and a SHA-256. Nobody
can make it from these: who reads the folder later gives the experiment again.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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


class Objects(NamedTuple):
    """Objects in place of a config's names.

    Attributes:
      dataset: the data set; None where the config names it.
      models: architecture -> module; None where the config names a group.
      methods: label -> method; empty where the config names all.
    """

    dataset: Dataset | None = None
    models: Mapping[str, nn.Module] | None = None
    methods: Mapping[str, Method] = MappingProxyType({})


NO_OBJECTS = Objects()


def with_names(config: Config, objects: Objects) -> Config:
    """Returns the config with the names of the objects in place of its own.

    Raises:
      ValueError: the config names an object that is not given, or sets what an object does not
        read. One line.
    """
    _refuse_absent(config, objects)
    sections: dict[str, Any] = {}
    if objects.dataset is not None:
        fields = READ_BY if config.dataset.public else READ_BY + READ_BY_PUBLIC
        _refuse_unread("dataset", config.dataset, DatasetConfig(), fields)
        name = OBJECT + objects.dataset.name
        sections["dataset"] = dataclasses.replace(config.dataset, name=name)
    if objects.models is not None:
        _refuse_unread("model", config.model, ModelConfig(), OF_GROUPS)
        sections["model"] = dataclasses.replace(config.model, group=group_of(objects.models))
    if objects.methods:
        known = {entry["label"] for entry in config.entries if isinstance(entry, Mapping)}
        entries = [_entry(x, objects.methods[x], config) for x in objects.methods if x not in known]
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


def _refuse_absent(config: Config, objects: Objects) -> None:
    """Refuses a config that names objects which are not given."""
    absent = []
    if names_object(config.dataset.name) and objects.dataset is None:
        absent.append(config.dataset.name)
    if names_object(config.model.group) and objects.models is None:
        absent.append(config.model.group)
    for entry in config.entries:
        method = str(entry.get("method")) if isinstance(entry, Mapping) else ""
        if names_object(method) and method.removeprefix(OBJECT) not in objects.methods:
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


def object_sums(objects: Objects) -> dict[str, str]:
    """Returns the name of each object -> a SHA-256 by which another process knows it again.

    Samples have a checksum of their own (`fingerprints`); that of a data set is of how they are
    read.
    """
    sums = {}
    if objects.dataset is not None:
        dataset = objects.dataset
        rules = dataset.preprocess, dataset.class_names, dataset.vocabulary
        sums[OBJECT + dataset.name] = checksum_of(rules)
    if objects.models is not None:
        sums[group_of(objects.models)] = checksum_of(dict(objects.models))
    for label, method in objects.methods.items():
        sums[OBJECT + label] = checksum_of(method)
    return sums
