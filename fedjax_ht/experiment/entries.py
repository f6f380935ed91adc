"""What a run compares: entries, each a method with all of its options, and what it changes of
training and models.

An entry is written `NAME[@tuned][:KEY=VALUE]...`, which is also its label:

    fedproto                                     as its paper has it, and what the config's `given`
    says of it fedproto:variant=released:weight=3           with two options of its own
    fedproto:training.learning_rate=0.05         with another field of the config's `training`, or
    `model` fedktl:generator=mine:make                   a value with a colon: "mine:make"
    fedtgp@tuned                                 as the config's `tuned` has it
"""

import ast
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fedjax_ht.configs.base import method_config
from fedjax_ht.core.names import meant, unknown_option
from fedjax_ht.methods import method_factory

OVERRIDDEN = ("training", "model")

FORMERLY: dict[str, dict[str, Any]] = {
    "dense": {"variant": "released"},
    "fedftg": {"variant": "released"},
    "dfrd": {"variant": "released"},
    "fedktl": {"latents": "spread"},
}
"""Method -> options that earlier versions did not have, and what they did without them where that
is not today's default: a run that goes on must not change its form."""


class Entry(NamedTuple):
    """One of the things that are compared.

    Attributes:
      label: unique in a run.
      method: its name.
      options: all that its factory has; None where a number may be set and is not.
      training, model: the fields of the config's `training` and `model` that it changes.
      tuned: on what these settings were chosen; "" where nobody chose.
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
        """What it trains and exchanges by, whatever it is called."""
        return self.method, self.options, self.training, self.model


def folder_of(label: str) -> str:
    """A label may hold a path."""
    return label.replace("/", "_")


def entries_of(config: ConfigDict) -> tuple[Entry, ...]:
    """What a config runs: its `entries`, or without any its `method` and those of `compare`; of
    equal labels the first.

    Raises:
      ValueError: an entry is wrong. One line.
    """
    known = {
        entry.method: entry for entry in (parse_entry(spec, config, {}) for spec in config.given)
    }
    tuned = [parse_entry(spec, config, known) for spec in config.tuned]
    known |= {f"{entry.method}@tuned": entry for entry in tuned}
    if config.entries:
        found = [
            recorded(e) if isinstance(e, Mapping) else parse_entry(e, config, known)
            for e in config.entries
        ]
    else:
        own = Entry(config.method.name, config.method.name, _options(config.method), {}, {}, "")
        found = [own, *(parse_entry(spec, config, known) for spec in config.compare)]
    chosen, first = [entry.settings for entry in tuned], {}
    spaces = dict(spec.split(": ", 1) for spec in config.searched)
    for entry in found:
        searched = f"; searched: {spaces[entry.method]}" if entry.method in spaces else ""
        tuned_on = f"{config.tuned_on}{searched}" if entry.settings in chosen else ""
        first.setdefault(entry.label, entry._replace(tuned=tuned_on))
    return tuple(first.values())


def parse_entry(spec: str, config: ConfigDict, known: Mapping[str, Entry]) -> Entry:
    """An entry as it is written; `known` are what NAME and NAME@tuned stand for, but for settings
    of their own."""
    first, *settings = _parts(spec)
    name, at, _ = first.partition("@")
    if at and first not in known:
        there = ", ".join(label for label in known if "@" in label) or "nothing"
        raise ValueError(f"entry {spec!r}: there is no {first!r}; this config has tuned {there}")
    method = method_config(name)
    parts = {"method": method.options} | {
        part: config[part].copy_and_resolve_references() for part in OVERRIDDEN
    }
    changed: dict[str, set[str]] = {part: set() for part in parts}
    if first in known:
        for part, values in zip(parts, known[first].settings[1:]):
            parts[part].update({k: v for k, v in values.items() if v is not None})
            changed[part] |= set(values)
    for setting in settings:
        key, equals, text = setting.partition("=")
        part, dot, field = key.rpartition(".")
        target = parts.get(part if dot else "method")
        if not equals or target is None or field not in target:
            fields = [
                *method.options,
                *(f"{part}.{field}" for part in OVERRIDDEN for field in parts[part]),
            ]
            there = ", ".join([*method.options, *(f"{part}.FIELD" for part in OVERRIDDEN)])
            hint = meant(key, fields, f"KEY=VALUE may set {there}")
            raise ValueError(f"entry {spec!r}: {setting!r} sets nothing{hint}")
        try:
            target[field] = _value(text)
        except TypeError:
            raise ValueError(
                f"entry {spec!r}: {field} cannot be {text!r}; it is {target[field]!r} by default"
            ) from None
        changed[part or "method"].add(field)
    overrides = (
        {field: parts[part][field] for field in sorted(changed[part])} for part in OVERRIDDEN
    )
    return Entry(spec, name, _options(method), *overrides, "")


def as_run(entry: Entry, config: ConfigDict) -> ConfigDict:
    """A copy of the config with the entry's training and models."""
    config = config.copy_and_resolve_references()
    for part in OVERRIDDEN:
        config[part].update(getattr(entry, part))
    return config


def changes(entry: Entry) -> dict[str, Any]:
    """What an entry has other than its method's defaults and the config's training and model."""
    parameters = inspect.signature(method_factory(entry.method)).parameters
    found = {k: v for k, v in entry.options.items() if v != parameters[k].default}
    for part in OVERRIDDEN:
        found |= {f"{part}.{field}": value for field, value in getattr(entry, part).items()}
    return found


def described(entries: Sequence[Entry]) -> str:
    """A line an entry, in Markdown: what is not at its default, and on what it was tuned."""
    lines = []
    for entry in entries:
        differing = ", ".join(f"{key}={value}" for key, value in changes(entry).items())
        unknown = "; on what that was chosen is not recorded" if differing else ""
        chosen = f"; tuned on {entry.tuned}" if entry.tuned else unknown
        lines.append(f"* {entry.label}: {differing or _defaults(entry.method)}{chosen}")
    return "\n".join(lines)


def _defaults(method: str) -> str:
    """Says what a method's defaults are: its paper's, but of a method that a user has
    registered."""
    library = method_factory(method).__module__.startswith("fedjax_ht.")
    return "as its paper has it" if library else "at its defaults"


def recorded(entry: Mapping[str, Any]) -> Entry:
    """Reads an entry of a run's config.json; options that its version did not know are as it did
    without them.

    Raises:
      ValueError: an option is unknown today, or stands for a form that is gone.
    """
    label, name, options = entry["label"], entry["method"], entry["options"]
    method = method_config(name)
    if others := sorted(set(options) - set(method.options)):
        raise ValueError(
            f"entry {label!r}: {unknown_option(name, others[0], list(method.options))}"
        )
    if name == "fedktl" and options.get("variant") == "released" and "latents" not in options:
        raise ValueError(
            f"entry {label!r}: variant='released' of fedktl was another form when this run began"
        )
    formerly = {
        k: v for k, v in FORMERLY.get(name.rpartition("+")[2], {}).items() if k not in options
    }
    method.options.update(formerly | {k: v for k, v in options.items() if v is not None})
    overrides = ({k: _listed(v) for k, v in dict(entry[part]).items()} for part in OVERRIDDEN)
    return Entry(label, entry["method"], _options(method), *overrides, "")


def _parts(spec: str) -> list[str]:
    """NAME and each KEY=VALUE; what has no = belongs to the value before it."""
    parts: list[str] = []
    for part in spec.split(":"):
        if "=" not in part and len(parts) > 1:
            parts[-1] += f":{part}"
        else:
            parts.append(part)
    return parts


def _options(method: ConfigDict) -> dict[str, Any]:
    return {name: _listed(method.options[name]) for name in method.options}


def _listed(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
