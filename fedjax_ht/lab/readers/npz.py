"""Reads any .npz file with samples and labels, found by the names of its arrays.

    samples   images; inputs; x, data, features
    labels    labels, label, targets, target, y
    groups    group, groups, person
    sets      any of these as train_NAME or NAME_train, and val and test likewise; or a mask,
              official_test and official_val, bool [N]

Case does not matter. A file in which two arrays fit one role is rejected.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.core.inputs import Standardised
from fedjax_ht.data.conversion import as_groups, as_labels
from fedjax_ht.data.reading import LeftOut, Reading
from fedjax_ht.lab.readers.image_arrays import image_or_stored
from fedjax_ht.lab.readers.roles import SETS, refuse_no_classes, set_of
from fedjax_ht.lab.readers.source import Raw, ReadOptions, Source, one_after_another
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.lab.safe.bounded import Origin
from fedjax_ht.lab.safe.limits import numbered_classes

_ORIGIN = Origin(
    "an .npz of images and labels, inputs and labels, x and y, each also by train and test",
    "write it with numpy.savez_compressed(path, images=..., labels=...), or inputs=... if they are "
    "not images",
)


_ROLES = {
    "samples": ("images", "image", "inputs", "input", "x", "data", "features"),
    "labels": ("labels", "label", "targets", "target", "y"),
    "groups": ("groups", "group", "person"),
}
_ROLE = {name: role for role, names in _ROLES.items() for name in names}
_NAME = re.compile(rf"(?:(?P<before>[a-z]+)_)?(?P<name>{'|'.join(_ROLE)})(?:_(?P<behind>[a-z]+))?")
_IS_IMAGE = {"image": True, "input": False}  # other names leave it to the values
_SCALE = ("standard_mean", "standard_std")
_NAMES = ("class_names", "classes"), ("column_names",)  # keys of class names and column names
_ABOUT = (*_NAMES[0], *_NAMES[1], "vocabulary", "official_test", "official_val", *_SCALE)


def read_npz(file: Path, options: ReadOptions) -> Raw:
    """Reads samples and labels from an .npz.

    The name tells the kind of samples: "images" must be images, "inputs" stay unchanged, and "x" is
    left to `image_arrays.guess`, by dtype and shape.

    Images are [N, H, W], [N, H, W, C] or [N, C, H, W], C 1 or 3, of bytes or floats in [0, 1] or
    [-1, 1], and are kept as bytes (`image_arrays.to_bytes`). Other samples have two axes or more,
    and models see them `AsStored`. Labels are whole numbers from 0. Class names come from
    "class_names" or "classes", else they are numbers; columns of rows get "column_names".

    Raises:
      ValueError: samples or labels are missing, or two arrays fit one role. One line.
    """
    with opened_npz(file) as arrays:
        found = _found(list(arrays))
        sets = [name for name in ("", *SETS) if name in found["samples"]]
        # read each only once: every access decompresses it
        parts, part_labels, part_groups = (
            [arrays[of_sets[name]] for name in sets if of_sets] for of_sets in found.values()
        )
        if options.task != "multi-label":  # whose [N, 1] is one label
            part_labels = list(map(_column, part_labels))
        for name, part, of_part in zip(sets, parts, part_labels):
            if part.shape[:1] != of_part.shape[:1] or not part.ndim:
                raise ValueError(
                    f"{found['samples'][name]}: {len(part) if part.ndim else 'no axis of'} samples "
                    f"but labels of shape {of_part.shape}"
                )
        if len({part.dtype.kind for part in parts}) > 1:
            forms = [f"{found['samples'][x]} is {part.dtype}" for x, part in zip(sets, parts)]
            raise ValueError(
                f"{' and '.join(forms)}, which may have different scales; give samples of all sets "
                "the same type"
            )
        official = _official(arrays, sets, list(map(len, parts)))
        names, columns = (_texts(arrays, keys) for keys in _NAMES)
        vocabulary = int(arrays["vocabulary"]) if "vocabulary" in arrays else None
        scale = [arrays[name] for name in _SCALE if name in arrays]
        known = {*_ABOUT, *(name for of_sets in found.values() for name in of_sets.values())}
        others = [name for name in arrays if name not in known]
    stored, is_other = _joined(part_labels), options.task != "classification"
    labels = np.zeros(len(stored), np.int64) if is_other else as_labels("it", stored)
    key = found["samples"][sets[0]]
    is_image = next((_IS_IMAGE[stem] for stem in _IS_IMAGE if stem in key.lower()), None)
    samples = image_or_stored(key, _joined(parts), is_image)
    rule = samples.preprocess
    if rule is not None and len(scale) == len(_SCALE):
        rule = Standardised(*scale)
    left_out = tuple(LeftOut(0, f"array {name}", "unrecognised name") for name in others)
    if not names and not is_other:
        names = numbered_classes(int(labels.max(initial=-1)) + 1)
        values, present = np.unique(labels, return_inverse=True)
        refuse_no_classes("labels", present, list(map(str, values)))
    if columns and samples.inputs.shape[1:] != (len(set(columns)),):
        raise ValueError(
            f"column_names has {len(set(columns))} different names, but a sample is "
            f"{list(samples.inputs.shape[1:])}; give each number of a row its own name"
        )
    groups, group_names = None, ()
    if part_groups:
        owners = _joined(part_groups)
        groups = as_groups("group", owners)
        if owners.dtype.kind == "U":
            group_names = tuple(np.unique(owners).tolist())
    return Raw(
        np.ascontiguousarray(samples.inputs),
        labels,
        names,
        preprocess=rule,
        official=official,
        groups=groups,
        vocabulary=vocabulary,
        targets=stored if is_other else None,
        reading=Reading(
            features=columns,
            group_names=group_names,
            left_out=left_out,
            converted=samples.converted,
            warnings=samples.warnings,
        ),
    )


def _texts(arrays: Mapping[str, np.ndarray], keys: Sequence[str]) -> tuple[str, ...]:
    """Returns the strings in the first of these arrays that exists; () if none does."""
    for key in keys:
        if key in arrays:
            values = arrays[key]
            if values.dtype.kind != "U" or values.ndim != 1:
                raise ValueError(f"{key} is {values.dtype} {values.shape}, not text [N]")
            return tuple(values.tolist())
    return ()


def _found(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns role -> set ("" for all samples together) -> name of its array.

    Raises:
      ValueError: samples or labels are missing, perhaps in one set, or two arrays fit one role.
    """
    found: dict[str, dict[str, str]] = {role: {} for role in _ROLES}
    for name in names:
        match = _NAME.fullmatch(name.lower())
        if match is None or name in _ABOUT:
            continue
        parts = list(filter(None, (match["before"], match["behind"])))
        of_set = set_of("".join(parts[:1]))
        if len(parts) > 1 or (parts and not of_set):
            continue
        role = _ROLE[match["name"]]
        if (other := found[role].setdefault(of_set, name)) != name:
            raise ValueError(
                f"its arrays {other} and {name} may both be the {role}; remove one of them"
            )
    samples, labels, groups = found.values()
    for role, of_sets in (("samples", samples), ("labels", labels)):
        if list(of_sets) != [""] and ("train" not in of_sets or "" in of_sets):
            raise ValueError(
                f"its arrays are {listed(names, 20) or 'none'}; none, or not all, are "
                f"{role}; call them images or inputs, and labels"
            )
    if samples.keys() != labels.keys():
        raise ValueError(
            f"its arrays are {listed(names, 20)}: samples for {' and '.join(samples)}, and labels "
            f"for {' and '.join(labels)}; each set needs both"
        )
    if groups and groups.keys() != samples.keys():
        raise ValueError(f"only {' and '.join(groups)} have groups; every set needs them")
    return found


def _column(labels: np.ndarray) -> np.ndarray:
    """Returns labels [N, 1] as [N], so that sets of either shape can be joined."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _official(
    arrays: Mapping[str, np.ndarray], sets: Sequence[str], counts: Sequence[int]
) -> dict[str, np.ndarray]:
    """Returns official sets, from array names or masks, bool [N]; unmasked samples train."""
    if "" not in sets:
        return one_after_another(zip(sets, counts))
    (count,) = counts
    masks = {}
    for of_set in ("test", "val"):
        name = f"official_{of_set}"
        if name in arrays:
            mask = masks[of_set] = arrays[name]
            if mask.dtype != bool or mask.shape != (count,):
                raise ValueError(f"{name} is {mask.dtype} {mask.shape}, not bool ({count},)")
    if not masks:
        return {}
    named = np.sum(list(masks.values()), axis=0)
    if named.max(initial=0) > 1:
        raise ValueError("official_test and official_val name a sample twice")
    masks = {"train": named == 0} | masks
    return dict(zip(masks, map(np.flatnonzero, masks.values())))


NPZ = Source(
    name="npz:PATH",
    about="it is your own file; nothing to download",
    read=read_npz,
    origins=(_ORIGIN,),
)
