"""What is said of a name that nobody knows: the one that was probably meant, and all that there
are."""

import difflib
from collections.abc import Collection


def unknown(kind: str, name: object, known: Collection[str], there: str | None = None) -> str:
    """One line: "unknown method 'fedprto'; did you mean 'fedproto'? There are fedavg, fedproto".

    Args:
      kind: of thing.
      name: what was asked for.
      known: the names that there are.
      there: a sentence in place of the list of them.
    """
    return f"unknown {kind} {name!r}" + meant(
        name, known, there or f"there are {', '.join(known) or 'none'}"
    )


def unknown_option(owner: str, name: object, known: Collection[str], more: str = "") -> str:
    """One line: "fedproto has no option 'wait'; did you mean 'weight'? It has variant, weight";
    `more` follows."""
    return (
        f"{owner} has no option {name!r}"
        + meant(name, known, f"it has {', '.join(known) or 'none'}")
        + more
    )


def meant(name: object, known: Collection[str], sentence: str) -> str:
    """What follows the name: "; did you mean 'fedproto'? Sentence", or "; sentence" where no name
    is near."""
    by_lower = {word.lower(): word for word in known}
    near = difflib.get_close_matches(str(name).lower(), by_lower, 1)
    if not near or by_lower[near[0]] == name:
        return f"; {sentence}"
    return f"; did you mean {by_lower[near[0]]!r}? {sentence[0].upper()}{sentence[1:]}"
