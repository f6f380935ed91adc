"""Messages between server and clients: their form, their bytes, and what of them is trusted.

Both sides know a message's form, since both know the method and the architecture, so only numbers
travel and nothing that could run. The other side's bytes are never trusted: `from_bytes` and
`unpack` accept arrays of the expected form only; a header is parsed by `parse_header`, and checked
by `invalid_entry` (a client's) or `answers.read_request` (a server's) before it is used.
"""

import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import ml_dtypes
import numpy as np
from numpy.lib import format as npy

from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import INDEX_BYTES, Masked, is_masked, values_of

NPY_HEADER_BYTES = 4096  # of the header of an .npy array, at most
HEADER_BYTES = 1 << 16  # of a header's JSON text, at most
INTEGER_DIGITS = 19  # of an integer in a header, at most: 64 bits
LINE_LENGTH = 500  # characters of the other side's text in a line, at most
MAX_AMOUNT = 1e30  # FLOPs, seconds and epsilon
MAX_METRICS = 1000
SPLITS = ("train", "val", "test")
# by `Privacy.unit`; seconds depend on numbers of samples, which "upload" hides
_AMOUNTS: dict[str | None, tuple[str, ...]] = {
    "sample": ("seconds", "epsilon"),
    "upload": ("epsilon",),
}
_INTEGERS = ("uint8", "uint16", "uint32", "int8", "int16", "int32")
DTYPES = ("float32", "float16", "bfloat16", "bool", *_INTEGERS)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Envelope(NamedTuple):
    """A message between server and client.

    Attributes:
      header: JSON values by name.
      arrays: NumPy arrays by name, see `pack`; {} for a message without a payload.
    """

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]


def to_bytes(array: np.ndarray) -> bytes:
    """Serializes an array in NumPy's .npy format, bfloat16 as its bits."""
    bits = array.view(np.uint16) if array.dtype == _BFLOAT16 else array
    file = io.BytesIO()
    npy.write_array(file, np.asarray(bits, order="C"), allow_pickle=False)
    return file.getvalue()


def from_bytes(data: bytes, dtype: str) -> np.ndarray:
    """Reads the array that `to_bytes` wrote, without copying its numbers.

    Args:
      data: the bytes; as many must be there as their header claims.
      dtype: name of the array's type.

    Raises:
      ValueError: the bytes are no such array.
    """
    file = io.BytesIO(data)
    try:
        npy.read_magic(file)
        shape, fortran, stored = npy.read_array_header_1_0(file, max_header_size=NPY_HEADER_BYTES)
    except Exception as error:
        raise ValueError(f"not an array: {error}") from None
    # Python integers do not overflow, as int64 would for a shape such as (2**60,)
    expected = int(np.prod(shape, dtype=object)) * stored.itemsize
    size = len(data) - file.tell()
    if fortran or stored.kind not in "biuf" or size != expected:
        raise ValueError(f"not an array: its header says {stored} {shape}, and {size} bytes follow")
    is_bfloat16 = dtype == "bfloat16" and stored == np.uint16
    if not is_bfloat16 and dtype != stored.name:
        raise ValueError(f"not an array: {stored} labelled {dtype}")
    array = np.frombuffer(data, stored, offset=file.tell()).reshape(shape)
    return array.view(_BFLOAT16) if is_bfloat16 else array


def pack(message: PyTree) -> dict[str, np.ndarray]:
    """Returns a message's arrays by name: of a `Masked` the rows with True, and their indices."""
    packed = {}
    for name, leaf in _named_leaves(message):
        if is_masked(leaf):
            mask = np.asarray(leaf.mask)
            packed[f"{name}.rows"] = np.asarray(leaf.values)[mask]
            if leaf.pattern is None:
                packed[f"{name}.places"] = np.flatnonzero(mask).astype(np.int32)
        else:
            packed[name] = np.asarray(leaf)
    return packed


def unpack(form: PyTree, arrays: dict[str, np.ndarray], what: str) -> PyTree:
    """Rebuilds the message that `pack` took apart; rows that were not sent are zero.

    Args:
      form: the message's form, a pytree of `jax.ShapeDtypeStruct`.
      arrays: the arrays by name.
      what: the message's name in errors, such as "the uplink".

    Raises:
      ValueError: the arrays are not of that form. One line.
    """
    remaining = dict(arrays)
    leaves = []
    for name, leaf in _named_leaves(form):
        if is_masked(leaf):
            leaves.append(_unpack_rows(leaf, remaining, name, what))
        else:
            array = _take(remaining, name, what)
            _check_form(what, name, array, leaf.shape, leaf.dtype)
            leaves.append(array)
    if remaining:
        raise ValueError(f"{what} has {next(iter(remaining))!r}, which is not part of it")
    return jax.tree.unflatten(jax.tree.structure(form, is_leaf=is_masked), leaves)


def _unpack_rows(form: Masked, remaining: dict[str, np.ndarray], name: str, what: str) -> Masked:
    rows = _take(remaining, f"{name}.rows", what)
    if form.pattern is None:
        places = _take(remaining, f"{name}.places", what)
    else:  # a number of rows that is none of the pattern's is refused below
        mask = form.pattern.mask(form.mask.shape, len(np.atleast_1d(rows)))
        places = np.flatnonzero(mask).astype(np.int32)
    num_rows, row_shape = math.prod(form.mask.shape), form.values.shape[form.mask.ndim :]
    _check_form(what, f"{name}.places", places, (places.size,), np.dtype(np.int32))
    _check_form(what, f"{name}.rows", rows, (places.size, *row_shape), form.values.dtype)
    # all three: int32 differences wrap around, so that ascending alone bounds nothing
    if places.size and not (
        places.min() >= 0 and places.max() < num_rows and (np.diff(places) > 0).all()
    ):
        raise ValueError(f"{what} must name rows in {name} from 0 to {num_rows - 1}, ascending")
    # dense again, as methods read it: a row that was not sent is zero, and its mask False
    values, mask = np.zeros(form.values.shape, form.values.dtype), np.zeros(form.mask.shape, bool)
    values.reshape(num_rows, *row_shape)[places] = rows
    mask.reshape(num_rows)[places] = True
    return form._replace(values=values, mask=mask)


def _take(remaining: dict[str, np.ndarray], name: str, what: str) -> np.ndarray:
    if name not in remaining:
        raise ValueError(f"{what} lacks {name!r}")
    return remaining.pop(name)


def _check_form(what: str, name: str, array: np.ndarray, shape: tuple[int, ...], dtype: Any):
    if array.shape != tuple(shape) or array.dtype != dtype:
        raise ValueError(
            f"{what} has {name} of {array.dtype} {array.shape}; it must be {dtype} {tuple(shape)}"
        )


def max_bytes(form: PyTree) -> int:
    """Computes the bytes of a message's arrays, with their headers, where it sends all its rows."""
    size = 0
    for _, leaf in _named_leaves(form):
        if is_masked(leaf) and leaf.pattern is None:
            size += NPY_HEADER_BYTES + math.prod(leaf.mask.shape) * INDEX_BYTES
        array = values_of(leaf)
        size += NPY_HEADER_BYTES + math.prod(array.shape) * np.dtype(array.dtype).itemsize
    return size


def _named_leaves(message: PyTree) -> Iterator[tuple[str, Any]]:
    """Yields a message's leaves with names, such as "003.params.base.kernel"."""
    leaves = jax.tree_util.tree_leaves_with_path(message, is_leaf=is_masked)
    for i, (path, leaf) in enumerate(leaves):
        parts = [f"{i:03d}"]
        for key in path:
            parts.append(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", "")))))
        yield ".".join(parts), leaf


def parse_header(text: Any) -> dict[str, Any]:
    """Parses a header from its JSON.

    Raises:
      ValueError: it is not JSON of an object, or longer, deeper or with larger integers than any
        header has. One line.
    """
    if isinstance(text, str | bytes) and len(text) > HEADER_BYTES:
        raise ValueError(f"no header: it has {len(text)} bytes, and may have {HEADER_BYTES}")
    try:
        header = json.loads(text, parse_int=_parse_integer)
    except (ValueError, RecursionError, TypeError) as error:
        raise ValueError(f"no header: {printable(str(error))}") from None
    if not isinstance(header, dict):
        raise ValueError(f"no header: it is {type(header).__name__}, and must be an object")
    if "error" in header:
        header["error"] = printable(str(header["error"]))
    return header


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


def invalid_entry(header: dict[str, Any], kind: str, unit: str | None, rules: Sequence[str]) -> str:
    """Names the first entry of a client's header that is missing or invalid; "" without any.

    Args:
      header: of a reply without "error".
      kind: of the request: "hello", "train" or "evaluate".
      unit: `Privacy.unit`, by which clients leave entries out; None without privacy.
      rules: names of the method's decision rules, by which clients report accuracy.
    """
    checks = {}
    if kind == "hello":
        checks = {"client": is_count, "counts": _is_counts, "flops": _is_amount, "task": _is_task}
    elif kind == "train":
        if not isinstance(header.get("finite"), bool):
            return "finite"
        if not isinstance(header.get("warning", ""), str):
            return "warning"
        amounts = _AMOUNTS.get(unit, ("seconds",))
        checks = {"metrics": _is_metrics} | dict.fromkeys(amounts, _is_amount)
    for name, is_valid in checks.items():
        if not is_valid(header.get(name)):
            return name
    splits = {"train": ("test",), "evaluate": SPLITS}
    # scores are made of what an upload's noise hides, and are not sent then
    reported = () if unit == "upload" else splits.get(kind, ())
    if kind in splits and not _is_scores(header.get("scores"), reported, rules):
        return "scores"
    return ""


def is_count(x: Any) -> TypeGuard[int]:
    """Returns whether a value is an integer of at least 0 that an int32 holds."""
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**31


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _is_amount(x: Any) -> bool:
    return _is_number(x) and 0 <= x <= MAX_AMOUNT


def _is_metrics(x: Any) -> bool:
    """Returns whether a value is metrics that float32 holds; NaN, of no samples, is a metric."""
    if not isinstance(x, dict) or len(x) > MAX_METRICS:
        return False
    largest = float(np.finfo(np.float32).max)
    return all(_is_number(value) and not abs(value) > largest for value in x.values())


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


def _is_scores(x: Any, splits: Sequence[str], rules: Sequence[str]) -> bool:
    """Returns whether a value is {split: {"count": samples, "correct": {rule: samples}}}."""
    if not isinstance(x, dict) or set(x) != set(splits):
        return False
    for score in x.values():
        if not isinstance(score, dict) or not is_count(score.get("count")):
            return False
        correct = score.get("correct")
        if not isinstance(correct, dict) or set(correct) != set(rules):
            return False
        if not all(is_count(n) and n <= score["count"] for n in correct.values()):
            return False
    return True
