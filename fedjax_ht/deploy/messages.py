"""Messages between server and clients: their form, and the bytes that carry them.

Both sides derive a message's form from the method and the architecture, so only numbers travel, and
nothing that could be executed. A message is a byte string, in blocks of `BLOCK` bytes:

    its header      the length of a JSON text, the text, zeros up to the next block
    each array      the same for ["name", "dtype", [shape]]; then the array's own bytes, and zeros

The other side's bytes are never trusted: `from_bytes` and `unpack` accept only arrays of the
expected form, and no more bytes than that form has. A header is parsed by `parse_header`, and
checked by `invalid_hello` and `invalid_entry` (a client's) or `client.read_request` (a server's).
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import ml_dtypes
import numpy as np

from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import SHORTEST, Masked, Pattern, bitmap_bytes, is_masked, takes_bits
from fedjax_ht.data.meaning import MEANING
from fedjax_ht.lab.runs.folder import MAX_LEVELS, deeper

BLOCK = 64
"""Bytes: an array that begins at a multiple of them can be read in place."""
LENGTH_BYTES = 4
"""Bytes of a text's length, which precedes the text."""
LABEL_BYTES = 1024
"""Most bytes of the text before an array."""
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NAMES = ("bool", "float16", "float32", "float64", *_INTEGERS)
_DTYPES = {name: np.dtype(name) for name in _NAMES} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


class Envelope(NamedTuple):
    """A message between server and client.

    Attributes:
      header: JSON values by name.
      arrays: NumPy arrays by name, see `pack`; {} for a message without a payload.
    """

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]


def to_bytes(envelope: Envelope) -> bytes:
    """Serialises a message.

    Raises:
      ValueError: the header is too long. One line.
    """
    text = json.dumps(envelope.header)
    if len(text) > HEADER_BYTES:
        raise ValueError(f"a header of {len(text)} bytes; at most {HEADER_BYTES} are allowed")
    blocks = [_text_block(text)]
    for name, array in envelope.arrays.items():
        blocks.append(_text_block(_label(name, array.dtype, array.shape)))
        blocks.append(_filled(array.tobytes()))
    return b"".join(blocks)


def from_bytes(data: bytes, max_bytes: int | None = None) -> Envelope:
    """Parses the message that `to_bytes` wrote, without copying its numbers.

    Args:
      data: the bytes.
      max_bytes: most bytes of all arrays together, as serialised, see `array_bytes`; None for any
        number.

    Raises:
      ValueError: the bytes are not a message, or a longer one. One line.
    """
    text, position = _read_text(data, 0, HEADER_BYTES)
    size = len(data) - position
    if max_bytes is not None and size > max_bytes:
        raise ValueError(f"it has {size} bytes of arrays; at most {max_bytes} are allowed")
    header, arrays = parse_header(text), {}
    while position < len(data):
        label, position = _read_text(data, position, LABEL_BYTES)
        name, dtype, shape = _parse_label(label)
        count = math.prod(shape)
        stop = _block_end(position + count * dtype.itemsize)
        if name in arrays or stop > len(data):
            raise ValueError(f"not a message: {printable(name)!r} occurs twice or is truncated")
        array = np.zeros(0, dtype)
        if count:
            array = np.frombuffer(data, dtype, count, position)
        # sums of other bytes may be negative
        if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
            raise ValueError(f"not a message: {printable(name)!r} is not of 0 and 1")
        arrays[name] = array.reshape(shape)
        position = stop
    return Envelope(header, arrays)


def message_bytes(array_bytes: int) -> int:
    """Computes the most bytes of a message from those of its arrays."""
    return _block_end(LENGTH_BYTES + HEADER_BYTES) + array_bytes


def array_bytes(name: str, dtype: Any, shape: Sequence[int]) -> int:
    """Computes the bytes that an array has in a message, with its label."""
    text = _label(name, np.dtype(dtype), shape)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return _block_end(LENGTH_BYTES + len(text)) + _block_end(size)


def _label(name: str, dtype: np.dtype, shape: Sequence[int]) -> str:
    return json.dumps([name, dtype.name, list(shape)])


def _text_block(text: str) -> bytes:
    return _filled(len(text).to_bytes(LENGTH_BYTES, "big") + text.encode("ascii"))


def _filled(data: bytes) -> bytes:
    return data.ljust(_block_end(len(data)), b"\0")


def _block_end(position: int) -> int:
    """Rounds a position up to a multiple of `BLOCK`."""
    return -(-position // BLOCK) * BLOCK


def _read_text(data: bytes, position: int, max_length: int) -> tuple[bytes, int]:
    """Reads a text; returns it and the position after its block."""
    start = position + LENGTH_BYTES
    length = int.from_bytes(data[position:start], "big")
    stop = _block_end(start + length)
    if length > max_length or stop > len(data):
        raise ValueError(
            f"not a message: a string of {length} bytes, but {max(0, len(data) - start)} follow; "
            f"at most {max_length} are allowed"
        )
    return data[start : start + length], stop


def _parse_label(text: bytes) -> tuple[str, np.dtype, list[int]]:
    """Parses the name, dtype and shape of an array."""
    label = parse_json(text)
    if isinstance(label, list) and len(label) == 3:
        name, dtype, shape = label
        is_named = isinstance(name, str) and isinstance(dtype, str) and dtype in _DTYPES
        if is_named and isinstance(shape, list) and len(shape) <= 8 and all(map(is_count, shape)):
            return name, _DTYPES[dtype], shape
    raise ValueError(f"not a message: {printable(repr(label))} does not name an array")


def pack(message: PyTree) -> dict[str, np.ndarray]:
    """Returns a message's arrays by name; a `Masked` has sent rows, and their indices or bits."""
    packed = {}
    for name, leaf in _named_leaves(message):
        if is_masked(leaf):
            mask = np.asarray(leaf.mask)
            packed[f"{name}.rows"] = np.asarray(leaf.values)[mask]
            if leaf.pattern == SHORTEST and takes_bits(mask.size, np.count_nonzero(mask)):
                packed[f"{name}.bits"] = np.packbits(mask)
            elif leaf.pattern in (None, SHORTEST):
                packed[f"{name}.places"] = np.flatnonzero(mask).astype(np.int32)
        else:
            packed[name] = np.asarray(leaf)
    return packed


def unpack(form: PyTree, arrays: dict[str, np.ndarray], what: str) -> PyTree:
    """Rebuilds the message that `pack` took apart; rows that were not sent are zero.

    Args:
      form: the message's form, a pytree of `jax.ShapeDtypeStruct`.
      arrays: the arrays by name.
      what: name of the message in errors, such as "the uplink".

    Raises:
      ValueError: the arrays do not have that form. One line.
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
    num_rows, row_shape = math.prod(form.mask.shape), form.values.shape[form.mask.ndim :]
    if form.pattern == SHORTEST and f"{name}.bits" in remaining:
        bits = remaining.pop(f"{name}.bits")
        _check_form(what, f"{name}.bits", bits, (bitmap_bytes(num_rows),), np.dtype(np.uint8))
        # bits past the last row become indices that are too large, which are refused below
        places = np.flatnonzero(np.unpackbits(bits)).astype(np.int32)
    elif form.pattern in (None, SHORTEST):
        places = _take(remaining, f"{name}.places", what)
    else:  # a number of rows that does not fit the pattern is refused below
        assert isinstance(form.pattern, Pattern)
        mask = form.pattern.mask(form.mask.shape, len(np.atleast_1d(rows)))
        places = np.flatnonzero(mask).astype(np.int32)
    _check_form(what, f"{name}.places", places, (places.size,), np.dtype(np.int32))
    _check_form(what, f"{name}.rows", rows, (places.size, *row_shape), form.values.dtype)
    # all three: int32 differences wrap around, so that ascending alone bounds nothing
    if places.size and not (
        places.min() >= 0 and places.max() < num_rows and (np.diff(places) > 0).all()
    ):
        raise ValueError(f"{what} must name rows in {name} from 0 to {num_rows - 1}, ascending")
    # dense again, as methods read it: rows that were not sent are zero, and their mask False
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
    """Computes the serialised bytes of a message's arrays if all rows are sent.

    Args:
      form: the message's form, a pytree of `jax.ShapeDtypeStruct`, see `unpack`.
    """
    size = 0
    for name, leaf in _named_leaves(form):
        if not is_masked(leaf):
            size += array_bytes(name, leaf.dtype, leaf.shape)
            continue
        num_rows = math.prod(leaf.mask.shape)
        row_shape = leaf.values.shape[leaf.mask.ndim :]
        size += array_bytes(f"{name}.rows", leaf.values.dtype, (num_rows, *row_shape))
        if leaf.pattern is None:
            size += array_bytes(f"{name}.places", np.int32, (num_rows,))
        if leaf.pattern == SHORTEST:  # indices are sent only if they have no more bytes than bits
            size += array_bytes(f"{name}.places", np.uint8, (bitmap_bytes(num_rows),))
    return size


def _named_leaves(message: PyTree) -> Iterator[tuple[str, Any]]:
    """Yields a message's leaves with names, such as "003.params.base.kernel"."""
    leaves = jax.tree_util.tree_leaves_with_path(message, is_leaf=is_masked)
    for i, (path, leaf) in enumerate(leaves):
        parts = [f"{i:03d}"]
        for key in path:
            parts.append(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", "")))))
        yield ".".join(parts), leaf


HEADER_BYTES = 1 << 16  # most bytes of a header's JSON text
INTEGER_DIGITS = 19  # most digits of an integer in a header: 64 bits
LINE_LENGTH = 500  # most characters of the other side's text in a line
MAX_AMOUNT = 1e30  # FLOPs, seconds and epsilon
SPLITS = ("train", "val", "test")
_SCORED = {"train": ("test",), "evaluate": SPLITS}
# by `Privacy.unit`; seconds depend on numbers of samples, which "upload" hides
_AMOUNTS: dict[str | None, tuple[str, ...]] = {
    "sample": ("seconds", "epsilon"),
    "upload": ("epsilon",),
}
_SAMPLE_INTEGERS = ("uint8", "uint16", "uint32", "int8", "int16", "int32")
DTYPES = ("float32", "float16", "bfloat16", "bool", *_SAMPLE_INTEGERS)
"""Dtypes of a sample's numbers."""


def parse_header(text: Any) -> dict[str, Any]:
    """Parses a header from its JSON.

    Raises:
      ValueError: it is not a JSON object, or is longer or deeper, or has larger integers, than any
        header. One line.
    """
    header = parse_json(text)
    if not isinstance(header, dict):
        raise ValueError(f"not a header: it is {type(header).__name__}; it must be an object")
    if "error" in header:
        header["error"] = printable(str(header["error"]))
    return header


def parse_json(text: Any) -> Any:
    """Parses JSON from the other side; errors as for `parse_header`."""
    if isinstance(text, str | bytes) and len(text) > HEADER_BYTES:
        raise ValueError(
            f"not a header: it has {len(text)} bytes; at most {HEADER_BYTES} are allowed"
        )
    try:
        value = json.loads(text, parse_int=_parse_integer)
    except (ValueError, RecursionError, TypeError) as error:
        raise ValueError(f"not a header: {printable(str(error))}") from None
    if deeper(value, MAX_LEVELS):  # functions that walk through it are recursive
        raise ValueError(f"not a header: its values are nested more than {MAX_LEVELS} levels deep")
    return value


def _parse_integer(digits: str) -> int:
    # Python takes time quadratic in the digits, and an int beyond float64 cannot be computed with
    if len(digits) > INTEGER_DIGITS + 1:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def printable(text: str) -> str:
    """Fits the other side's text into one line: escapes unprintable characters, and truncates."""
    text = " ".join(text[: 4 * LINE_LENGTH].split())
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= LINE_LENGTH else f"{text[:LINE_LENGTH]}..."


class Expected(NamedTuple):
    """The entries that a client's reply in a round may have, as the server knows beforehand.

    Attributes:
      unit: `Privacy.unit`, which decides what clients omit; None without privacy.
      rules: names of the method's decision rules, by which clients report accuracy.
      metrics: names of its training metrics.
      counts: split -> most samples that it may have scored.
    """

    unit: str | None
    rules: Sequence[str]
    metrics: Sequence[str]
    counts: Mapping[str, int]


def invalid_hello(header: dict[str, Any]) -> str:
    """Returns the first missing or invalid entry of a reply to "hello"; "" if there is none."""
    checks = {"client": is_count, "counts": _is_counts, "flops": _is_amount, "task": _is_task}
    checks["meaning"] = _is_meaning
    for name, is_valid in checks.items():
        if not is_valid(header.get(name)):
            return name
    return ""


def invalid_entry(header: dict[str, Any], kind: str, expected: Expected) -> str:
    """Returns the first missing or invalid entry of a reply in a round; "" if there is none.

    Args:
      header: header of a reply without "error".
      kind: kind of the request: "train" or "evaluate".
      expected: entries that the server expects from the client.
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
    # scores would reveal what an upload's noise hides, and are not sent then
    splits = () if expected.unit == "upload" else _SCORED[kind]
    return "" if _is_scores(header.get("scores"), splits, expected) else "scores"


def is_count(x: Any) -> TypeGuard[int]:
    """Returns whether a value is an integer of at least 0 that an int32 holds."""
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**31


def is_run_name(x: Any) -> TypeGuard[str]:
    """Returns whether a value may name a run, and its folder: up to 64 letters and digits."""
    return isinstance(x, str) and x.isascii() and x.isalnum() and len(x) <= 64


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _is_amount(x: Any) -> bool:
    return _is_number(x) and 0 <= x <= MAX_AMOUNT


def admitted_metrics(
    metrics: dict[str, Any], names: Sequence[str]
) -> tuple[dict[str, float], list[str]]:
    """Selects the method's metrics from those of a client; they become columns of files.

    Args:
      metrics: metrics of a reply to "train", by name.
      names: names of the method's metrics.

    Returns:
      {name: value}, NaN where the client reports none; and other names, which are rejected.
    """
    admitted = {name: float(metrics.get(name, math.nan)) for name in names}
    return admitted, [name for name in metrics if name not in admitted]


def _are_metrics(x: Any, names: Sequence[str]) -> bool:
    """Returns whether a client's metrics of these names are numbers of float32.

    NaN and infinities are among them: a client whose training diverges reports them.
    """
    if not isinstance(x, dict):
        return False
    largest = float(np.finfo(np.float32).max)
    for value in (x[name] for name in names if name in x):
        if not _is_number(value) or largest < abs(value) < math.inf:
            return False
    return True


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
