"""Codes for uplinks of any method: few-bit integers, or the largest entries, with error feedback.

A code encodes the difference between an upload x and a reference r that both sides know: the upload
that an all-zero client without samples makes from the same downlink. A client keeps its coding
error m, and adds it to its next upload (Seide et al., Interspeech 2014; Stich et al., NeurIPS
2018):

    client:  x = upload + m;  sends c = encode(x - r);  m = x - r - decode(c)
    server:  reads r + decode(c)
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import Part, checked
from fedjax_ht.core import wire
from fedjax_ht.core.bucket import Bucket, traceable
from fedjax_ht.core.codes import Code
from fedjax_ht.core.context import Context
from fedjax_ht.core.local_training import no_training
from fedjax_ht.core.message_forms import client_form, no_data, uplink_form
from fedjax_ht.core.method import Method, around
from fedjax_ht.core.round import without_samples
from fedjax_ht.core.trees import PyTree, zeros_of


class Rounded(NamedTuple):
    """An array, or the rows of a `Masked`, as integers.

    Attributes:
      integers: int8 of the array's shape, or uint8 [*m, bytes] with several integers per byte; [*m]
        is the shape of a `Masked`'s mask. A `Masked` stays one.
      unit: float32 scalar, the value of the integer 1.
    """

    integers: Any
    unit: jax.Array


def encode_rounded(bits: int, uplink: PyTree, reference: PyTree) -> PyTree:
    """Encodes the changes of an upload's arrays as integers.

    Args:
      bits: bits per integer: 2, 4 or 8.
      uplink: the upload.
      reference: an upload of the same form, which both sides know.

    Returns:
      The upload with a `Rounded` for each array of its payload.
    """
    leaves = []
    for leaf, known in zip(wire.leaves_of(uplink), wire.leaves_of(reference), strict=True):
        leaves.append(_rounded(bits, leaf, known) if wire.is_payload(leaf) else leaf)
    return wire.from_leaves(uplink, leaves)


def _rounded(bits: int, leaf: Any, known: Any) -> Rounded:
    most = 2 ** (bits - 1) - 1
    change = jnp.where(wire.sent_rows(leaf), wire.values_of(leaf) - wire.values_of(known), 0)
    unit = jnp.max(jnp.abs(change), initial=0).astype(jnp.float32) / most
    steps = jnp.round(change / jnp.where(unit > 0, unit, 1))
    integers = _packed(bits, jnp.int8(jnp.clip(steps, -most, most)), leaf)
    return Rounded(leaf._replace(values=integers) if wire.is_masked(leaf) else integers, unit)


def decode_rounded(bits: int, message: PyTree, reference: PyTree) -> PyTree:
    """Inverts `encode_rounded`, up to rounding; arguments as there."""
    coded = jax.tree.leaves(message, is_leaf=lambda x: isinstance(x, Rounded) or wire.is_leaf(x))
    leaves = []
    for leaf, known in zip(coded, wire.leaves_of(reference), strict=True):
        if not isinstance(leaf, Rounded):
            leaves.append(leaf)
            continue
        start = wire.values_of(known)
        values = start + _unpacked(bits, leaf.integers, start.shape) * leaf.unit
        values = values.astype(start.dtype)
        leaves.append(leaf.integers._replace(values=values) if wire.is_masked(known) else values)
    return wire.from_leaves(reference, leaves)


def _packed(bits: int, integers: jax.Array, leaf: Any) -> jax.Array:
    """Packs integers into bytes, row by row: int8 of any shape -> itself, or uint8 [*m, bytes]."""
    if bits == 8:
        return integers
    rows = leaf.mask.shape if wire.is_masked(leaf) else ()
    each, offset = 8 // bits, 2 ** (bits - 1) - 1
    flat = jnp.uint8(integers + offset).reshape(*rows, -1)
    padding = [(0, 0)] * len(rows) + [(0, -flat.shape[-1] % each)]
    flat = jnp.pad(flat, padding).reshape(*rows, -1, each)
    return jnp.sum(flat << _shifts(bits), axis=-1, dtype=jnp.uint8)


def _unpacked(bits: int, integers: Any, shape: tuple[int, ...]) -> jax.Array:
    """Inverts `_packed`: returns the integers as float32 of this shape."""
    packed = wire.values_of(integers)
    if bits == 8:
        return packed.astype(jnp.float32)
    rows = integers.mask.shape if wire.is_masked(integers) else ()
    flat = (packed[..., None] >> _shifts(bits)) & (2**bits - 1)
    flat = flat.reshape(*rows, -1)[..., : math.prod(shape[len(rows) :])]
    return flat.reshape(shape).astype(jnp.float32) - (2 ** (bits - 1) - 1)


def _shifts(bits: int) -> jax.Array:
    return jnp.arange(0, 8, bits, dtype=jnp.uint8)


class Largest(NamedTuple):
    """The entries that changed most, among all whole arrays of an upload concatenated.

    Attributes:
      values: float [k], entries of the upload itself.
      places: Metadata(int32 [k]), their positions, unordered.
      rest: leaves of the upload that are sent unchanged.
    """

    values: jax.Array
    places: wire.Metadata
    rest: list


def is_whole(leaf: Any) -> bool:
    """Returns True for an array that is sent with all its rows."""
    return not wire.is_masked(leaf)


def _flat(message: PyTree) -> jax.Array:
    """Concatenates the whole arrays of a message's payload, float32 [n]."""
    whole = [leaf for leaf in wire.payload_leaves(message).values() if is_whole(leaf)]
    return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in whole])


def encode_largest(share: float, uplink: PyTree, reference: PyTree) -> Largest:
    """Selects the entries of an upload that changed most.

    Args:
      share: share of the entries of all whole arrays to send; their number is rounded up.
      uplink: the upload.
      reference: an upload of the same form, which both sides know.
    """
    values = _flat(uplink)
    number = max(1, math.ceil(round(share * values.size, 6)))  # 0.07 * 100 is 7.000...1
    _, places = jax.lax.top_k(jnp.abs(values - _flat(reference)), number)
    rest = [
        leaf for leaf in wire.leaves_of(uplink) if not (wire.is_payload(leaf) and is_whole(leaf))
    ]
    return Largest(values[places], wire.Metadata(places.astype(jnp.int32)), rest)


def decode_largest(message: Largest, reference: PyTree) -> PyTree:
    """Writes the entries of a message into the reference."""
    # Positions out of range, which no honest client sends, are dropped.
    flat = _flat(reference).at[message.places.value].set(message.values, mode="drop")
    unchanged, leaves, start = iter(message.rest), [], 0
    for known in wire.leaves_of(reference):
        if not (wire.is_payload(known) and is_whole(known)):
            leaves.append(next(unchanged))
            continue
        stop = start + known.size
        leaves.append(flat[start:stop].reshape(known.shape).astype(known.dtype))
        start = stop
    return wire.from_leaves(reference, leaves)


Bits = Literal[2, 4, 8]


class Client(NamedTuple):
    """The state of a client of a method with a code.

    Attributes:
      client: the client's state in the method itself.
      left_out: accumulated coding errors, one array for each coded array.
    """

    client: PyTree
    left_out: tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True)
class _Scheme:
    """A code without memory.

    Attributes:
      name: name of the transform.
      codes: (a leaf of a message) -> True if the code is lossy on it.
      encode: (uplink, reference) -> message.
      decode: (message, reference) -> uplink, with the counts of the message.
    """

    name: str
    codes: Callable[[Any], bool]
    encode: Callable[[PyTree, PyTree], PyTree]
    decode: Callable[[PyTree, PyTree], PyTree]


@checked
def quantised(method: Method, bits: Bits = 8) -> Method:
    """Sends every array of an upload as integers of a few bits and their unit.

    The unit of an array is its largest change divided by 127 (7 with 4 bits, 1 with 2). Changes are
    rounded to the nearest integer. In a `Masked`, only the sent rows are coded.

    Args:
      method: any method whose upload entries mean the same in every round.
      bits: bits per integer; a byte holds two integers of 4 bits or four of 2.

    Returns:
      The method; its clients keep one extra number for each number that they send. Its `check`
      raises a ValueError if the method does not support the code.

    Example:
      >>> recipe = fl.LocalTraining(optax.sgd(0.1))
      >>> fl.quantised(fl.fedavg(recipe)).name
      'quantised(fedavg)'
    """
    scheme = _Scheme(
        name="quantised",
        codes=wire.is_payload,
        encode=functools.partial(encode_rounded, bits),
        decode=functools.partial(decode_rounded, bits),
    )
    return around(method, functools.partial(_coded, scheme))


@checked
def top_k(method: Method, share: Part = 0.01) -> Method:
    """Sends only the most changed entries of an upload's arrays, each with its index.

    All arrays are ranked together; k is the share of their entries, rounded up. Rows of a `Masked`
    are sent unchanged, because the method has already selected them.

    Args:
      method: any method whose upload entries mean the same in every round.
      share: share of entries to send, above 0; with 1 the server reads each upload unchanged.

    Returns:
      The method; as for `quantised`.

    Example:
      >>> recipe = fl.LocalTraining(optax.sgd(0.1))
      >>> fl.top_k(fl.fedavg(recipe), share=0.1).name
      'top_k(fedavg)'
    """
    scheme = _Scheme(
        name="top_k",
        codes=is_whole,
        encode=functools.partial(encode_largest, share),
        decode=decode_largest,
    )
    return around(method, functools.partial(_coded, scheme))


@checked
def quantise(bits: Bits = 8) -> Callable[[Method], Method]:
    """Makes the transform `quantised`, for a config's `uplink`."""
    return functools.partial(quantised, bits=bits)


@checked
def largest(share: Part = 0.01) -> Callable[[Method], Method]:
    """Makes the transform `top_k`, for a config's `uplink`."""
    return functools.partial(top_k, share=share)


CODES: dict[str, Callable[..., Callable[[Method], Method]]] = {
    "quantise": quantise,
    "top_k": largest,
}
"""Name in a config's `uplink` -> factory of a transform of the method."""


def _coded(scheme: _Scheme, method: Method) -> Method:
    reference = functools.partial(untrained, method)

    def check(federation):
        method.check(federation)
        _check_meaning(scheme, method)
        for bucket in federation.buckets:
            if not _coded_leaves(scheme, uplink_form(method, federation, bucket)):
                raise ValueError(
                    f"{scheme.name}: clients of {method.name} send no whole arrays that it could "
                    "code; remove it"
                )

    def init_client(bucket, ctx):
        if ctx.federation is None:
            raise ValueError(f"{scheme.name}: init_client needs ctx.federation, for its memory")
        form = uplink_form(method, ctx.federation, bucket)
        left_out = [jnp.zeros(x.shape, x.dtype) for x in _coded_leaves(scheme, form).values()]
        return Client(method.init_client(bucket, ctx), tuple(left_out))

    def receive(bucket, client, downlink, data, ctx):
        return client._replace(client=method.receive(bucket, client.client, downlink, data, ctx))

    def client_update(bucket, client, downlink, data, ctx):
        new, uplink, metrics = method.client_update(bucket, client.client, downlink, data, ctx)
        places, arrays = list(_coded_leaves(scheme, uplink)), {}
        leaves = wire.leaves_of(uplink)
        for place, missing in zip(places, client.left_out, strict=True):
            arrays[place] = wire.values_of(leaves[place]) + missing
        uplink = wire.with_payload(uplink, arrays)
        known = reference(bucket, downlink, ctx)
        read = wire.leaves_of(scheme.decode(scheme.encode(uplink, known), known))
        left_out = []
        for place, missing in zip(places, client.left_out, strict=True):
            # Rows that are not sent in this round keep their old error.
            rest = arrays[place] - wire.values_of(read[place])
            left_out.append(jnp.where(wire.sent_rows(leaves[place]), rest, missing))
        return Client(new, tuple(left_out)), uplink, metrics

    def predict(bucket, client, downlink, x, mask):
        return method.predict(bucket, client.client, downlink, x, mask)

    def features(bucket, client, x, mask):
        assert method.view.features is not None  # checked below
        return method.view.features(bucket, client.client, x, mask)

    def encode(bucket, uplink, downlink, ctx):
        return scheme.encode(uplink, reference(bucket, downlink, ctx))

    def decode(bucket, message, downlink, ctx):
        return scheme.decode(message, reference(bucket, downlink, ctx))

    # Coding errors have not reached the server yet, so sums over clients differ from its own.
    view = method.view._replace(invariant=None)
    if method.view.features is not None:
        view = view._replace(features=features)
    return method._replace(
        name=f"{scheme.name}({method.name})",
        check=check,
        init_client=init_client,
        receive=receive,
        client_update=client_update,
        predict=predict,
        wire=method.wire._replace(code=Code(encode, decode, remembers=True)),
        view=view,
    )


def _check_meaning(scheme: _Scheme, method: Method) -> None:
    if method.wire.code is not None:
        raise ValueError(f"{scheme.name}: uploads of {method.name} are already coded; use one code")
    if method.wire.redrawn or method.wire.positions == "own":
        raise ValueError(
            f"{scheme.name}: an entry of an upload of {method.name} has a different meaning in "
            "another round or client, so its coding error cannot be carried over; "
            "choose another method"
        )


def _coded_leaves(scheme: _Scheme, uplink: PyTree) -> dict[int, Any]:
    """Returns the arrays that a scheme codes, by their index in `leaves_of(uplink)`."""
    leaves = wire.payload_leaves(uplink).items()
    return {place: wire.values_of(leaf) for place, leaf in leaves if scheme.codes(leaf)}


def untrained(method: Method, bucket: Bucket, downlink: PyTree, ctx: Context) -> PyTree:
    """Returns the upload of an all-zero client without samples; it depends on the downlink alone.

    Args:
      method: the method itself, without its code.
      bucket: the bucket of the client.
      downlink: the downlink as the client received it.
      ctx: the context of the client's training.

    Returns:
      An upload; 0 in rows that are not sent, and where a value is not finite.
    """
    model = traceable(bucket)
    client = zeros_of(client_form(method, model))
    data = jax.tree.map(jnp.asarray, no_data(bucket))
    # Sample counts stay constants, so that loops over samples drop out of the program.
    data = without_samples(data)
    # A client that returns may keep parts of its own model; the zeros here are nobody's.
    ctx = ctx.of_newcomer()
    client = method.receive(model, client, downlink, data, ctx)
    data = data._replace(round=ctx.round, trainer=jax.tree_util.Partial(no_training))
    _, uplink, _ = method.client_update(model, client, downlink, data, ctx)
    arrays = {}
    for place, leaf in wire.payload_leaves(uplink).items():
        values = wire.dense(leaf)
        arrays[place] = jnp.where(jnp.isfinite(values), values, 0)
    return wire.with_payload(uplink, arrays)
