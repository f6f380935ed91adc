"""Headers of messages: JSON objects, of which the other side's are never trusted.

A header is parsed by `parse_header`, and checked by `invalid_hello` and `invalid_entry` (a
client's) or `answers.read_request` (a server's) before it is used.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from fedjax_ht.data.meaning import MEANING
from fedjax_ht.lab.runs.workdir import MAX_LEVELS, deeper

HEADER_BYTES = 1 << 16  # of a header's JSON text, at most
INTEGER_DIGITS = 19  # of an integer in a header, at most: 64 bits
LINE_LENGTH = 500  # characters of the other side's text in a line, at most
MAX_AMOUNT = 1e30  # FLOPs, seconds and epsilon
SPLITS = ("train", "val", "test")
_SCORED = {"train": ("test",), "evaluate": SPLITS}
# by `Privacy.unit`; seconds depend on numbers of samples, which "upload" hides
_AMOUNTS: dict[str | None, tuple[str, ...]] = {
    "sample": ("seconds", "epsilon"),
    "upload": ("epsilon",),
}
_INTEGERS = ("uint8", "uint16", "uint32", "int8", "int16", "int32")
DTYPES = ("float32", "float16", "bfloat16", "bool", *_INTEGERS)
"""Types of a sample's numbers."""


def parse_header(text: Any) -> dict[str, Any]:
    """Parses a header from its JSON.

    Raises:
      ValueError: it is not JSON of an object, or longer, deeper or with larger integers than any
        header has. One line.
    """
    header = parse_json(text)
    if not isinstance(header, dict):
        raise ValueError(f"no header: it is {type(header).__name__}, and must be an object")
    if "error" in header:
        header["error"] = printable(str(header["error"]))
    return header


def parse_json(text: Any) -> Any:
    """Parses JSON of the other side; errors as `parse_header`."""
    if isinstance(text, str | bytes) and len(text) > HEADER_BYTES:
        raise ValueError(f"no header: it has {len(text)} bytes, and may have {HEADER_BYTES}")
    try:
        value = json.loads(text, parse_int=_parse_integer)
    except (ValueError, RecursionError, TypeError) as error:
        raise ValueError(f"no header: {printable(str(error))}") from None
    if deeper(value, MAX_LEVELS):  # functions that walk through it are recursive
        raise ValueError(f"no header: it has values in more than {MAX_LEVELS} levels")
    return value


def _parse_integer(digits: str) -> int:
    # Python takes time quadratic in the digits, and an int beyond float64 cannot be computed with
    if len(digits) > INTEGER_DIGITS + 1:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def printable(text: str) -> str:
    """Makes text of the other side part of one line: escapes what does not print, cuts it short."""
    text = " ".join(text[: 4 * LINE_LENGTH].split())
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= LINE_LENGTH else f"{text[:LINE_LENGTH]}..."


class Expected(NamedTuple):
    """The entries that a client's reply in a round may have, which the server knows beforehand.

    Attributes:
      unit: `Privacy.unit`, by which clients leave entries out; None without privacy.
      rules: names of the method's decision rules, by which clients report accuracy.
      metrics: names of the metrics of its training.
      counts: split -> most samples that it may have scored.
    """

    unit: str | None
    rules: Sequence[str]
    metrics: Sequence[str]
    counts: Mapping[str, int]


def invalid_hello(header: dict[str, Any]) -> str:
    """Names the first entry of a reply to "hello" that is missing or invalid; "" without any."""
    checks = {"client": is_count, "counts": _is_counts, "flops": _is_amount, "task": _is_task}
    checks["meaning"] = _is_meaning
    for name, is_valid in checks.items():
        if not is_valid(header.get(name)):
            return name
    return ""


def invalid_entry(header: dict[str, Any], kind: str, expected: Expected) -> str:
    """Names the first entry of a reply in a round that is missing or invalid; "" without any.

    Args:
      header: the header of a reply without "error".
      kind: the kind of the request: "train" or "evaluate".
      expected: the entries that the server expects of the client.
    """
    if kind == "train":
        if not isinstance(header.get("finite"), bool):
            return "finite"
        if not isinstance(header.get("warning", ""), str):
            return "warning"
        if not _are_metrics(header.get("metrics"), expected.metrics):
            return "metrics"
        for name in _AMOUNTS.get(expected.unit, ("seconds",)):
            if not _is_amount(header.get(name)):
                return name
    # scores are made of what an upload's noise hides, and are not sent then
    splits = () if expected.unit == "upload" else _SCORED[kind]
    return "" if _is_scores(header.get("scores"), splits, expected) else "scores"


def is_count(x: Any) -> TypeGuard[int]:
    """Returns whether a value is an integer of at least 0 that an int32 holds."""
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**31


def is_run_name(x: Any) -> TypeGuard[str]:
    """Returns whether a value may name a run, and a folder of it: up to 64 letters and digits."""
    return isinstance(x, str) and x.isascii() and x.isalnum() and len(x) <= 64


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _is_amount(x: Any) -> bool:
    return _is_number(x) and 0 <= x <= MAX_AMOUNT


def admitted_metrics(
    metrics: dict[str, Any], names: Sequence[str]
) -> tuple[dict[str, float], list[str]]:
    """Takes out of a client's metrics those of the method; they become columns of files.

    Args:
      metrics: the metrics of a reply to "train", by name.
      names: names of the method's metrics.

    Returns:
      {name: value}, NaN where the client does not say it; and other names, which are refused.
    """
    admitted = {name: float(metrics.get(name, math.nan)) for name in names}
    return admitted, [name for name in metrics if name not in admitted]


def _are_metrics(x: Any, names: Sequence[str]) -> bool:
    """Returns whether a client's metrics of these names are numbers that float32 holds, or NaN."""
    if not isinstance(x, dict):
        return False
    values = [x[name] for name in names if name in x]
    largest = float(np.finfo(np.float32).max)
    return all(_is_number(value) and not abs(value) > largest for value in values)


def _is_counts(x: Any) -> bool:
    return isinstance(x, dict) and set(x) == set(SPLITS) and all(map(is_count, x.values()))


def _is_task(x: Any) -> bool:
    """Returns whether a value has the form that `plan.task_as_json` writes."""
    if not isinstance(x, dict) or set(x) != {"shape", "dtype", "num_classes", "vocabulary"}:
        return False
    shape, sizes = x["shape"], [x["num_classes"]]
    if x["vocabulary"] is not None:
        sizes.append(x["vocabulary"])
    if not isinstance(shape, list) or len(shape) > 8 or x["dtype"] not in DTYPES:
        return False
    if not all(is_count(n) and n > 0 for n in shape + sizes):
        return False
    return math.prod(shape) < 2**31 and max(sizes) < 2**24


def _is_meaning(x: Any) -> bool:
    """Returns whether a value has the form of `meaning_sums`."""
    if not isinstance(x, dict) or set(x) != set(MEANING) or x["classes"] is None:
        return False
    sums = [value for value in x.values() if value is not None]
    return all(isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) for value in sums)


def _is_scores(x: Any, splits: Sequence[str], expected: Expected) -> bool:
    """Returns whether a value is {split: {"count": samples, "correct": {rule: samples}}}."""
    if not isinstance(x, dict) or set(x) != set(splits):
        return False
    for split, score in x.items():
        if not isinstance(score, dict) or not is_count(score.get("count")):
            return False
        correct = score.get("correct")
        if not isinstance(correct, dict) or set(correct) != set(expected.rules):
            return False
        if score["count"] > expected.counts[split]:
            return False
        if not all(is_count(n) and n <= score["count"] for n in correct.values()):
            return False
    return True
