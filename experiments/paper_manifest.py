"""Reads experiments/results/tables.toml: which runs belong to which published numbers.

The file's head explains the fields.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

NONE: Mapping[str, str] = MappingProxyType({})
UNKNOWN = "not recorded"
Kind = TypeVar("Kind", bound=tuple)


class Selection(NamedTuple):
    """Runs of one dataset in a CSV of `write_evaluations`: some methods, seeds, rounds; or all."""

    csv: str
    dataset: str
    methods: Sequence[str] = ()
    seeds: Sequence[int] = ()
    rounds: int | None = None


class Part(NamedTuple):
    """Runs beside the numbers of one column of a paper's table."""

    runs: Selection
    title: str
    command: str = ""
    score: str = "accuracy"
    also: Sequence[str] = ()
    rules: Mapping[str, str] = NONE
    published: str = ""
    published_score: str = ""
    published_dataset: str = ""
    published_as: Mapping[str, str] = NONE


class Table(NamedTuple):
    """A paper's table, as far as it was run."""

    title: str
    configs: Sequence[str]
    page: str
    parts: Sequence[Part]
    machine: str = UNKNOWN
    seconds: str = UNKNOWN
    differs: str = UNKNOWN
    unstated: str = UNKNOWN
    tried: str = UNKNOWN


class Picture(NamedTuple):
    """Curves of a score; `file` is below the repository's root."""

    file: str
    score: str
    runs: Sequence[Selection]


class Manifest(NamedTuple):
    """The tables and pictures made from committed files."""

    tables: Sequence[Table]
    pictures: Sequence[Picture]


def read_manifest(path: Path) -> Manifest:
    """Reads the tables and pictures of a manifest.

    Raises:
      ValueError: it is not a TOML file, or an entry has an unknown field or lacks one. One line.
    """
    manifest = filled(Manifest, read_toml(path), path.name)
    tables = [filled(Table, values, "tables") for values in manifest.tables]
    for number, table in enumerate(tables):
        parts = []
        for values in table.parts:
            part = filled(Part, values, table.title)
            runs = filled(Selection, part.runs, f"{table.title}, {part.title}")
            parts.append(part._replace(runs=runs))
        tables[number] = table._replace(parts=parts)
    pictures = [filled(Picture, values, "pictures") for values in manifest.pictures]
    for number, picture in enumerate(pictures):
        runs = [filled(Selection, values, picture.file) for values in picture.runs]
        pictures[number] = picture._replace(runs=runs)
    return Manifest(tables, pictures)


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file; raises a one-line ValueError if it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML file: {error}") from None


def filled(kind: type[Kind], values: Mapping[str, Any], where: str) -> Kind:
    """Makes a `kind` from these fields, and defaults for the others.

    Args:
      kind: a NamedTuple.
      values: field -> value.
      where: name of the entry in errors.

    Raises:
      ValueError: a field is unknown, or one without a default is missing.
    """
    for name in values:
        if name not in kind._fields:
            raise ValueError(
                f"{where}: there is no field {name!r}; there are {', '.join(kind._fields)}"
            )
    for name in kind._fields:
        if name not in values and name not in kind._field_defaults:
            raise ValueError(f"{where}: the field {name!r} is missing")
    return kind(**values)
