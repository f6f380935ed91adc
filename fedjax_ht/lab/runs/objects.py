"""Objects from Python in place of names in a config.

Config and folder record an object as a name, "object:NAME", and a SHA-256. Whoever reads the folder
later must pass the object again.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import flax.linen as nn

from fedjax_ht.core.function_keys import checksum_of
from fedjax_ht.core.method import Method
from fedjax_ht.core.user_code import OBJECT, names_object
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.config.sections import Config, Entry, MethodConfig, TrainingConfig
from fedjax_ht.lab.config.typed import refuse_set, shared_fields, to_plain

UNREAD = ", which is not read for an object from Python; leave it at"
READ_BY = ("label", "features", "group")
"""Fields of `dataset` that only the reading of a file uses."""
READ_BY_PUBLIC = ("image_size", "text_length", "tokenizer")
"""Fields that the reading of a public set also uses."""
OF_GROUPS = ("feature_dim", "norm", "rates", "output_relu")
"""Fields of `model` that only the library's groups use."""


NAME = re.compile(r"[\w.+-]+")
"""Names of methods and models that are valid in a config and a folder."""


def with_names(
    config: Config,
    dataset: Dataset | None,
    models: Mapping[str, nn.Module] | None,
    methods: Mapping[str, Method] | None,
) -> Config:
    """Returns the config with the objects' names in place of its own.

    Raises:
      ValueError: an object's name is not valid in a config, the config names an object that is not
        given, or it sets a field that an object does not read. One line.
    """
    for argument, values in (("models", models), ("methods", methods)):
        if values is not None and not values:
            raise ValueError(f"{argument} is empty; omit it, or give one")
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
        refuse_set(config.dataset, fields, UNREAD)
        sections["dataset"] = dataclasses.replace(config.dataset, name=OBJECT + dataset.name)
    if models is not None:
        refuse_set(config.model, OF_GROUPS, UNREAD)
        sections["model"] = dataclasses.replace(config.model, group=group_of(models))
    if methods:
        known = {entry.get("label") for entry in config.entries if isinstance(entry, Mapping)}
        entries = [_entry(label, methods[label], config) for label in methods if label not in known]
        sections["method"] = MethodConfig(None)
        sections["entries"] = (*entries, *config.entries)
    return dataclasses.replace(config, **sections)


def check_entries(entries: Iterable[Entry]) -> None:
    """Rejects entries that set a field of `model` which models from Python do not read."""
    for entry in entries:
        for field in ("group", *OF_GROUPS):
            if field in entry.model:
                raise ValueError(
                    f"entry {entry.label!r} sets model.{field}, which is not read for models from "
                    "Python; remove it"
                )


def group_of(models: Mapping[str, nn.Module]) -> str:
    """Returns the name of a group of modules: "object:narrow+wide"."""
    return OBJECT + "+".join(models)


def _entry(label: str, method: Method, config: Config) -> dict[str, Any]:
    """Returns the entry of a method as in config.json, with the method's own recipe."""
    recipe = shared_fields(method.training, TrainingConfig)
    # the three functions get one name, which entries with the same recipe share
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
    """Rejects a config that names objects which are not given."""
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
            f"{', '.join(absent)}: this run was given objects from Python, which no file stores; "
            "recreate its experiment with fl.make_experiment, and call fl.report_run(folder, "
            "experiment), fl.load_run(folder, experiment=experiment), or fl.train_and_evaluate to "
            "continue"
        )


def object_sums(
    dataset: Dataset | None,
    models: Mapping[str, nn.Module] | None,
    methods: Mapping[str, Method] | None,
) -> dict[str, str]:
    """Returns the name of each object -> a SHA-256 that identifies it in another process.

    The sum of a data set covers how samples are read; the samples have their own (`fingerprints`).
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
