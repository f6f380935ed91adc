"""Names by which folders and files say which set they are: train, val or test."""

import re
from collections.abc import Collection, Iterable

from fedjax_ht.check.names import listed

_NAME = re.compile(
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
    match = _NAME.fullmatch(name)
    return match.lastgroup or "" if match else ""


def sets_of(names: Iterable[str]) -> dict[str, str]:
    """Returns name -> set of the names that are called like one.

    Raises:
      ValueError: two names are called like the same set.
    """
    sets: dict[str, str] = {}
    for name in sorted(names):
        of_name = set_of(name)
        if of_name in sets.values():
            other = next(key for key, value in sets.items() if value == of_name)
            raise ValueError(
                f"{other} and {name} are both called like a set to {_PURPOSE[of_name]}; put them "
                "together, or give one of them another name"
            )
        if of_name:
            sets[name] = of_name
    return sets


def refuse_set_names(names: Collection[str], what: str, layout: str) -> None:
    """Refuses classes, or domains, that are called like sets, unless it is one of several.

    Args:
      names: names of the classes or domains.
      what: the kind of the names, "classes" or "domains", for the error.
      layout: a layout of folders that is read, or another remedy, for the error.

    Raises:
      ValueError: more than one name is that of a set, or all are.
    """
    alike = sorted(filter(set_of, names))
    if len(alike) > 1 or (alike and len(alike) == len(names)):
        raise ValueError(
            f"its {what} would be {listed(sorted(names))}, of which {listed(alike)} are called "
            f"like sets; sort the folders, {layout}"
        )


_PURPOSE = {"train": "train on", "val": "validate on", "test": "test on"}
