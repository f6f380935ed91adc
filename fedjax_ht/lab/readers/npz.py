"""Any .npz file with samples and labels, which are found by the names of its arrays.

    samples   images; inputs; x, data, features
    labels    labels, label, targets, target, y
    groups    group, groups, person
    sets      any of these as train_NAME or NAME_train, and val and test likewise; or a mask,
              official_test and official_val, bool [N]

Capitals do not matter. A file in which two arrays may be the same thing is refused.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.core.inputs import Standardised
from fedjax_ht.data.conversion import as_groups, as_labels
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.columns import class_lines
from fedjax_ht.lab.readers.file_names import set_of
from fedjax_ht.lab.readers.image_arrays import image_or_stored
from fedjax_ht.lab.readers.images import decode_all, stack
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source, one_after_another
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.lab.safe.bounded import Origin
from fedjax_ht.lab.safe.limits import numbered_classes

_ORIGIN = Origin(
    "an .npz of images and labels, inputs and labels, x and y, each also by train and test, or "
    "jpeg, offset, label and wnid",
    "write it with numpy.savez_compressed(path, images=..., labels=...), or inputs=... for what is "
    "no image",
)


_ROLES = {
    "samples": ("images", "image", "inputs", "input", "x", "data", "features"),
    "labels": ("labels", "label", "targets", "target", "y"),
    "groups": ("group", "groups", "person"),
}
_NAME = re.compile(
    r"(?:(?P<before>[a-z]+)_)?"
    r"(?P<name>images?|inputs?|x|data|features|labels?|targets?|y|groups?|person)"
    r"(?:_(?P<behind>[a-z]+))?"
)
_SETS = ("train", "val", "test")
_SCALE = ("standard_mean", "standard_std")
_NAMES = ("class_names", "classes"), ("column_names",)  # of the classes, and of columns
_ABOUT = (*_NAMES[0], *_NAMES[1], "vocabulary", "official_test", "official_val", *_SCALE)


class NamedArrays(NamedTuple):
    """The arrays of a file by role, of one set or of several that are joined in order.

    Attributes:
      key: name of the samples' array, in small letters: "images", "inputs" or any other.
      inputs: the samples [N, ...].
      labels: the samples' labels [N], as stored.
      official: name of a set -> indices of its samples.
      groups: the samples' groups as stored, [N], or None.
      left_out: names of the arrays that are none of these.
    """

    key: str
    inputs: np.ndarray
    labels: np.ndarray
    official: dict[str, np.ndarray]
    groups: np.ndarray | None
    left_out: tuple[str, ...]


def read_npz(file: Path, options: ReadOptions) -> Raw:
    """Reads samples and labels of an .npz.

    `select` says by which names. What the samples are goes by the name: images are
    images, or an error; inputs are as they are; of x `image_arrays.guess` tells by type and axes.

    Images are [N, H, W], [N, H, W, C] or [N, C, H, W], C 1 or 3, of bytes or floats in [0, 1] or
    [-1, 1], and are kept as bytes (`image_arrays.to_bytes`). What is as it is has two axes or more,
    and `AsStored` for a model. Labels are whole numbers from 0. Classes are named by "class_names"
    or "classes", else by number, and columns of rows by "column_names". Images may also be JPEG
    files, see `read_jpegs`, whose classes have names.
    """
    with opened_npz(file) as arrays:
        if "jpeg" in arrays:
            inputs = read_jpegs(arrays)
            names = tuple(arrays["wnid"].tolist())
            return Raw(inputs, arrays["label"], names, reading=Reading(path=str(file)))
        found = select(arrays)
        names, columns = (_texts(arrays, keys) for keys in _NAMES)
        vocabulary = int(arrays["vocabulary"]) if "vocabulary" in arrays else None
        scale = [arrays[name] for name in _SCALE if name in arrays]
    labels = as_labels("it", found.labels)
    is_image = {"images": True, "inputs": False}.get(found.key)
    samples = image_or_stored(found.key, found.inputs, is_image)
    rule, warnings = samples.preprocess, list(samples.warnings)
    if rule is not None and len(scale) == len(_SCALE):
        rule = Standardised(*scale)
    left_out = tuple(LeftOut(0, f"array {x}", "of no name that is read") for x in found.left_out)
    if left_out:
        warnings.append(f"left out: {listed(list(map(str, left_out)))}")
    if not names:
        names = numbered_classes(int(labels.max(initial=-1)) + 1)
        values, present = np.unique(labels, return_inverse=True)
        warnings += class_lines("labels", present, list(map(str, values)))
    if columns and samples.inputs.shape[1:] != (len(set(columns)),):
        raise ValueError(
            f"column_names has {len(set(columns))} different names, and a sample is "
            f"{list(samples.inputs.shape[1:])}; give each number of a row its own"
        )
    groups, group_names = None, ()
    if found.groups is not None:
        groups = as_groups("group", found.groups)
        if found.groups.dtype.kind == "U":
            group_names = tuple(np.unique(found.groups).tolist())
    return Raw(
        np.ascontiguousarray(samples.inputs),
        labels,
        names,
        preprocess=rule,
        official=found.official,
        groups=groups,
        vocabulary=vocabulary,
        reading=Reading(
            path=str(file),
            features=columns,
            group_names=group_names,
            left_out=left_out,
            converted=samples.converted,
            warnings=tuple(warnings),
        ),
    )


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
    groups = None
    if any(role == "groups" for role, _ in roles.values()):
        names = _of_role(roles, "groups", arrays)
        if list(names) != list(samples):
            raise ValueError(f"groups are there of {' and '.join(names)}; every set needs them")
        groups = _joined([arrays[name] for name in names.values()])
    return NamedArrays(
        key=_key(samples),
        inputs=_joined(parts),
        labels=_joined(part_labels),
        official=_official(arrays, list(samples), list(map(len, parts))),
        groups=groups,
        left_out=tuple(name for name in arrays if name not in {*roles, *_ABOUT}),
    )


def _texts(arrays: Mapping[str, np.ndarray], keys: Sequence[str]) -> tuple[str, ...]:
    """The names in the first of these arrays that is there; () without one."""
    for key in keys:
        if key in arrays:
            values = arrays[key]
            if values.dtype.kind != "U" or values.ndim != 1:
                raise ValueError(f"{key} is {values.dtype} {values.shape}, not text [N]")
            return tuple(values.tolist())
    return ()


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
        return one_after_another(zip(sets, counts))
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


def read_jpegs(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Colour images of one size, uint8 [N, H, W, 3].

    Args:
      arrays: "jpeg" uint8, the files one after another, and "offset" [N + 1], where each starts and
        the last ends; beside them are "label" [N] and "wnid", the classes' names.

    Raises:
      ValueError: an entry is missing, or the sizes differ.
    """
    if missing := {"jpeg", "offset", "label", "wnid"} - set(arrays):
        raise ValueError(
            f"no entry {', '.join(sorted(missing))}; it must hold JPEG files and their labels"
        )
    jpeg, offset = arrays["jpeg"], arrays["offset"]
    is_sound = jpeg.dtype == np.uint8 and offset.dtype.kind in "iu"
    if not is_sound or jpeg.ndim != 1 or offset.ndim != 1:
        raise ValueError(
            f"jpeg is {jpeg.dtype} {jpeg.shape}, offset {offset.dtype} {offset.shape}; they must "
            "be uint8 [bytes] and integers [N + 1]"
        )
    steps = np.concatenate([[0], offset, [len(jpeg)]]).astype(np.int64)
    if len(offset) < 2 or (np.diff(steps) < 0).any():
        raise ValueError(
            f"offset must run from 0 to {len(jpeg)}, the length of jpeg, without going back"
        )

    def encoded():
        for i, (start, end) in enumerate(itertools.pairwise(offset.tolist())):
            yield i, jpeg[start:end].tobytes()

    images = [image.pixels for _, image in decode_all(encoded(), None)]
    if len({image.shape[:2] for image in images}) > 1:
        raise ValueError("the JPEG files are of more than one size")
    images = stack(images)
    return np.repeat(images, 3, -1) if images.shape[-1] == 1 else images


NPZ = Source(
    name="npz:PATH",
    about="it is a file of your own, and nothing is to be downloaded",
    read=read_npz,
    origins=(_ORIGIN,),
)
