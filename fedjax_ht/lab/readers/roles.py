"""Finds the roles of columns (label, features, group), and of files and folders (sets, clients).

A column that the user does not name is found by a usual name, with a warning. Rejects tables with
two candidates for a role, a feature that numbers the rows, or nearly as many classes as rows.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.check.names import listed, unknown
from fedjax_ht.data.reading import LeftOut
from fedjax_ht.lab.readers.source import ReadOptions, one_after_another
from fedjax_ht.lab.safe.bounded import printable

LABELS = ("label", "labels", "target", "class", "class index", "y")
"""Lower-case column names that are the label if none is named."""

_OWNERS = ("group", "person", "subject", "patient", "participant", "user", "client")
GROUPS = tuple(name + end for name in _OWNERS for end in ("", "_id", " id", "id"))
"""Lower-case column names that are the group if none is named. A person's number is not a feature:
it would tell a model whose sample it sees."""

_FEWEST = 10  # rows, or classes, from which a pattern is no coincidence
_INDEX = ("id", "idx", "index", "no", "nr", "number", "row", "key", "uid", "uuid", "sample")
"""Lower-case words in names of columns that number the rows if all their values differ."""


class Roles(NamedTuple):
    """The roles of a table's columns.

    Attributes:
      label: label column; the first of `targets`, if there are any.
      features: feature columns, in the table's order.
      group: column of the samples' groups, such as persons; "" for none.
      targets: target columns of tasks other than classification.
      are_named: True if the user names the features one by one, so they are intended.
      sentence: message about columns found by their names; "" if all are named.
    """

    label: str
    features: tuple[str, ...]
    group: str
    are_named: bool
    sentence: str
    targets: tuple[str, ...] = ()


def refuse_same_names(columns: Sequence[str]) -> None:
    """Rejects a table with duplicate column names."""
    if len(set(columns)) < len(columns):
        raise ValueError(f"its columns are {listed(columns, 20)}; each needs its own name")


def roles_of(columns: Sequence[str], named: ReadOptions) -> Roles:
    """Finds the role of each column.

    Args:
      columns: names of the columns, in order.
      named: the columns that the user named.

    Raises:
      ValueError: a named column does not exist, no or several columns are called like a label, or
        no feature is left. One line.
    """
    labels = named.label.split(",") if named.task != "classification" else [named.label]
    candidates = label_candidates(columns)
    labels = [_column("label", named._replace(label=x), columns, candidates) for x in labels]
    label, group = labels[0], _group(named, columns, labels)
    special = [*labels, group] if group else labels
    for i, column in enumerate(special):
        if column in special[:i]:
            raise ValueError(f"column {column!r} is named twice")
    features = _features(named.features, columns, special)
    if not features:
        kind = "texts" if named.name.startswith("text:") else "numbers"
        raise ValueError(f"it has no column of {kind} besides {' and '.join(special)}")
    found = []
    if not named.label:
        found.append(f"{label!r} is used as the label, and {listed(features)} as features")
    if group and not named.group:
        found.append(f"{group!r} is used as the group and not as a feature")
    sentence = ""
    if found:
        form = _naming("group", f"{label}:{group}", named.name)
        form = form if group else _naming("label", label, named.name)
        sentence = f"column {'; '.join(found)}; {form} names it and silences this warning"
    return Roles(
        label=label,
        features=tuple(features),
        group=group,
        are_named=bool(named.features) and not _are_out(named.features, columns),
        sentence=sentence,
        targets=() if named.task == "classification" else tuple(labels),
    )


def _group(named: ReadOptions, columns: Sequence[str], labels: Sequence[str]) -> str:
    """Returns the group column; "" if none is named or has a usual name."""
    taken = [*labels, *(feature.removeprefix("-") for feature in named.features)]
    candidates = [column for column in _called(columns, GROUPS) if column not in taken]
    if not named.group and not candidates:
        return ""
    return _column("group", named, columns, candidates)


def label_candidates(columns: Sequence[str]) -> list[str]:
    """Returns the columns called like a label; y is a coordinate if there is an x."""
    called = _called(columns, LABELS)
    if any(name.lower() == "x" for name in columns):
        called = [name for name in called if name.lower() != "y"]
    return called


def leave_out(name: str) -> str:
    """Returns a hint how to exclude a column, or to keep it as a feature."""
    return (
        f"exclude it with dataset.features=-{name} (features=['-{name}'] from Python), or name "
        "all features there if it is one"
    )


def _called(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the columns with such names, in the order of `names`."""
    called = []
    for name in names:
        called += [column for column in columns if column.lower() == name]
    return called


def _naming(role: str, columns: str, name: str) -> str:
    """Returns how to name a role's column: "csv:mine.csv:LABEL", or "label='LABEL'" in memory."""
    return f"{name}:{columns}" if name else f"{role}={columns.rpartition(':')[2]!r}"


def _column(
    role: str, named: ReadOptions, columns: Sequence[str], candidates: Sequence[str]
) -> str:
    """Returns the column of labels or groups: the named one, or one with a usual name."""
    known = f"the columns are {listed([column or repr(column) for column in columns], most=20)}"
    chosen = getattr(named, role)
    if chosen and chosen not in columns:
        raise ValueError(unknown("column", chosen, columns, known))
    if chosen:
        return chosen
    form = _naming(role, "LABEL" if role == "label" else "LABEL:GROUP", named.name)
    if not candidates:
        raise ValueError(
            f"no column is called {', '.join(LABELS)}; name the {role} as {form}; {known}"
        )
    if len(candidates) > 1:
        raise ValueError(
            f"columns {' and '.join(map(repr, candidates))} may each be the {role}; name it as "
            f"{form}, and exclude the other if it duplicates it"
        )
    return candidates[0]


def _features(named: Sequence[str], columns: Sequence[str], special: Sequence[str]) -> list[str]:
    """Returns the feature columns, in the table's order."""
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
    """Returns whether all names start with "-", which excludes these columns.

    Raises:
      ValueError: only some do.
    """
    have_minus = [name.startswith("-") and name not in columns for name in named]
    if any(have_minus) and not all(have_minus):
        raise ValueError(
            f"features are {', '.join(named)}; name those to use, or prefix every name with - to "
            "name those to exclude"
        )
    return any(have_minus)


def refuse_index(roles: Roles, features: Sequence[np.ndarray]) -> None:
    """Rejects a feature that numbers the rows, unless the features are named one by one.

    Args:
      roles: roles of the columns.
      features: the values of each feature, [N] each.

    Raises:
      ValueError: a feature has a different whole number in every row, evenly spaced or with the
        name of an index. One line.
    """
    for name, column in zip(roles.features, () if roles.are_named else features):
        steps = np.diff(np.sort(column))
        if len(column) < _FEWEST or (column != np.floor(column)).any() or not steps.all():
            continue
        words = name.lower().replace("-", "_").replace(" ", "_").split("_")
        if (steps == steps[0]).all() or set(words) & set(_INDEX):
            raise ValueError(
                f"column {name!r} has a different integer in every row, {column.min():.0f} to "
                f"{column.max():.0f}, like an index or id; {leave_out(name)}"
            )


def refuse_no_classes(name: str, labels: np.ndarray, class_names: Sequence[str]) -> None:
    """Rejects labels with nearly as many classes as rows.

    Args:
      name: name of the labels, for the message.
      labels: the rows' classes, int [N].
      class_names: names of all classes.

    Raises:
      ValueError: there are more than 10 classes, and more than half as many as rows. One line.
    """
    classes, rows = len(class_names), len(labels)
    if classes > _FEWEST and 2 * classes > rows:
        raise ValueError(
            f"{name} has {classes} classes in {rows} rows, such as {listed(class_names, 3)}: name "
            "the label column; numeric targets need dataset.task=regression (from "
            "Python task='regression')"
        )


_SET_NAME = re.compile(
    r"(?:seg|imgs?|images?|data|dataset)?[ _.-]*"
    r"(?:(?P<train>train(?:ing)?)|(?P<test>tests?|testing)"
    r"|(?P<val>val(?:id(?:ate|ation)?)?|dev|eval(?:uation)?))"
    r"[ _.-]*(?:sets?|imgs?|images?|data|dataset|split|folder)?[ _.-]*\d*",
    re.IGNORECASE,
)


def set_of(name: str) -> str:
    """Returns "train", "val" or "test" for a usual name of such a set, else "".

    Examples:
      >>> set_of("Training"), set_of("seg_test"), set_of("valid"), set_of("dev"), set_of("trains")
      ('train', 'test', 'val', 'val', '')
    """
    match = _SET_NAME.fullmatch(name)
    return match.lastgroup or "" if match else ""


def sets_of(names: Iterable[str]) -> dict[str, str]:
    """Returns name -> set, for the names that are called like one.

    Raises:
      ValueError: two names mean the same set.
    """
    sets: dict[str, str] = {}
    for name in sorted(names):
        of_name = set_of(name)
        if of_name in sets.values():
            other = next(key for key, value in sets.items() if value == of_name)
            raise ValueError(
                f"{other} and {name} are both named like a set to {_PURPOSE[of_name]}; merge them, "
                "or rename one of them"
            )
        if of_name:
            sets[name] = of_name
    return sets


SETS = ("train", "val", "test")
_PURPOSE = {"train": "train on", "val": "validate on", "test": "test on"}


class Owners(NamedTuple):
    """The clients or sets that own the rows of several files.

    Attributes:
      groups: int32 [N], index of each row's file; None for one file, or sets.
      names: names of the files without extension; () for one file, or sets.
      official: name of a set -> indices of its rows.
      warnings: messages on files that are clients but named like sets.
    """

    groups: np.ndarray | None
    names: tuple[str, ...]
    official: dict[str, np.ndarray]
    warnings: tuple[str, ...] = ()


def files_of(place: Path, endings: Sequence[str]) -> tuple[list[Path], tuple[LeftOut, ...]]:
    """Returns the file itself, or a folder's files by name, and the folder's other entries.

    Raises:
      ValueError: the folder has no file with such an extension.
    """
    if not place.is_dir():
        return [place], ()
    files, left_out = [], []
    for path in sorted(place.iterdir()):
        if path.name.startswith("."):
            continue
        if path.name.lower().endswith(tuple(endings)) and not path.is_dir():
            files.append(path)
        else:
            left_out.append(LeftOut(0, printable(path.name), f"no {endings[0]} file"))
    if not files:
        raise ValueError(f"no {', '.join(endings)} file in the folder")
    return files, tuple(left_out)


def owners_of(files: Sequence[Path], counts: Sequence[int]) -> Owners:
    """Finds the clients or sets that own the rows of files.

    Files are sets if all are named train, val or test, or if their names differ in one word only,
    and these words name different sets: adult_train and adult_test. Otherwise each is a client.

    Args:
      files: paths of the files, in order.
      counts: number of rows of each file.

    Raises:
      ValueError: two files have the same name, or only some are called like sets (train, val or
        test).
    """
    if len(files) == 1:
        return Owners(None, (), {})
    names: dict[str, Path] = {}
    for file in files:
        # .csv.gz is one ending; all other dots belong to the name
        name = file.stem if file.suffix.lower() == ".gz" else file.name
        other = names.setdefault(printable(Path(name).stem), file)
        if other is not file:
            raise ValueError(
                f"{other.name} and {file.name} have the same name without their endings; rename "
                "one of them, or remove it if it is a copy"
            )
    sets = _sets_of_files(list(names))
    if sets:
        return Owners(None, (), one_after_another(zip(sets, counts)))
    groups = np.repeat(np.arange(len(files), dtype=np.int32), counts)
    alike = [name for name in names if any(map(set_of, _WORD_ENDS.split(name)))]
    warning = (
        f"every file is a client, also {listed(alike)}; for official sets, name the files train, "
        "val and test"
    )
    return Owners(groups, tuple(names), {}, (warning,) if alike else ())


_WORD_ENDS = re.compile("[ _.-]+")


def _sets_of_files(names: Sequence[str]) -> list[str]:
    """Returns the set of each file; [] if the files are clients, see `owners_of`.

    Raises:
      ValueError: only some are named like sets, or two mean the same set.
    """
    alike = [name for name in names if set_of(name)]
    if alike and len(alike) < len(names):
        clients = [name for name in names if not set_of(name)]
        raise ValueError(
            f"{listed(alike)} are named like sets, but {listed(clients)} are not; a folder has a "
            "file for each client, or one for each of the sets train, val and test"
        )
    if alike:
        sets = sets_of(names)
        return [sets[name] for name in names]
    words = [_WORD_ENDS.split(name) for name in names]
    if len(set(map(len, words))) > 1:
        return []
    different = [column for column in zip(*words) if len(set(column)) > 1]
    if len(different) != 1:
        return []
    found = list(map(set_of, different[0]))
    is_split = all(found) and "train" in found and len(set(found)) == len(found)
    return found if is_split else []
