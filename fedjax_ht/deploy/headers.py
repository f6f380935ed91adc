"""Headers of messages, all that a side says besides arrays: parsed, typed, bounded and finite.

A header is other people's JSON. It is parsed by `parsed` and looked at by `unreadable` (a client's)
or `asked` (a server's), and nothing of it is used before.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

SPLITS = ("train", "val", "test")
LONGEST = 1 << 16
"""Bytes of a header's JSON, at most."""
DIGITS = 19
"""Digits of a whole number, at most: 64 bits."""
LINE = 500
"""Characters of a line that the other side wrote, at most."""
LARGEST = 1e30
"""Largest FLOPs, seconds and epsilon that are believed."""
FLOAT32 = 3.4028235e38
MEASURES = 1000
"""Metrics of one answer, at most."""
DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "uint8",
    "uint16",
    "uint32",
    "int8",
    "int16",
    "int32",
    "bool",
)


class Asked(NamedTuple):
    """A server's request to a client.

    Attributes:
      run: the run's name, letters and digits.
      round: from 0.
      last_round: the client's last round that counts, -1 before the first.
      oldest: the number of rounds after which the oldest state holds that the server may go back
        to.
    """

    run: str
    round: int
    last_round: int
    oldest: int


def parsed(text: Any) -> dict[str, Any]:
    """A header from its JSON.

    Raises:
      ValueError: it is none, or longer, deeper, or with larger numbers than any header. One line.
    """
    if not isinstance(text, str | bytes) or len(text) > LONGEST:
        size = f"{len(text)} long" if isinstance(text, str | bytes) else type(text).__name__
        raise ValueError(f"no header: it is {size}, and must be JSON of {LONGEST} bytes at most")
    try:
        header = json.loads(text, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no header: {printable(str(error))}") from None
    if not isinstance(header, dict):
        raise ValueError(f"no header: it is {type(header).__name__}, and must be an object")
    if "error" in header:
        header["error"] = printable(str(header["error"]))
    return header


def _whole(digits: str) -> int:
    if len(digits) > DIGITS + 1:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def printable(text: str) -> str:
    """Makes text of the other side part of one line: what does not print is escaped, and the end is
    cut off."""
    text = " ".join(text[: 4 * LINE].split())
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= LINE else f"{text[:LINE]}..."


def unreadable(head: dict[str, Any], kind: str, unit: str | None, rules: Sequence[str]) -> str:
    """Names the first entry of a client's header that is missing or not what it must be; "" where
    all are right.

    Args:
      head: its answer's, without "error".
      kind: of the message, see `site`.
      unit: `Privacy.unit`, what noise hides and is not said; None without any.
      rules: of the method.
    """
    hidden = unit == "upload"
    checks: dict[str, Callable[[Any], bool]] = {}
    if kind == "hello":
        checks = {"client": is_count, "counts": _counts, "flops": _amount, "task": _task}
    elif kind == "train":
        checks = {"finite": _flag, "metrics": _metrics, "scores": _scores(("test",), rules)}
        if unit in ("upload", "sample"):
            checks["epsilon"] = _amount
        if not hidden:
            checks["seconds"] = _amount
        if "warning" in head:
            checks["warning"] = lambda x: isinstance(x, str)
    elif kind == "evaluate":
        checks = {"scores": _scores(SPLITS, rules)}
    if hidden and "scores" in checks:
        checks["scores"] = lambda x: x == {}
    return next((name for name, fine in checks.items() if not fine(head.get(name))), "")


def asked(head: dict[str, Any]) -> Asked:
    """Reads what a server asks for out of its message's header.

    Raises:
      ValueError: it asks for what no server asks for. One line.
    """
    ask = Asked(*(head.get(name) for name in Asked._fields))
    if not (
        isinstance(ask.run, str) and ask.run.isascii() and ask.run.isalnum() and len(ask.run) <= 64
    ):
        raise ValueError(f"a run called {printable(repr(ask.run))}")
    number, last_round, oldest = ask.round, ask.last_round, ask.oldest
    if not is_count(number):
        raise ValueError(f"a round {printable(repr(number))}, which must be a whole number from 0")
    if not (last_round == -1 or is_count(last_round)) or last_round >= number:
        raise ValueError(f"round {number} after a last round {printable(repr(last_round))}")
    # A state that the server may come back to is older than the one that it asks for.
    if not is_count(oldest) or oldest > last_round + 1:
        raise ValueError(
            f"states older than {printable(repr(oldest))} rounds to be deleted, and round "
            f"{last_round} is the last"
        )
    return ask


def is_count(x: Any) -> bool:
    """Returns whether a value is a whole number of at least 0 that an int32 holds."""
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**31


def _flag(x: Any) -> bool:
    return isinstance(x, bool)


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _amount(x: Any) -> bool:
    return _number(x) and 0 <= x <= LARGEST


def _metrics(x: Any) -> bool:
    """Returns whether a value is metrics that float32 holds; NaN, of a client without samples, is
    one."""
    if not isinstance(x, dict) or len(x) > MEASURES:
        return False
    return all(_number(value) and (value != value or abs(value) <= FLOAT32) for value in x.values())


def _counts(x: Any) -> bool:
    return isinstance(x, dict) and set(x) == set(SPLITS) and all(map(is_count, x.values()))


def _task(x: Any) -> bool:
    """Returns whether a value has the form that `plan.task_as_json` writes."""
    if not isinstance(x, dict) or set(x) != {"shape", "dtype", "num_classes", "vocabulary"}:
        return False
    shape = x["shape"]
    if (
        not isinstance(shape, list)
        or len(shape) > 8
        or not all(is_count(n) and n > 0 for n in shape)
    ):
        return False
    fine = math.prod(shape) < 2**31 and x["dtype"] in DTYPES
    sizes = [x["num_classes"]] if x["vocabulary"] is None else [x["num_classes"], x["vocabulary"]]
    return fine and all(is_count(n) and 0 < n < 2**24 for n in sizes)


def _scores(splits: Sequence[str], rules: Sequence[str]) -> Callable[[Any], bool]:
    def is_score(x: Any) -> bool:
        if not (
            isinstance(x, dict) and is_count(x.get("count")) and isinstance(x.get("correct"), dict)
        ):
            return False
        correct = x["correct"]
        return set(correct) == set(rules) and all(
            is_count(c) and c <= x["count"] for c in correct.values()
        )

    return lambda x: (
        isinstance(x, dict) and set(x) == set(splits) and all(map(is_score, x.values()))
    )
