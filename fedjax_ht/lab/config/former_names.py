"""Former names of config fields, which stored runs have and users may remember."""

from collections.abc import Collection, Mapping
from typing import Any

from fedjax_ht.core.names import unknown

SEE = "`fedjax-ht list fields` shows all of them"

RENAMED = {
    "evaluate.batch_size": "scoring.batch_size",
    "evaluate.global_statistics": "scoring.global_statistics",
    "evaluate.mode": "scoring.state",
    "evaluate.train": "scoring.train",
    "profile": "time_stages",
}
"""Former path of a field -> today's."""


def under_new_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a stored config, nested dictionaries, under today's names."""
    renamed: dict[str, Any] = {}
    for name, value in fields.items():
        renamed[name] = dict(value) if isinstance(value, Mapping) else value
    for former, path in RENAMED.items():
        section, _, name = former.rpartition(".")
        values = renamed.get(section) if section else renamed
        if isinstance(values, dict) and name in values:
            new_section, _, new_name = path.rpartition(".")
            target = renamed.setdefault(new_section, {}) if new_section else renamed
            target[new_name] = values.pop(name)
    return renamed


def unknown_field(name: str, known: Collection[str]) -> str:
    """Writes the message on a field that the config does not have."""
    if name in RENAMED:
        return f"config field {name!r} was renamed to {RENAMED[name]!r}"
    return unknown("config field", name, known, SEE)
