"""Entries of a run: each a method with all of its options, and its changes to training and models.

An entry is written `NAME[@tuned][:KEY=VALUE]...`, which is also its label:

    fedproto                              at its paper's options, or those of the config's `given`
    fedproto:variant=released:weight=3    with two options of its own
    fedproto:training.learning_rate=0.05  with another field of the config's `training` or `model`
    fedktl:generator=mine:make            a value with a colon: "mine:make"
    mine:fedl2g:weight=3                  a method of a user's own, "module:function"
    fedtgp@tuned                          with the options of the config's `tuned`
"""

import dataclasses
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_ht.core.names import unknown_option
from fedjax_ht.core.user_code import names_object
from fedjax_ht.lab.config.base import method_options, option_values
from fedjax_ht.lab.config.entry_text import OVERRIDDEN, parsed_setting, split_spec
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import changed, to_plain
from fedjax_ht.methods import LIBRARY, is_own

BASELINE = "local"
"""The method that others are compared with, where an entry has it: each client trains alone."""

FORMERLY: dict[str, dict[str, Any]] = {
    "dense": {"variant": "released"},
    "fedftg": {"variant": "released"},
    "dfrd": {"variant": "released"},
    "fedktl": {"latents": "spread"},
}
"""Method -> options that earlier versions did not have, with what they did without them where that
is not today's default: a run that goes on must not change its form."""


def method_of(label: str) -> str:
    """Returns the method that a label begins with: "fedtgp" of "fedtgp@tuned:tau=3"."""
    return split_spec(label)[0].partition("@")[0]


def baseline_of(labels: Iterable[str]) -> str:
    """Returns the label that others are compared with: the first of local training, else the
    first."""
    labels = list(labels)
    return next((label for label in labels if method_of(label) == BASELINE), labels[0])


def number_of(method: str) -> int:
    """Returns a number that a method has in every run: its place among the library's, and of a
    user's own method one that its name makes."""
    if method in LIBRARY:
        return LIBRARY.index(method)
    return len(LIBRARY) + zlib.crc32(method.encode())


class Entry(NamedTuple):
    """A method of a run with its settings.

    Attributes:
      label: the entry's name, unique in a run.
      method: name of the method.
      options: all options of the method's factory; None where a number may be set and is not.
      training, model: plain values of the section's fields that the entry changes.
      tuned: text on the setting in which these values were searched; "" where they were not.
    """

    label: str
    method: str
    options: dict[str, Any]
    training: dict[str, Any]
    model: dict[str, Any]
    tuned: str

    @property
    def folder(self) -> str:
        """The name of its folder in the run's."""
        return folder_of(self.label)

    @property
    def settings(self) -> tuple:
        """The method and all settings, without the label."""
        return self.method, self.options, self.training, self.model


def folder_of(label: str) -> str:
    """Returns the folder name of a label, which may hold a path."""
    return label.replace("/", "_")


def entries_of(config: Config) -> tuple[Entry, ...]:
    """Returns the entries of a config: its `entries`, or without any its `method` and those of
    `compare`; of equal labels the first.

    Raises:
      ValueError: an entry is wrong. One line.
    """
    known: dict[str, Entry] = {}
    for spec in config.given:
        entry = parse_entry(spec, config, {})
        known[entry.method] = entry
    tuned: dict[str, Entry] = {}
    for spec in config.tuned:
        entry = parse_entry(spec, config, known)
        tuned[f"{entry.method}@tuned"] = entry
    known |= tuned
    entries: list[Entry] = []
    if not config.entries:
        entries.append(_configured(config))
    for spec in config.entries or config.compare:
        if isinstance(spec, Mapping):
            entries.append(recorded(spec))
        else:
            entries.append(parse_entry(spec, config, known))
    chosen = [entry.settings for entry in tuned.values()]
    spaces = dict(spec.split(": ", 1) for spec in config.searched)
    by_label: dict[str, Entry] = {}
    for entry in entries:
        tuned_on = ""
        if entry.settings in chosen:
            space = spaces.get(entry.method)
            tuned_on = config.tuned_on
            if space:
                tuned_on += f"; searched: {space}"
        by_label.setdefault(entry.label, entry._replace(tuned=tuned_on))
    return tuple(by_label.values())


def parse_entry(spec: str, config: Config, known: Mapping[str, Entry]) -> Entry:
    """Returns the entry that is written `spec`.

    Args:
      spec: `NAME[@tuned][:KEY=VALUE]...`.
      config: the config of the run; its sections have the fields that may be changed.
      known: NAME or NAME@tuned -> the entry whose settings it starts from.

    Raises:
      ValueError: it is written wrong, or sets something that does not exist. One line.
    """
    first, *settings = split_spec(spec)
    name, at, _ = first.partition("@")
    if at and first not in known:
        tuned = ", ".join(label for label in known if "@" in label) or "nothing"
        raise ValueError(f"entry {spec!r}: there is no {first!r}; this config has tuned {tuned}")
    parameters = method_options(name)
    changed: dict[str, dict[str, Any]] = {"method": {}, "training": {}, "model": {}}
    if first in known:
        for part, values in zip(changed, known[first].settings[1:]):
            changed[part] |= _without_none(values)
    defaults = {
        "method": option_values(name, parameters, {}),
        "training": to_plain(config.training),
        "model": to_plain(config.model),
    }
    for setting in settings:
        part, field, value = parsed_setting(spec, setting, defaults, parameters)
        changed[part][field] = value
    return Entry(
        label=spec,
        method=name,
        options=_without_lists(defaults["method"] | changed["method"]),
        training=dict(sorted(changed["training"].items())),
        model=dict(sorted(changed["model"].items())),
        tuned="",
    )


def as_run(entry: Entry, config: Config) -> Config:
    """Returns the config with the entry's training and models.

    Raises:
      ValueError: the entry gives a field a value that it cannot have. One line.
    """
    sections = {}
    for part in OVERRIDDEN:
        sections[part] = changed(getattr(config, part), getattr(entry, part), f"{part}.")
    return dataclasses.replace(config, **sections)


def changes(entry: Entry) -> dict[str, Any]:
    """Returns the settings that are not the method's defaults, nor the config's training and
    model."""
    parameters = method_options(entry.method)
    differing = {k: v for k, v in entry.options.items() if v != parameters[k].default}
    for part in OVERRIDDEN:
        for field, value in getattr(entry, part).items():
            differing[f"{part}.{field}"] = value
    return differing


def described(entries: Sequence[Entry]) -> str:
    """Returns a Markdown list of entries: their changes to the defaults, and their tuning."""
    lines = []
    for entry in entries:
        differing = ", ".join(f"{key}={value}" for key, value in changes(entry).items())
        origin = ""
        if entry.tuned:
            origin = f"; tuned on {entry.tuned}"
        elif differing:
            origin = "; on what that was chosen is not recorded"
        lines.append(f"* {entry.label}: {differing or _defaults(entry.method)}{origin}")
    return "\n".join(lines)


def _defaults(method: str) -> str:
    """Returns a method's defaults in words; a user's own method may follow no paper."""
    if method == BASELINE:
        return "every client trains alone; it has no options"
    if names_object(method):
        return "a method given from Python"
    return "at its defaults" if is_own(method) else "as its paper has it"


def recorded(entry: Mapping[str, Any]) -> Entry:
    """Reads an entry of a run's config.json. An option that the run's version did not have gets
    what that version did without it.

    Raises:
      ValueError: an option is unknown today, or stands for a form that is gone; or the label is no
        name of a folder.
    """
    label, name, options = entry["label"], entry["method"], entry["options"]
    if folder_of(label) in ("", ".", ".."):  # such a folder lies outside of the run's
        raise ValueError(f"label is {label!r}, which cannot be the name of a folder")
    parameters = method_options(name)
    if unexpected := sorted(set(options) - set(parameters)):
        message = unknown_option(name, unexpected[0], list(parameters))
        raise ValueError(f"entry {label!r}: {message}")
    if name == "fedktl" and options.get("variant") == "released" and "latents" not in options:
        raise ValueError(
            f"entry {label!r}: variant='released' of fedktl was another form when this run began; "
            "begin a new run in another --workdir"
        )
    formerly = FORMERLY.get(name.rpartition("+")[2], {})  # "fedrolex+dfrd" is a form of dfrd
    return Entry(
        label=label,
        method=name,
        options=_without_lists(option_values(name, parameters, formerly | _without_none(options))),
        training=_without_lists(entry["training"]),
        model=_without_lists(entry["model"]),
        tuned="",
    )


def _configured(config: Config) -> Entry:
    """Returns the entry of the config's `method`, which may lack options."""
    name = config.method.name
    parameters = method_options(name)
    defaults = option_values(name, parameters, {})
    options = _without_lists(defaults | dict(config.method.options))
    return Entry(label=name, method=name, options=options, training={}, model={}, tuned="")


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out options that may be given a number and have none."""
    return {k: v for k, v in values.items() if v is not None}


def _without_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces lists by tuples, which JSON has not."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
