"""Codes of uplinks: compressed forms in which uploads cross the wire.

A method that sends 8-bit integers, bits or a few entries of many still returns floats from
`client_update`, and declares a `Code` in its `Wire`. The coded message crosses the wire, and its
bytes are counted. Everything behind the wire (deadlines, outliers, defences, secure sums, the
method's own server) sees the decoded upload. Attackers change an upload before it is coded: byte
counts stay right, and no attack hides in integers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Code(NamedTuple):
    """Functions that encode an upload as a message, and decode it again.

    Both sides know a client's bucket, its downlink and the context of its training
    (`Purpose.TRAIN`: the key of client and round, and the client's `ClientInfo`).

    Attributes:
      encode: (bucket, uplink, downlink, ctx) -> the message, a pytree of arrays of any dtype,
        `Masked` and `Metadata`.
      decode: (bucket, message, downlink, ctx) -> an upload of floats, in the form of `uplink`. Any
        message of the right form must decode, because a server does not trust its clients.
      remembers: True if clients keep the coding error in their state (error feedback).

    Example:
      Signs, one bit per number:

      >>> def encode(bucket, uplink, downlink, ctx):
      ...     return jnp.packbits(uplink > downlink)
      >>> def decode(bucket, message, downlink, ctx):
      ...     signs = jnp.unpackbits(message, count=downlink.size) * 2.0 - 1
      ...     return downlink + 0.01 * signs
      >>> fl.Wire(code=fl.Code(encode, decode)).code.remembers
      False
    """

    encode: Callable[..., Any]
    decode: Callable[..., Any]
    remembers: bool = False
