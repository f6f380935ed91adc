"""Codes of uplinks: the form in which an upload crosses the wire, where it is not the upload.

A method that sends 8-bit integers, bits or a few entries of many returns floats from its
`client_update` all the same, and declares a `Code` in its `Wire`. The coded form goes over the wire
and is counted; everyone behind the wire (deadlines, outliers, defences, secure sums, the method's
own server) sees the decoded one. What attackers change is what they would send, which is coded
after it: bytes stay right, and no attack hides in integers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.context import client_context
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.trees import PyTree


class Code(NamedTuple):
    """Functions between an upload and the message that crosses the wire for it.

    Both sides know a client's bucket, its downlink and the context of its training
    (`Purpose.TRAIN`: the key of client and round, and what the system knows of the client).

    Attributes:
      encode: (bucket, uplink, downlink, ctx) -> the message, a pytree of arrays of any dtype,
        `Masked` and `Metadata`.
      decode: (bucket, message, downlink, ctx) -> an upload in the form of `uplink`, of floats. Any
        message of the right form must decode, because a server does not trust its clients.
      remembers: True if clients keep the coding error in their state (error feedback).

    Example:
      Signs, one bit for each number:

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


def encoded(code: Code, bucket: Bucket, uplink, downlink, root, round, info) -> PyTree:
    """Returns the message that crosses the wire for a client's upload.

    Args:
      code: the method's code.
      bucket: the bucket of the client.
      uplink: the upload, as `client_update` and the channel's transforms leave it.
      downlink: the downlink that it answers, as the client received it.
      root, round, info: arguments as of `context.client_context`.
    """
    return code.encode(bucket, uplink, downlink, client_context(Purpose.TRAIN, root, round, info))


def decoded(code: Code, bucket: Bucket, message, downlink, root, round, info) -> PyTree:
    """Returns the upload that a message stands for, at the server as at the client; arguments as of
    `encoded`."""
    return code.decode(bucket, message, downlink, client_context(Purpose.TRAIN, root, round, info))
