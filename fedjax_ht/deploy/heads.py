"""What a client says besides its arrays, as a server may believe it: a head is other people's JSON. Imports no JAX: see
`envelope`."""

from collections.abc import Callable, Sequence
from typing import Any

SPLITS = ("train", "val", "test")


def unreadable(head: dict[str, Any], kind: str, unit: str | None, rules: Sequence[str]) -> str:
    """Which entry of a client's head is missing or none, "" where all are there.

    Args:
      head: its answer's, without "error".
      kind: of the message, see `site`.
      unit: `Privacy.unit`, what noise hides and is not said; None without any.
      rules: of the method.
    """
    hidden = unit == "upload"
    wanted: dict[str, Callable[[Any], bool]] = {}
    if kind == "hello":
        wanted = {"client": is_count, "counts": _counts, "flops": _amount, "task": lambda x: isinstance(x, dict)}
    elif kind == "train":
        wanted = {"finite": lambda x: isinstance(x, bool), "metrics": _numbers, "scores": _scores(("test",), rules)}
        wanted |= {"epsilon": _amount} if unit in ("upload", "sample") else {}
        wanted |= {} if hidden else {"seconds": _amount}
    elif kind == "evaluate":
        wanted = {"scores": _scores(SPLITS, rules)}
    if hidden and "scores" in wanted:
        wanted["scores"] = lambda x: x == {}
    return next((name for name, fine in wanted.items() if not fine(head.get(name))), "")


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _amount(x: Any) -> bool:
    return _number(x) and x >= 0


def is_count(x: Any) -> bool:
    """Whether it is a whole number from 0 on, as an int32 holds."""
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**31


def _numbers(x: Any) -> bool:
    return isinstance(x, dict) and all(map(_number, x.values()))


def _counts(x: Any) -> bool:
    return isinstance(x, dict) and set(x) == set(SPLITS) and all(map(is_count, x.values()))


def _scores(splits: Sequence[str], rules: Sequence[str]) -> Callable[[Any], bool]:
    def one(x: Any) -> bool:
        if not (isinstance(x, dict) and is_count(x.get("count")) and isinstance(x.get("correct"), dict)):
            return False
        correct = x["correct"]
        return set(correct) == set(rules) and all(is_count(c) and c <= x["count"] for c in correct.values())

    return lambda x: isinstance(x, dict) and set(x) == set(splits) and all(map(one, x.values()))
