"""Messages about an unknown name: the name that was probably meant, and all known ones."""

import difflib
from collections.abc import Collection, Iterable

SHOWN = 5  # clients that a line names


def unknown(kind: str, name: object, known: Collection[str], listed: str | None = None) -> str:
    """Writes "unknown method 'fedprto'; did you mean 'fedproto'? There are fedavg, fedproto".

    Args:
      kind: kind of thing.
      name: the unknown name.
      known: the known names.
      listed: a sentence in place of the list of known names.
    """
    if listed is None:
        listed = f"there are {', '.join(known) or 'none'}"
    return f"unknown {kind} {name!r}" + meant(name, known, listed)


def unknown_option(owner: str, name: object, known: Collection[str], more: str = "") -> str:
    """Writes "fedproto has no option 'wait'; did you mean 'weight'? It has variant, weight".

    Args:
      owner: name of the thing that has options.
      name: the unknown option.
      known: its options.
      more: text that follows.
    """
    listed = f"it has {', '.join(known) or 'none'}"
    return f"{owner} has no option {name!r}{meant(name, known, listed)}{more}"


def meant(name: object, known: Collection[str], sentence: str) -> str:
    """Writes "; did you mean 'fedproto'? Sentence", or "; sentence" where no known name is near."""
    by_lower = {word.lower(): word for word in known}
    near = difflib.get_close_matches(str(name).lower(), by_lower, 1)
    if not near or by_lower[near[0]] == name:
        return f"; {sentence}"
    return f"; did you mean {by_lower[near[0]]!r}? {sentence[0].upper()}{sentence[1:]}"


def with_article(noun: str) -> str:
    """Writes "a Method" or "an int"."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def kind_of_value(value: object) -> str:
    """Names the kind of a value with its package: "an int", "a numpy.ndarray"."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if package in ("builtins", "fedjax_ht"):
        return with_article(kind.__name__)
    return with_article(f"{package}.{kind.__name__}")


def listed_clients(ids: Iterable[int]) -> str:
    """Writes "client 2" or "clients 0, 1, 2, 3, 4 and 7 more"."""
    names = list(map(str, ids))
    listed = ", ".join(names[:SHOWN])
    if len(names) > SHOWN:
        listed += f" and {len(names) - SHOWN} more"
    return f"client{'s' if len(names) > 1 else ''} {listed}"
