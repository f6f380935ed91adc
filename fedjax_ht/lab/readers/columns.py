"""Finds which columns of a table are the label, the features and the group, by name.

A column that is not named by the user is found by a usual name, and said; where two would do, or a
column may be an index, the table is refused with the column's name.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from fedjax_ht.core.names import listed, short, unknown

LABELS = ("label", "labels", "target", "class", "class index", "y")
"""Names of columns, in small letters, that are the label if none is named."""

GROUPS = ("group", "person")
"""Names of columns, in small letters, that are the group if none is named."""

_UNNAMED = re.compile(r"(?:unnamed: ?\d+)?", re.IGNORECASE)  # as pandas writes and reads an index


class Columns(NamedTuple):
    """The columns that a user names.

    Attributes:
      label: column of the labels; "" for the usual names.
      features: columns of the samples; () for all others; with "-" before every name, all others
        but these.
      group: column of the samples' groups; "" for the usual names.
    """

    label: str = ""
    features: tuple[str, ...] = ()
    group: str = ""


NOT_NAMED = Columns()
"""Columns of which none is named: each is found by a usual name."""


class Roles(NamedTuple):
    """The roles of a table's columns.

    Attributes:
      label: column of the labels.
      features: columns of the samples, in the table's order.
      group: column of the samples' groups, such as persons; "" for none.
      are_named: True if the features are named one by one, and thereby meant.
      sentence: a sentence on the columns that were found by their names; "" where all are named.
    """

    label: str
    features: tuple[str, ...]
    group: str
    are_named: bool
    sentence: str


def named_in(text: str, columns: Columns) -> Columns:
    """Returns the columns named in PATH, PATH:LABEL or PATH:LABEL:GROUP, and otherwise.

    Args:
      text: the text behind a set's prefix.
      columns: the columns that are named otherwise.

    Raises:
      ValueError: more columns are named, or a column differently in two places.
    """
    _, *names = text.split(":")
    if len(names) > 2:
        raise ValueError(
            f"{len(names)} columns are named, {', '.join(names)}; name a label and a group at "
            "most, as PATH:LABEL:GROUP"
        )
    for role, name in zip(("label", "group"), names):
        other = getattr(columns, role)
        if name and other and name != other:
            raise ValueError(f"the {role} is named {name!r} and {other!r}; name it once")
        columns = columns._replace(**{role: name or other})
    return columns


def roles_of(columns: Sequence[str], named: Columns, name: str) -> Roles:
    """Finds the role of each column.

    Args:
      columns: names of the columns, in order.
      named: the columns that the user named.
      name: the name of the set without columns, "csv:mine.csv", for the messages; "" for a table in
        memory, whose columns are named by arguments.

    Raises:
      ValueError: a column that is named is not there, or none is called like a label, or several
        are, or no feature is left. One line.
    """
    if len(set(columns)) < len(columns):
        raise ValueError(
            f"its first line names the columns {short(columns)}; each needs a name of its own"
        )
    label = _column("label", named.label, columns, label_candidates(columns), name)
    group = _group(named, columns, label, name)
    if label == group:
        raise ValueError(f"column {label!r} is named twice")
    special = [label, group] if group else [label]
    features = _features(named.features, columns, special)
    if not features:
        kind = "texts" if name.startswith("text:") else "numbers"
        raise ValueError(f"it has no column of {kind} beside {' and '.join(special)}")
    are_named = bool(named.features) and not _are_out(named.features, columns)
    if not are_named:
        _refuse_unnamed(features)
    sentence = ""
    if not named.label:
        about_group = f", and {group!r} for the group" if group else ""
        sentence = (
            f"column {label!r} is taken for the label, and {listed(features)} for features"
            f"{about_group}; {_naming('label', label, name)} names it and ends this line"
        )
    return Roles(
        label=label,
        features=tuple(features),
        group=group,
        are_named=are_named,
        sentence=sentence,
    )


def _group(named: Columns, columns: Sequence[str], label: str, name: str) -> str:
    """The column of the groups; "" where none is named, or called so."""
    taken = [label, *(feature.removeprefix("-") for feature in named.features)]
    candidates = [column for column in _called(columns, GROUPS) if column not in taken]
    if not named.group and not candidates:
        return ""
    return _column("group", named.group, columns, candidates, name)


def label_candidates(columns: Sequence[str]) -> list[str]:
    """Returns the columns that are called like a label; y is a coordinate where there is an x."""
    called = _called(columns, LABELS)
    if any(name.lower() == "x" for name in columns):
        called = [name for name in called if name.lower() != "y"]
    return called


def refuse_two_owners(group: str) -> None:
    """Refuses a column of groups, if there is one, where every file is a client."""
    if group:
        raise ValueError(
            f"every file of the folder is a client, and column {group!r} is called like a group; "
            f"{leave_out(group)}, or put the files into one"
        )


def leave_out(name: str) -> str:
    """Says how to leave a column out, or to keep it as a feature."""
    return (
        f"leave it out by dataset.features=-{name} (features=['-{name}'] from Python), or name "
        "all features there if it is one"
    )


def _called(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns of such a name, the first names first."""
    called = []
    for name in names:
        called += [column for column in columns if column.lower() == name]
    return called


def _naming(role: str, columns: str, name: str) -> str:
    """The way to name the column of a role: "csv:mine.csv:LABEL", or "label='LABEL'" in memory."""
    return f"{name}:{columns}" if name else f"{role}={columns.rpartition(':')[2]!r}"


def _column(
    role: str, chosen: str, columns: Sequence[str], candidates: Sequence[str], name: str
) -> str:
    """The column of the labels or groups: the one that is named, or that has a usual name."""
    known = f"the columns are {listed([column or repr(column) for column in columns], most=20)}"
    if chosen and chosen not in columns:
        raise ValueError(unknown("column", chosen, columns, known))
    if chosen:
        return chosen
    form = _naming(role, "LABEL" if role == "label" else "LABEL:GROUP", name)
    if not candidates:
        raise ValueError(
            f"no column is called {', '.join(LABELS)}; name the {role} as {form}; {known}"
        )
    if len(candidates) > 1:
        raise ValueError(
            f"columns {' and '.join(map(repr, candidates))} may each be the {role}; name it as "
            f"{form}, and leave the other out if it says the same"
        )
    return candidates[0]


def _features(named: Sequence[str], columns: Sequence[str], special: Sequence[str]) -> list[str]:
    """The columns of features, in the table's order."""
    are_out = _are_out(named, columns)
    names = {name.removeprefix("-") if are_out else name for name in named}
    for name in sorted(names):
        if name not in columns:
            known = f"the columns are {listed(columns, most=20)}"
            raise ValueError(unknown("column", name, columns, known))
        if name in special and not are_out:
            raise ValueError(f"column {name!r} is named as a feature and as the label or group")
    if are_out or not named:
        return [name for name in columns if name not in names and name not in special]
    return [name for name in columns if name in names]


def _are_out(named: Sequence[str], columns: Sequence[str]) -> bool:
    """Returns whether all names have a "-" before them, which leaves these columns out.

    Raises:
      ValueError: some have.
    """
    have_minus = [name.startswith("-") and name not in columns for name in named]
    if any(have_minus) and not all(have_minus):
        raise ValueError(
            f"features are {', '.join(named)}; name those that are, or with - before every name "
            "those that are not"
        )
    return any(have_minus)


def _refuse_unnamed(features: Sequence[str]) -> None:
    for name in features:
        if _UNNAMED.fullmatch(name):
            raise ValueError(
                f"column {name!r} has no name, as the index that pandas writes: write the table "
                f"with to_csv(path, index=False), or {leave_out(name)}"
            )
