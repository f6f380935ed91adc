"""Messages: the bytes that a simulation counts, and no array of another form is accepted."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_ht.core.wire import FIRST_ROWS, SHORTEST, Masked, Metadata, wire_elements
from fedjax_ht.deploy.messages import (
    BLOCK,
    HEADER_BYTES,
    Envelope,
    array_bytes,
    from_bytes,
    max_bytes,
    message_bytes,
    pack,
    to_bytes,
    unpack,
)

MESSAGE = {
    "rows": Masked(np.arange(12, dtype=np.float32).reshape(3, 4), np.array([True, False, True])),
    "entries": Masked(
        np.ones((2, 3), np.float32), np.array([[True, False, False], [False, False, True]])
    ),
    "counts": Metadata(np.array([3, 0, 5], np.int32)),
    "half": jnp.arange(3, dtype=jnp.bfloat16),
    "one": np.float32(2.5),
    "steps": Masked(np.ones((3, 2), np.float32), np.arange(3) < 2, FIRST_ROWS),
    "weights": Masked(np.arange(20, dtype=np.float32), np.arange(20) % 4 == 3, SHORTEST),
}
FORM = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.asarray(x).dtype), MESSAGE)


def test_a_message_comes_back_and_costs_what_a_simulation_counts():
    arrays = from_bytes(to_bytes(Envelope({}, pack(MESSAGE)))).arrays
    back = unpack(FORM, arrays, "the uplink")
    # what is not sent is zero
    assert back["rows"].values.tolist() == [[0, 1, 2, 3], [0, 0, 0, 0], [8, 9, 10, 11]]
    assert back["entries"].values.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert back["steps"].values.tolist() == [[1, 1], [1, 1], [0, 0]]
    assert "005.steps.places" not in arrays and back["steps"].pattern is FIRST_ROWS
    for name in MESSAGE:
        for read, sent in zip(jax.tree.leaves(back[name]), jax.tree.leaves(MESSAGE[name])):
            assert read.dtype == sent.dtype and read.shape == np.shape(sent)
    cost = wire_elements(MESSAGE)
    size = sum(array.nbytes for array in arrays.values())
    assert size == 16 * 2 + 8 * 2 + 8 + 12 + 10 + 8 * 2 + (4 * 5 + 3)
    assert size == int(cost.payload_bytes + cost.metadata_bytes)


def test_rows_are_named_by_bits_only_where_these_are_shorter():
    mask = np.arange(33) == 32  # an index has four bytes, bits have five
    message = {"w": Masked(np.ones(33, np.float32), mask, SHORTEST)}
    arrays = pack(message)
    assert arrays["000.w.places"].tolist() == [32] and "000.w.bits" not in arrays
    assert unpack(message, arrays, "the uplink")["w"].mask.tolist() == mask.tolist()
    assert wire_elements(message).metadata_bytes == 4


BEYOND = {"006.weights.bits": np.array([0, 0, 1], np.uint8), "006.weights.rows": np.float32([1])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"003.one": np.zeros(2, np.float32)}, "has 003.one of float32 (2,); it must be float32"),
        ({"004.rows.places": np.array([0, 3], np.int32)}, "must name rows in 004.rows from 0 to 2"),
        ({"004.rows.places": np.array([2, 0], np.int32)}, "must name rows in 004.rows from 0 to 2"),
        ({"004.rows.places": np.int32(2)}, "has 004.rows.places of int32 (); it must be int32"),
        ({"004.rows.rows": np.zeros((1, 4), np.float32)}, "has 004.rows.rows of float32 (1, 4)"),
        ({"004.rows.rows": np.zeros((2, 4), np.float64)}, "must be float32 (2, 4)"),
        ({"006.more": np.zeros(1)}, "has '006.more', which is not part of it"),
        ({"003.one": None}, "lacks '003.one'"),
        ({"005.steps.rows": np.zeros((4, 2), np.float32)}, "has 005.steps.rows of float32 (4, 2)"),
        ({"005.steps.rows": np.float32(1)}, "has 005.steps.rows of float32 ()"),
        ({"006.weights.bits": np.zeros(2, np.uint8)}, "has 006.weights.bits of uint8 (2,); it"),
        ({"006.weights.bits": np.array([1, 1, 1], np.uint8)}, "has 006.weights.rows of float32"),
        (BEYOND, "must name rows in 006.weights from 0 to 19, ascending"),
        ({"006.weights.bits": None}, "lacks '006.weights.places'"),
    ],
    ids=range(14),
)
def test_a_message_of_another_form_is_one_line(change, message):
    arrays = {name: x for name, x in (pack(MESSAGE) | change).items() if x is not None}
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")) as error:
        unpack(FORM, arrays, "the uplink")
    assert str(error.value).startswith("the uplink ") and "\n" not in str(error.value)


def written(header=b"{}", *labels) -> bytes:
    """Writes a message by hand: its header's text, then (label, bytes) of each array."""
    blocks = []
    for text, content in ((header, b""), *labels):
        block = len(text).to_bytes(4, "big") + text
        for part in (block, content):
            blocks.append(part.ljust(-(-len(part) // BLOCK) * BLOCK, b"\0"))
    return b"".join(blocks)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_refused_in_one_line(data):
    for message in (data, written(data)):
        with pytest.raises(ValueError, match=r"not a message|not a header") as error:
            from_bytes(message)
        assert str(error.value).isprintable() and len(str(error.value)) < 1200


def test_an_array_is_believed_only_as_far_as_its_bytes_go():
    read = from_bytes(written(b"{}", (b'["a", "int8", [2]]', b"xy"))).arrays["a"]
    assert read.tolist() == [120, 121]
    for label, content in (
        ('["a", "float32", [1152921504606846976]]', b"1234"),
        ('["a", "float32", [2147483647, 2147483647]]', b"1234"),
        ('["a", "float32", [17]]', b"x" * 64),
        ('["a", "object", [1]]', b"x" * 64),
        ('["a", "float32", [-1]]', b""),
        ('["a", "bool", [2]]', b"\x01\xc8"),  # XLA sums it to -55
        ('["a", "float32", [1.0]]', b"x" * 64),
        ('["a", "float32", [1, 1, 1, 1, 1, 1, 1, 1, 1]]', b"x" * 64),
        ('["a", ["float32"], [1]]', b"x" * 64),
        ('[["a"], "float32", [1]]', b"x" * 64),
        ('{"a": 1}', b""),
        ("[" * 900 + "]" * 900, b""),
        (json.dumps(["a" * 2000, "float32", [1]]), b"x" * 64),
    ):
        with pytest.raises(ValueError, match=r"not a message|not a header"):
            from_bytes(written(b"{}", (label.encode(), content)))
    twice = (b'["a", "int8", [1]]', b"x")
    with pytest.raises(ValueError, match="'a' occurs twice"):
        from_bytes(written(b"{}", twice, twice))


def test_a_message_is_no_longer_than_it_may_be():
    arrays = {"a": np.zeros((3, 5), np.float32), "b": np.zeros(0, bool)}
    envelope = Envelope({"kind": "train"}, arrays)
    size = array_bytes("a", np.float32, (3, 5)) + array_bytes("b", bool, (0,))
    data = to_bytes(envelope)
    assert len(data) - BLOCK == size <= message_bytes(size) - HEADER_BYTES
    back = from_bytes(data, size)
    assert back.header == envelope.header and back.arrays["a"].shape == (3, 5)
    assert back.arrays["b"].shape == (0,) and back.arrays["b"].dtype == bool
    with pytest.raises(ValueError, match=f"it has {size} bytes of arrays; at most {size - 1}"):
        from_bytes(data, size - 1)
    for cut in range(len(data)):
        if cut != BLOCK and cut != BLOCK + array_bytes("a", np.float32, (3, 5)):
            with pytest.raises(ValueError, match="not a message"):
                from_bytes(data[:cut])
    with pytest.raises(ValueError, match="a header of"):
        to_bytes(Envelope({"a": "x" * HEADER_BYTES}, {}))


NUMBERS = ["float32", "float64", "int32", "int64", "uint8", "complex64"]
DTYPES = st.sampled_from([*NUMBERS, "bool", "U3"])
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
ARRAYS = st.builds(lambda shape, dtype: np.zeros(shape, dtype), SHAPES, DTYPES)
INTEGERS = st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 4)
PLACES = st.lists(INTEGERS, max_size=4).map(lambda x: np.array(x, np.int32))
PARTS = st.sampled_from([*pack(MESSAGE), "000", "x" * 50])


def unpacked(changes, left_out):
    """Checks that arrays are refused in one line, or of their form in every leaf."""
    arrays = {name: x for name, x in (pack(MESSAGE) | changes).items() if name not in left_out}
    try:
        back = unpack(FORM, arrays, "the uplink")
    except ValueError as error:
        assert str(error).startswith("the uplink ") and "\n" not in str(error)
    else:
        for leaf, form in zip(jax.tree.leaves(back), jax.tree.leaves(FORM), strict=True):
            assert leaf.shape == form.shape and leaf.dtype == form.dtype


def altered(where, value, cut):
    """Checks that a message with a changed byte is refused in one line, or keeps its size."""
    data = bytearray(to_bytes(Envelope({"a": 1}, {"x": np.arange(6, dtype=np.float32)})))
    data[where % len(data)] = value
    try:
        arrays = from_bytes(bytes(data[: len(data) - cut])).arrays
        assert sum(array.nbytes for array in arrays.values()) <= len(data)
    except ValueError as error:
        assert str(error).startswith(("not a message", "not a header")) and len(str(error)) < 1200


CHANGES = st.dictionaries(PARTS, ARRAYS | PLACES, max_size=3)
FUZZ = {
    "parts": (unpacked, CHANGES, st.sets(PARTS, max_size=1)),
    "bytes": (altered, st.integers(0, 1000), st.integers(0, 255), st.integers(0, 30)),
}


@pytest.mark.parametrize("examples", [100, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FUZZ)
def test_messages_of_any_kind(name, examples):
    test, *strategies = FUZZ[name]
    settings(max_examples=examples, deadline=None)(given(*strategies)(test))()


def test_the_most_bytes_of_a_form_are_enough_for_all_of_its_messages():
    full = MESSAGE | {"rows": Masked(MESSAGE["rows"].values, np.ones(3, bool))}
    full["entries"] = Masked(MESSAGE["entries"].values, np.ones((2, 3), bool))
    full["steps"] = MESSAGE["steps"]._replace(mask=np.ones(3, bool))
    full["weights"] = MESSAGE["weights"]._replace(mask=np.ones(20, bool))
    arrays = pack(full)
    assert len(to_bytes(Envelope({}, arrays))) == BLOCK + max_bytes(FORM)
    assert from_bytes(to_bytes(Envelope({}, pack(MESSAGE))), max_bytes(FORM)).header == {}
