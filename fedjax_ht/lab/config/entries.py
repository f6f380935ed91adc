"""Entries of a run: methods with all their options, and changes to training and models.

Strings `NAME[@tuned][:KEY=VALUE]...` in a config's `entries` run, and are their own labels:

    fedproto                              with its paper's options, or the config's preset
    fedproto:variant=released:weight=3    with two options of its own
    fedproto:training.learning_rate=0.05  with another field of the config's `training` or `model`
    fedktl:generator=mine:make            a value with a colon: "mine:make"
    mine:fedl2g:weight=3                  a user's own method, "module:function"
    fedtgp@tuned                          with the config's tuned preset

Presets do not run themselves; strings start from them:

    preset("fedktl:generator=natural_32")           used by "fedktl" and "fedktl:mu=3"
    preset("fedtgp:tau=15", tuned="9 settings ...")  by "fedtgp@tuned" and "fedtgp@tuned:weight=2"
"""

import ast
import dataclasses
import zlib
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from fedjax_ht.check.names import meant, printable
from fedjax_ht.core.user_code import names_object
from fedjax_ht.data.partition import partition_options
from fedjax_ht.lab.config.base import method_options, option_kind, option_values
from fedjax_ht.lab.config.sections import (
    Config,
    DatasetConfig,
    Entry,
    MethodConfig,
    ModelConfig,
    PartitionConfig,
    TrainingConfig,
    folder_of,
)
from fedjax_ht.lab.config.typed import changed, to_json, to_plain, with_tuples
from fedjax_ht.methods import LIBRARY, METHODS, names_user_method

BASELINE = "local"
"""The method to compare others with, if it is among the entries: each client trains alone."""

OVERRIDDEN = ("training", "model")
"""Sections of the config that an entry may change."""


def preset(
    text: str,
    tuned: str = "",
    known: Mapping[str, Entry] = MappingProxyType({}),
    on: Config | None = None,
    **options,
) -> Entry:
    """Returns a preset for a config's entries that start with NAME, or with NAME@tuned.

    Args:
      text: the settings as an entry, `NAME[:KEY=VALUE]...`.
      tuned: a description of the search; makes it the preset of NAME@tuned.
      known: presets by label, from which `text` may start.
      on: the config whose data, split and models the search used. Runs with others report it.
      **options: more options of the method.

    Raises:
      ValueError: see `parse_entry`. One line.
    """
    entry = parse_entry(text, known)
    chosen = all_options(entry.method, entry.options | options)
    label = f"{entry.method}@tuned" if tuned else entry.method
    searched_on = () if on is None else bound_to(as_run(entry, on))
    return entry._replace(label=label, options=chosen, tuned=tuned, searched_on=searched_on)


def bound_to(config: Config) -> tuple[str, str, str]:
    """Returns a config's data, split and models as strings.

    Each is a name and the fields that differ from their defaults; for a split, also its shares.
    Seeds and file paths are omitted.
    """
    split, usual = to_json(config.partition), to_json(PartitionConfig())
    for name, option in partition_options(config.partition.kind).items():
        if not isinstance(option.default, float):
            usual[name] = option.default
    return (
        _changed(to_json(config.dataset), to_json(DatasetConfig()), "name", "data_dir"),
        _changed(split | split.pop("options"), usual, "kind", "seed", "per_trial"),
        _changed(to_json(config.model), to_json(ModelConfig()), "group"),
    )


def _changed(fields: Mapping[str, Any], usual: Mapping[str, Any], name: str, *left_out: str) -> str:
    texts = [str(fields[name])]
    for field, value in sorted(fields.items()):
        if field not in (name, *left_out) and value != usual.get(field):
            texts.append(f"{field} {value}")
    return ", ".join(texts)


ELSEWHERE = (
    "searched on {}, not on these data",
    "searched on the split {}, not on this one",
    "searched with the models {}, not with these",
)


def elsewhere(entry: Entry, config: Config) -> str:
    """Describes the data, split or models of an entry's search, if they differ from a config's.

    "" if all are the same, or not recorded.
    """
    for then, now, words in zip(entry.searched_on, bound_to(as_run(entry, config)), ELSEWHERE):
        if then != now:
            return words.format(then)
    return ""


def presets_of(entries: Iterable[Any]) -> dict[str, Entry]:
    """Returns the presets among a config's entries by label; the last one of equal labels."""
    return {entry.label: entry for entry in entries if isinstance(entry, Entry)}


def chosen(entries: Iterable[Any], texts: Iterable[str]) -> tuple[Any, ...]:
    """Returns a config's presets, and these strings instead of its other entries."""
    return (*presets_of(entries).values(), *texts)


def only(config: Config, texts: Iterable[str]) -> Config:
    """Returns a config that runs only these entries, without its method."""
    entries = chosen(config.entries, texts)
    return dataclasses.replace(config, method=MethodConfig(None), entries=entries)


def keeping(config: Config, labels: Collection[str]) -> Config:
    """Returns a config that runs only those of its entries, each with the config's settings."""
    entries = []
    for spec in config.entries:
        label = spec["label"] if isinstance(spec, Mapping) else spec
        if isinstance(spec, Entry) or label in labels:
            entries.append(spec)
    method = config.method if config.method.name in labels else MethodConfig(None)
    return dataclasses.replace(config, method=method, entries=tuple(entries))


def entries_of(config: Config) -> tuple[Entry, ...]:
    """Returns the entries that a config runs: its method, and its `entries` without presets.

    Of equal labels, the first one is taken.

    Raises:
      ValueError: an entry is invalid, or there is none. One line.
    """
    presets = presets_of(config.entries)
    searched = [preset for preset in presets.values() if preset.tuned]
    entries: list[Entry] = []
    if config.method.name is not None:
        entries.append(_configured(config.method))
    for spec in config.entries:
        if isinstance(spec, str):
            entries.append(parse_entry(spec, presets))
        elif isinstance(spec, Mapping):
            if lacking := [field for field in RECORDED if field not in spec]:
                raise ValueError(
                    f"entries has a dict without {', '.join(lacking)}; write an entry as "
                    "NAME:KEY=VALUE"
                )
            entries.append(recorded(spec))
    if not entries:
        raise ValueError("the config has neither a method.name nor entries; nothing would run")
    by_label: dict[str, Entry] = {}
    for entry in entries:
        for preset in searched:
            if preset.settings == entry.settings and not entry.tuned:
                entry = entry._replace(tuned=preset.tuned, searched_on=preset.searched_on)
        by_label.setdefault(entry.label, entry)
    return tuple(by_label.values())


def parse_entry(spec: str, presets: Mapping[str, Entry] = MappingProxyType({})) -> Entry:
    """Returns the entry that `spec` describes.

    Args:
      spec: `NAME[@tuned][:KEY=VALUE]...`.
      presets: NAME or NAME@tuned -> the entry that it starts from.

    Raises:
      ValueError: it is malformed, or sets something that does not exist. One line.
    """
    first, *settings = split_spec(spec)
    name, at, _ = first.partition("@")
    if at and first not in presets:
        tuned = ", ".join(label for label in presets if "@" in label) or "nothing"
        raise ValueError(f"entry {spec!r}: there is no {first!r}; this config has tuned {tuned}")
    defaults: dict[str, Mapping[str, Any]] = {
        "method": method_options(name),
        "training": to_plain(TrainingConfig()),
        "model": to_plain(ModelConfig()),
    }
    start = presets.get(first, Entry(first, name, options={}, training={}, model={}))
    own: dict[str, dict[str, Any]] = {
        "method": dict(start.options),
        "training": dict(start.training),
        "model": dict(start.model),
    }
    given: set[tuple[str, str]] = set()
    for setting in settings:
        key, equals, text = setting.partition("=")
        part, dot, field = key.rpartition(".")
        part = part if dot else "method"
        if not equals or field not in defaults.get(part, {}):
            raise ValueError(f"entry {spec!r}: {setting!r} sets nothing{_settable(key, defaults)}")
        if (part, field) in given:
            raise ValueError(f"entry {spec!r} sets {field} twice; give it one value")
        given.add((part, field))
        value = literal(text)
        if part != "method":  # the method's factory checks its options
            default = defaults[part][field]  # never None, as a plain value
            value = _cast(value, type(default))
            if value is not None and not isinstance(value, type(default)):
                raise ValueError(
                    f"entry {spec!r}: {field} cannot be {text!r}; it is {default!r} by default"
                )
        own[part][field] = value
    return Entry(
        label=spec,
        method=name,
        options=all_options(name, own["method"]),
        training=dict(sorted(own["training"].items())),
        model=dict(sorted(own["model"].items())),
    )


def split_spec(spec: str) -> list[str]:
    """Splits an entry into NAME, which may be a "module:function", and its KEY=VALUE parts.

    A part without = belongs to the value before it.
    """
    first, *rest = spec.split(":")
    is_method = first.partition("@")[0] in METHODS
    if rest and not is_method and names_user_method(f"{first}:{rest[0].partition('@')[0]}"):
        first, rest = f"{first}:{rest[0]}", rest[1:]
    parts = [first]
    for part in rest:
        if "=" not in part and len(parts) > 1:
            parts[-1] += f":{part}"
        else:
            parts.append(part)
    return parts


def literal(text: str) -> Any:
    """Returns the value of a Python literal, or the string itself if it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _settable(key: str, defaults: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the end of a message: the name closest to `key`, or the settings of an entry."""
    names, forms = list(defaults["method"]), list(defaults["method"])
    for part in OVERRIDDEN:
        forms.append(f"{part}.FIELD")
        names += [f"{part}.{field}" for field in defaults[part]]
    return meant(key, names, f"KEY=VALUE may set {', '.join(forms)}")


def as_run(entry: Entry, config: Config) -> Config:
    """Returns the config with the entry's training and models.

    Raises:
      ValueError: the entry gives a field an invalid value. One line.
    """
    sections = {part: changed(getattr(config, part), getattr(entry, part)) for part in OVERRIDDEN}
    return dataclasses.replace(config, **sections)


def check_label(label: str) -> None:
    """Raises ValueError if a config.json's label is unsafe, as a folder name or in a terminal."""
    if folder_of(label) in ("", ".", "..") or printable(label) != label:
        raise ValueError(f"label is {label!r}, which cannot be a folder's name")


RECORDED = ("label", "method", "options", "training", "model")
"""The fields that an entry of a run's config.json must have."""


def recorded(entry: Mapping[str, Any]) -> Entry:
    """Reads an entry of a run's config.json. Options that its version lacked get their defaults.

    Raises:
      ValueError: an option is unknown today, or the label cannot name a folder.
    """
    label, name, options = entry["label"], entry["method"], entry["options"]
    check_label(label)
    return Entry(
        label=label,
        method=name,
        options=all_options(name, options, owner=f"entry {label!r}: {name}"),
        training=with_tuples(entry["training"]),
        model=with_tuples(entry["model"]),
        tuned=entry.get("tuned", ""),
        searched_on=tuple(entry.get("searched_on", ())),
    )


def _configured(method: MethodConfig) -> Entry:
    """Returns the entry of the config's `method`, which may lack options, or have unknown ones."""
    name, given = str(method.name), dict(method.options)
    unknown = {option: given.pop(option) for option in given.keys() - method_options(name).keys()}
    return Entry(name, name, all_options(name, given) | unknown, training={}, model={})


def all_options(method: str, given: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Returns all options of a method: the given ones in their types, and the others' defaults.

    None is not given. `owner` is the method in messages, if that is not its name.

    Raises:
      ValueError: an option is unknown. One line.
    """
    parameters = method_options(method)
    given = {option: value for option, value in given.items() if value is not None}
    options = option_values(owner or method, parameters, given)
    for option, value in options.items():
        options[option] = _cast(value, option_kind(parameters[option]))
    return with_tuples(options)


def _cast(value: Any, kind: type) -> Any:
    """Converts an int to float, or a list to tuple, if that is the value's type."""
    if kind is float and type(value) is int:
        return float(value)
    return tuple(value) if kind is tuple and isinstance(value, list) else value


def method_of(label: str) -> str:
    """Returns the method at the start of a label: "fedtgp" for "fedtgp@tuned:tau=3"."""
    return split_spec(label)[0].partition("@")[0]


def baseline_of(labels: Iterable[str]) -> str:
    """Returns the label to compare others with: the first of local training, else the first."""
    labels = list(labels)
    return next((label for label in labels if method_of(label) == BASELINE), labels[0])


def number_of(method: str) -> int:
    """Returns a number that identifies a method in every run.

    It is the method's index in the library; for a user's own method, a hash of its name.
    """
    if method in LIBRARY:
        return LIBRARY.index(method)
    return len(LIBRARY) + zlib.crc32(method.encode())


def changes(entry: Entry) -> dict[str, Any]:
    """Returns the settings that differ from the method's defaults or the config's sections."""
    parameters = method_options(entry.method)
    differing = {k: v for k, v in entry.options.items() if v != parameters[k].default}
    for part in OVERRIDDEN:
        for field, value in getattr(entry, part).items():
            differing[f"{part}.{field}"] = value
    return differing


def described(entry: Entry, config: Config) -> str:
    """Describes an entry of a config: its label, its changes to the defaults, and its tuning."""
    differing = ", ".join(f"{key}={value}" for key, value in changes(entry).items())
    origin = ""
    if other := elsewhere(entry, config):
        origin = f"; {other}"
    elif entry.tuned:
        origin = f"; tuned on {entry.tuned}"
    elif differing:
        origin = "; their origin is not recorded"
    return f"{entry.label}: {differing or _defaults(entry.method)}{origin}"


def _defaults(method: str) -> str:
    """Describes a method's defaults."""
    if method == BASELINE:
        return "every client trains alone; it has no options"
    if names_object(method):
        return "a method given from Python"
    return "at its defaults"
