"""Meanings of the numbers of a set: names of classes and columns, texts of token ids.

Sets are joined where these agree (`meaning_sums`). Names of classes that are probably one, or none,
give a warning (`name_doubts`).
"""

import hashlib
import json
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.data.reading import Reading

MEANING = ("classes", "columns", "tokens")
"""The named parts of a set; two sides compare a checksum of the names of each."""

MISSING = {
    *("", "?", "-", "--", ".", "na", "n/a", "n.a.", "nan", "nat", "none", "null", "nil", "<na>"),
    *("#n/a", "#na", "<null>", "(null)", "<none>", "\\n", "missing", "unlabeled", "unlabelled"),
}
"""Cells, in small letters, that mark a missing value in the files of many programs."""


def spelling(name: str) -> str:
    """Returns a name with accents composed, without white space at its ends or twice."""
    return " ".join(unicodedata.normalize("NFKC", name).split())


def refuse_twice(name: str, class_names: Sequence[str]) -> None:
    """Refuses classes of one name.

    Raises:
      ValueError: a name occurs twice. One line.
    """
    if twice := [each for each, count in Counter(class_names).items() if count > 1]:
        raise ValueError(
            f"{name}: class_names has {listed(twice)} more than once; give each class a name of "
            "its own, or make them one class"
        )


def name_doubts(labels: np.ndarray, class_names: Sequence[str]) -> list[str]:
    """Returns a line for names that differ by capitals or spaces alone, and for the one that marks
    a missing label.

    Args:
      labels: the samples' classes, int [N].
      class_names: names of all classes.
    """
    alike, lines = defaultdict(list), []
    for name in class_names:
        plain = spelling(name)
        # single letters are classes of their own, large and small
        alike[plain.casefold() if len(plain) > 1 else plain].append(name)
    if same := [ascii(name) for names in alike.values() if len(names) > 1 for name in names]:
        lines.append(
            f"classes {listed(same)} differ by capitals, spaces or the form of letters alone; make "
            "them one if they are the same"
        )
    missing = [i for i, name in enumerate(class_names) if spelling(name).lower() in MISSING]
    if len(missing) == 1 and (count := np.count_nonzero(labels == missing[0])):
        lines.append(
            f"{count} of {len(labels)} samples have the class {class_names[missing[0]]!r}, which "
            "often marks a missing label; leave them out if they have no label"
        )
    return lines


def meaning_sums(class_names: Sequence[str], reading: Reading | None) -> dict[str, str | None]:
    """Returns a SHA-256 of the names of classes, of columns, and of token texts, in order; None
    where columns or tokens have none."""
    record = reading or Reading()
    sums: dict[str, str | None] = {}
    for what, names in zip(MEANING, (class_names, record.features, record.token_texts)):
        sums[what] = hashlib.sha256(json.dumps(list(names)).encode()).hexdigest() if names else None
    return sums
