"""Messages about unknown names: the name that was probably meant, and all known ones."""

import difflib
import re
import reprlib
from collections.abc import Collection, Iterable, Sequence

SEPARATORS = re.compile(r"[^a-z0-9]+")
WORD = 3  # minimum letters of a word that may match a whole name


def unknown(kind: str, name: object, known: Collection[str], listed: str | None = None) -> str:
    """Returns "unknown method 'fedprto'; did you mean 'fedproto'? There are fedavg, fedproto".

    Args:
      kind: kind of thing, such as "method".
      name: the unknown name.
      known: the known names.
      listed: a sentence in place of the list of known names.
    """
    if listed is None:
        listed = f"there are {', '.join(known) or 'none'}"
    return f"unknown {kind} {name!r}" + meant(name, known, listed)


def unknown_option(owner: str, name: object, known: Collection[str], more: str = "") -> str:
    """Returns "fedproto has no option 'wait'; did you mean 'weight'? It has variant, weight".

    Args:
      owner: name of the thing that has options.
      name: the unknown option.
      known: the names of the options that exist.
      more: text to append.
    """
    listed = f"it has {', '.join(known) or 'none'}"
    return f"{owner} has no option {name!r}{meant(name, known, listed)}{more}"


def meant(name: object, known: Collection[str], sentence: str) -> str:
    """Returns "; did you mean 'fedproto'? Sentence", or "; sentence" if no known name is close."""
    near = nearest(str(name), known)
    if near is None or near == name:
        return f"; {sentence}"
    return f"; did you mean {near!r}? {sentence[0].upper()}{sentence[1:]}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that was probably meant; None if none is close.

    A name with a section, such as "training.lr", is searched among those of its section first.

    Example:
      >>> from fedjax_ht.check.names import nearest
      >>> nearest("training.lr", ["training.learning_rate", "training.epochs", "rounds"])
      'training.learning_rate'
    """
    known, name = list(known), name.lower()
    section, dot, last = name.rpartition(".")
    siblings = [each for each in known if dot and each.lower().rpartition(".")[0] == section]
    lasts = [each.rpartition(".")[2] for each in known]
    in_section = _nearest(last, [each.rpartition(".")[2] for each in siblings], siblings)
    return in_section or _nearest(name, known, known) or _nearest(last, lasts, known)


def _nearest(name: str, candidates: list[str], known: list[str]) -> str | None:
    """Returns the entry of `known` whose candidate, at the same index, is closest to the name.

    In this order: the name is its initials, it alone has all of the name's words, it is spelled
    similarly, or it alone shares a word.
    """
    candidates = [candidate.lower() for candidate in candidates]
    meant_parts = {word for word in SEPARATORS.split(name) if len(word) >= WORD}
    having_all, having_any = [], []
    for candidate, full in zip(candidates, known):
        parts = SEPARATORS.split(candidate)
        if len(parts) > 1 and name == "".join(part[:1] for part in parts):
            return full
        if meant_parts and meant_parts <= set(parts):
            having_all.append(full)
        if meant_parts & set(parts):
            having_any.append(full)
    if len(having_all) == 1:
        return having_all[0]
    near = difflib.get_close_matches(name, candidates, 1)
    if near:
        return known[candidates.index(near[0])]
    return having_any[0] if len(having_any) == 1 else None


def with_article(noun: str) -> str:
    """Returns the noun with its article: "a Method" or "an int"."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def kind_of_value(value: object) -> str:
    """Returns a value's type with its package: "an int", "a numpy.ndarray"."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if package in ("builtins", "fedjax_ht"):
        return with_article(kind.__name__)
    return with_article(f"{package}.{kind.__name__}")


def listed_clients(ids: Iterable[int | str], most: int | None = 5) -> str:
    """Returns "client 2" or "clients 0, 1, 2, 3, 4 and 7 more"; names all if `most` is None."""
    names = list(map(str, ids))
    return f"client{'s' if len(names) > 1 else ''} {listed(names, most or len(names))}"


def short(value: object, length: int = 60) -> str:
    """Formats a value for a message, in about `length` characters at most."""
    if type(value) is int and abs(value) < 1 << 64:
        text = f"{value:,}"
    elif isinstance(value, str | bytes):
        text = repr(value[: length + 1])  # the value may be very long
    else:
        text = reprlib.repr(value)  # nested lists may be endless
    return text if len(text) <= length else f"{text[:length]}..."


# except cursor up, which progress bars write
_CONTROL = re.compile("(?!\x1b\\[A)[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Escapes control characters of a terminal, except line ends and tabs."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Lists names for a message: the first ones, and the number of others.

    Examples:
      >>> listed(["ant", "bee", "cow", "dog"], most=2)
      'ant, bee and 2 more'
    """
    shown = [name if len(name) <= _NAME else f"{name[:_NAME]}..." for name in names[:most]]
    if len(names) <= most:
        return ", ".join(shown)
    return f"{', '.join(shown)} and {len(names) - most} more"


_NAME = 60  # maximum characters: names from files may be very long
