"""The meaning of a data set's numbers: names of classes and columns, texts of token ids.

Sets can be joined if these agree (`meaning_sums`). Class names that probably mean the same class,
or a missing label, give a warning (`name_doubts`, `coding_doubts`).
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.data.reading import Reading

MEANING = ("classes", "columns", "tokens")
"""The named parts of a set; two sides compare checksums of their names."""

MISSING = {
    *("", "?", "-", "--", ".", "na", "n/a", "n.a.", "nan", "nat", "none", "null", "nil", "<na>"),
    *("#n/a", "#na", "<null>", "(null)", "<none>", "\\n", "missing", "unlabeled", "unlabelled"),
}
"""Cells, in lower case, that mark a missing value in the files of many programs."""

_UNSEEN = re.compile("[\u034f\u115f\u1160\u180b-\u180f\u2800\ufe00-\ufe0f]")  # invisible, not Cf
_LOOKS = str.maketrans(
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425"
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf"
    "\u2010\u2011\u2012\u2013\u2014\u2212\u2018\u2019\u02bc",
    "ABEKMHOPCTXaeopcyxijsABEZHIKMNOPTYXo------'''",
)
"""Cyrillic and Greek letters, dashes and apostrophes -> ASCII lookalikes."""

_CODES = {9, 99, 255, 999, 9999, 65535}  # mark missing labels if above the classes' numbers
_CODINGS = 3  # with more files or sets, each has some classes of its own by chance


def spelling(name: str) -> str:
    """Returns a name as it looks: with composed accents, and without invisible characters.

    White space is collapsed, and integers lose leading zeros and zero decimals.
    """
    text = _UNSEEN.sub("", unicodedata.normalize("NFKC", name))
    seen = (c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))
    plain = " ".join("".join(seen).split())
    is_whole = re.fullmatch(r"[-+]?[0-9]{1,18}(\.0*)?", plain)
    return str(int(plain.partition(".")[0])) if is_whole else plain


def refuse_twice(name: str, class_names: Sequence[str]) -> None:
    """Checks that class names are unique.

    Raises:
      ValueError: a name occurs twice. One line.
    """
    if twice := [each for each, count in Counter(class_names).items() if count > 1]:
        raise ValueError(
            f"{name}: class_names has {listed(twice)} more than once; give each class its "
            "own name, or merge them"
        )


def name_doubts(labels: np.ndarray, class_names: Sequence[str]) -> list[str]:
    """Returns warnings for names that look alike, and for each that marks a missing label.

    Args:
      labels: the samples' classes, int [N].
      class_names: names of all classes.
    """
    alike, lines = defaultdict(dict), []
    for class_name in class_names:
        plain = spelling(class_name)
        for form in (plain, plain.translate(_LOOKS)):
            # single letters in upper and lower case are different classes
            alike[form.casefold() if len(form) > 1 else form][class_name] = None
    if same := {ascii(x): None for names in alike.values() if len(names) > 1 for x in names}:
        lines.append(
            f"classes {listed(list(same))} only differ in case, spaces or the form of letters or "
            "numbers; merge them if they are the same"
        )
    counts = np.bincount(labels, minlength=len(class_names))
    present = [class_names[c] for c in np.flatnonzero(counts).tolist()]
    for marker in (*_markers(present), *_outlier(present)):
        count = counts[list(class_names).index(marker)]
        lines.append(
            f"{count} of {len(labels)} samples have the class {marker!r}, which often marks a "
            "missing label; drop them if they have no label"
        )
    return lines


def group_doubts(groups: np.ndarray, names: Sequence[str]) -> list[str]:
    """Returns a warning for each group whose name marks a missing value.

    Args:
      groups: the samples' groups, int [N].
      names: the name of each group; () for numbers.
    """
    lines = []
    for marker in _markers(names):
        count = np.count_nonzero(groups == list(names).index(marker))
        if not count:  # in a subset
            continue
        lines.append(
            f"{count} of {len(groups)} samples have the group {marker!r}, which often marks a "
            "missing value; drop them if they have no group"
        )
    return lines


def _markers(names: Sequence[str]) -> list[str]:
    """Returns names that mark a missing label, but no signs if others, such as "!", are classes."""
    missing = {name for name in names if spelling(name).translate(_LOOKS).lower() in MISSING}
    signs = {name for name in names if spelling(name) and not re.search(r"\w", name)}
    return [name for name in names if name in (missing - signs if signs - missing else missing)]


def _outlier(names: Sequence[str]) -> list[str]:
    """Returns a class such as -1 or 99 if all other classes count from 0 or 1."""
    if len(names) < 3 or not all(re.fullmatch(r"-?[0-9]{1,9}", name) for name in names):
        return []
    ordered = sorted(names, key=int)
    for odd, *rest in (ordered, ordered[::-1]):
        first, last = sorted((int(rest[0]), int(rest[-1])))
        counts_on = first in (0, 1) and last - first == len(rest) - 1
        if counts_on and (int(odd) < 0 or (int(odd) in _CODES and int(odd) > last + 1)):
            return [odd]
    return []


def coding_doubts(
    owners: np.ndarray, labels: np.ndarray, class_names: Sequence[str], names: Sequence[str]
) -> list[str]:
    """Returns a warning if files or sets seem to number or name their classes differently.

    They do if some have numbers and others names, or if there are only a few distinct lists of
    classes, none of which contains another. Lists of names must then be disjoint.

    Args:
      owners: index of the file or set of each sample, from 0.
      labels: the samples' classes, int [N].
      class_names: names of all classes.
      names: names of the files or sets.
    """
    pairs = np.unique(owners.astype(np.int64) * len(class_names) + labels)
    lists: dict[int, list[int]] = defaultdict(list)
    held: dict[frozenset[int], str] = {}
    for owner, label in zip(*(part.tolist() for part in np.divmod(pairs, len(class_names)))):
        lists[owner].append(label)
    for owner, classes in lists.items():
        held.setdefault(frozenset(classes), names[owner])
    codings: list[tuple[str, frozenset[int]]] = []
    kinds: dict[frozenset[bool], tuple[str, frozenset[int]]] = {}
    for classes, owner in held.items():
        kind = frozenset(class_names[c].lstrip("-").isdecimal() for c in classes)
        kinds.setdefault(kind, (owner, classes))
    if kinds.keys() == {frozenset([True]), frozenset([False])}:
        codings = list(kinds.values())
    else:  # the lists that no other contains
        for classes in sorted(held, key=len, reverse=True):
            if not any(classes <= other for _, other in codings):
                codings.append((held[classes], classes))
            if len(codings) > _CODINGS:
                return []
        if len(codings) < 2 or len(codings[-1][1]) < 2:
            return []
        all_listed = [c for _, classes in codings for c in classes]
        if set(kinds) != {frozenset([True])} and len(set(all_listed)) < len(all_listed):
            return []
    parts = []
    for owner, classes in codings:
        parts.append(f"{owner} has {listed([class_names[c] for c in sorted(classes)])}")
    return [
        f"classes are matched by name, but differ: {'; '.join(parts)}; if these are two codings of "
        "the same classes, convert one to the other"
    ]


def meaning_sums(class_names: Sequence[str], reading: Reading | None) -> dict[str, str | None]:
    """Returns SHA-256 checksums of the names of classes and columns and of token texts, in order.

    They are None for columns or tokens without names.
    """
    record = reading or Reading()
    sums: dict[str, str | None] = {}
    for what, names in zip(MEANING, (class_names, record.features, record.token_texts)):
        sums[what] = hashlib.sha256(json.dumps(list(names)).encode()).hexdigest() if names else None
    return sums
