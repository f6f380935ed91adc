"""Finds the samples, labels, sets and groups of an .npz file by the names of its arrays.

    samples   images; inputs; x, data, features
    labels    labels, label, targets, target, y
    groups    group, groups, person
    sets      any of these as train_NAME or NAME_train, and val and test likewise; or a mask,
              official_test and official_val, bool [N]

Capitals do not matter. A file in which two arrays may be the same thing is refused.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_ht.core.names import listed
from fedjax_ht.data.conversion import as_groups
from fedjax_ht.data.reading import LeftOut
from fedjax_ht.lab.readers.split_names import set_of

_ROLES = {
    "samples": ("images", "image", "inputs", "input", "x", "data", "features"),
    "labels": ("labels", "label", "targets", "target", "y"),
    "groups": ("group", "groups", "person"),
}
_NAME = re.compile(
    ""
    ""
    ""
    ""
    ""
    ""
    ""
    "(?:(?P<before>[a-z]+)_)?(?P<name>images?|inputs?|x|data|features|labels?|targets?|y|groups?|person)(?:_(?P<behind>[a-z]+))?"
)
_SETS = ("train", "val", "test")
_ABOUT = (
    *("class_names", "classes", "vocabulary", "official_test", "official_val"),
    *("standard_mean", "standard_std"),
)


class NamedArrays(NamedTuple):
    """The arrays of a file that a set is made of.

    Attributes:
      key: name of the samples' array, in small letters: "images", "inputs" or any other.
      inputs: the samples [N, ...].
      labels: the samples' labels [N], as stored.
      official: name of a set -> indices of its samples.
      groups: the samples' groups, int32 [N], or None.
      group_names: names of groups that are text.
      names: names of the classes; None for numbers.
      vocabulary: number of token ids, or None.
      standard: mean and deviation by which samples are standardised, or None.
      left_out: arrays that are none of these.
      warnings: lines on arrays that are left out.
    """

    key: str
    inputs: np.ndarray
    labels: np.ndarray
    official: dict[str, np.ndarray]
    groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()
    names: list[str] | None = None
    vocabulary: int | None = None
    standard: tuple[np.ndarray, np.ndarray] | None = None
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()


def select(arrays: Mapping[str, np.ndarray]) -> NamedArrays:
    """Finds the arrays of a set.

    Raises:
      ValueError: samples or labels are missing, or two arrays may be the same. One line.
    """
    roles = _roles(list(arrays))
    samples, labels = _of_role(roles, "samples", arrays), _of_role(roles, "labels", arrays)
    if list(samples) != list(labels):
        raise ValueError(
            f"its arrays are {listed(list(arrays), 20)}: samples of {' and '.join(samples)}, and "
            f"labels of {' and '.join(labels)}; each set needs both"
        )
    # each is read once, which decompresses it
    parts = [arrays[name] for name in samples.values()]
    part_labels = [_column(arrays[name]) for name in labels.values()]
    for name, part, of_part in zip(samples.values(), parts, part_labels):
        if part.shape[:1] != of_part.shape[:1] or not part.ndim:
            raise ValueError(
                f"{name}: {len(part) if part.ndim else 'no axis of'} samples but labels of shape "
                f"{of_part.shape}"
            )
    content = NamedArrays(
        key=_key(samples),
        inputs=_joined(parts),
        labels=_joined(part_labels),
        official=_official(arrays, list(samples), list(map(len, parts))),
        names=_class_names(arrays),
    )
    if "vocabulary" in arrays:
        content = content._replace(vocabulary=int(arrays["vocabulary"]))
    if "standard_mean" in arrays and "standard_std" in arrays:
        content = content._replace(standard=(arrays["standard_mean"], arrays["standard_std"]))
    content = _with_groups(content, roles, arrays, list(samples))
    return _with_left_out(content, [name for name in arrays if name not in {*roles, *_ABOUT}])


def _with_left_out(content: NamedArrays, names: Sequence[str]) -> NamedArrays:
    """Adds the arrays that are not read, and a line on them."""
    if not names:
        return content
    left_out = tuple(LeftOut(0, f"array {name}", "of no name that is read") for name in names)
    line = f"left out: {listed(list(map(str, left_out)))}"
    return content._replace(left_out=left_out, warnings=(line,))


def _class_names(arrays: Mapping[str, np.ndarray]) -> list[str] | None:
    """The names of the classes; None where they have only numbers."""
    for name in ("class_names", "classes"):
        if name in arrays:
            return _texts(name, arrays[name])
    return None


def _roles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Name of an array -> its role and set, "" for all sets together."""
    roles = {}
    for name in names:
        match = _NAME.fullmatch(name.lower())
        if match is None or name in _ABOUT:
            continue
        parts = [part for part in (match["before"], match["behind"]) if part]
        sets = [set_of(part) for part in parts]
        if len(parts) > 1 or not all(sets):
            continue
        role = next(role for role, known in _ROLES.items() if match["name"] in known)
        roles[name] = (role, sets[0] if sets else "")
    return roles


def _of_role(
    roles: Mapping[str, tuple[str, str]], role: str, arrays: Mapping[str, np.ndarray]
) -> dict[str, str]:
    """Set -> name of the array of a role; the sets in their order, or "" alone.

    Raises:
      ValueError: there is none, or several for one set.
    """
    names: dict[str, list[str]] = {}
    for name, (of_name, of_set) in roles.items():
        if of_name == role:
            names.setdefault(of_set, []).append(name)
    is_whole = list(names) == [""]
    is_split = "train" in names and "" not in names
    if not is_whole and not is_split:
        raise ValueError(
            f"its arrays are {listed(list(arrays), 20) or 'none'}, of which none, or not all, are "
            f"{role}; call them images or inputs, and labels"
        )
    for of_set in names.values():
        if len(of_set) > 1:
            raise ValueError(
                f"its arrays {' and '.join(of_set)} may both be the {role}; leave one of them out"
            )
    order = [name for name in ("", *_SETS) if name in names]
    return {name: names[name][0] for name in order}


def _key(samples: Mapping[str, str]) -> str:
    """The name of the samples' array without the set, "images", "inputs", or as it is."""
    name = next(iter(samples.values()))
    match = _NAME.fullmatch(name.lower())
    plain = match["name"] if match else name
    if plain in ("image", "input"):
        return f"{plain}s"
    return plain if plain in ("images", "inputs") else name


def _column(labels: np.ndarray) -> np.ndarray:
    """Labels [N, 1] as [N], so that sets of both forms can be joined."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _official(
    arrays: Mapping[str, np.ndarray], sets: Sequence[str], counts: Sequence[int]
) -> dict[str, np.ndarray]:
    """Official sets by the arrays' names, or by masks, bool [N]; every other sample trains."""
    if "" not in sets:
        ends = np.cumsum([0, *counts])
        return {of_set: np.arange(*ends[i : i + 2]) for i, of_set in enumerate(sets)}
    (count,) = counts
    if "official_test" not in arrays:
        return {}
    masks = {}
    for of_set in ("test", "val"):
        name = f"official_{of_set}"
        if name in arrays:
            mask = masks[of_set] = arrays[name]
            if mask.dtype != bool or mask.shape != (count,):
                raise ValueError(f"{name} is {mask.dtype} {mask.shape}, not bool ({count},)")
    named = np.sum(list(masks.values()), axis=0)
    if named.max(initial=0) > 1:
        raise ValueError("official_test and official_val name a sample twice")
    masks = {"train": named == 0} | masks
    return dict(zip(masks, map(np.flatnonzero, masks.values())))


def _with_groups(
    content: NamedArrays,
    roles: Mapping[str, tuple[str, str]],
    arrays: Mapping[str, np.ndarray],
    sets: Sequence[str],
) -> NamedArrays:
    """Adds the groups, where the file has them for every set."""
    if not any(role == "groups" for role, _ in roles.values()):
        return content
    names = _of_role(roles, "groups", arrays)
    if list(names) != list(sets):
        raise ValueError(f"groups are there of {' and '.join(names)}; every set needs them")
    owners = _joined([arrays[name] for name in names.values()])
    texts = tuple(np.unique(owners).tolist()) if owners.dtype.kind == "U" else ()
    return content._replace(groups=as_groups("group", owners), group_names=texts)


def _texts(name: str, values: np.ndarray) -> list[str]:
    if values.dtype.kind != "U" or values.ndim != 1:
        raise ValueError(f"{name} is {values.dtype} {values.shape}, not text [classes]")
    return values.tolist()
