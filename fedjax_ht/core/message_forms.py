"""Shapes and dtypes of a method's messages, found by tracing; nothing is run or sent."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.bucket import Bucket, traceable
from fedjax_ht.core.context import ClientInfo, Turn
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import usual_rule, zeros
from fedjax_ht.core.keys import Purpose, round_key
from fedjax_ht.core.method import Method
from fedjax_ht.core.programs import influences, union
from fedjax_ht.core.round import Channel, ClientResult, any_state, client_step, send
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import payload_leaves

PLAIN = Channel()


def client_form(method: Method, bucket: Bucket, federation: Federation | None = None) -> PyTree:
    """Returns the shapes and dtypes of a client's state, see `round.any_state`."""
    init = functools.partial(any_state, method, bucket, federation=federation)
    return jax.eval_shape(init, _turn().root)


def downlink_form(
    method: Method, federation: Federation, bucket: Bucket, channel: Channel = PLAIN
) -> PyTree:
    """Returns the shapes and dtypes of the downlink to a bucket's clients.

    Args:
      method: the method whose `broadcast` is traced.
      federation, bucket: the federation and the receiver's bucket.
      channel: transforms of messages; they may change shapes.

    Returns:
      A message of `jax.ShapeDtypeStruct`s.
    """

    def sent(turn):
        server = method.init_server(federation, round_key(turn.root, Purpose.INIT_SERVER, 0))
        return send(method, federation, bucket, channel, server=server, turn=turn)

    return jax.eval_shape(sent, _turn())


def result_form(
    method: Method, federation: Federation, bucket: Bucket, channel: Channel
) -> ClientResult:
    """Returns the shapes and dtypes of the `ClientResult` of a bucket's clients.

    Args:
      method: the method whose `client_update` is traced.
      federation, bucket: the federation and the sender's bucket.
      channel: transforms of messages; they may change shapes.
    """

    def step(data, downlink, turn):
        model = traceable(bucket)
        client = any_state(method, model, turn.root, federation)
        return client_step(method, model, channel)(client, downlink, data, turn)[1]

    downlink = downlink_form(method, federation, bucket, channel)
    return jax.eval_shape(step, no_data(bucket), downlink, _turn())


def uplink_form(
    method: Method, federation: Federation, bucket: Bucket, channel: Channel = PLAIN
) -> PyTree:
    """Returns the shapes and dtypes of the uplink of a bucket's clients, found by tracing.

    A wrapping method uses it for the shapes of the inner method's messages:

        form = fl.uplink_form(method, ctx.federation, bucket)
        residual = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form)

    Args:
      method: the method whose `client_update` is traced.
      federation, bucket: the federation and the sender's bucket.
      channel: transforms of messages; they may change shapes.

    Returns:
      An upload of `jax.ShapeDtypeStruct`s.
    """
    return result_form(method, federation, bucket, channel).uplink


def uplink_forms(method: Method, federation: Federation, channel: Channel) -> dict[str, PyTree]:
    """Returns the shapes and dtypes of the uplinks, by name of the senders' bucket."""
    return {b.name: uplink_form(method, federation, b, channel) for b in federation.buckets}


def keeps_state(method: Method, federation: Federation, bucket: Bucket, channel: Channel) -> bool:
    """Returns True if any part of a client's state survives the next downlink.

    This is determined from the trace of `receive`; if it cannot be traced, the result is True.
    """

    def received(client, downlink, data, turn):
        ctx = turn.context(Purpose.RECEIVE)
        return method.receive(traceable(bucket), client, downlink, data, ctx)

    client = client_form(method, bucket, federation)
    downlink = downlink_form(method, federation, bucket, channel)
    data = no_data(bucket)
    try:
        _, sources = influences(received, client, downlink, data, _turn())
    except Exception:  # it raises again, with its name, when a round is traced
        return True
    return 0 in union(sources)  # argument 0 is the client's state


def sends_payload(form: PyTree) -> bool:
    """Returns True if a message of this form has numbers besides counts and indices."""
    return bool(payload_leaves(form))


def no_data(bucket: Bucket) -> Data:
    """Returns a client's view of the data without samples."""
    none = Split(np.zeros(1, np.int32), np.int32(0))
    return Data(
        inputs=zeros(bucket.input_shape),
        labels=bucket.task.no_targets(1),
        preprocess=usual_rule(bucket.input_shape),
        splits=dict.fromkeys(("train", "val", "test", PUBLIC), none),
    )


def _turn() -> Turn:
    number: Any = jax.ShapeDtypeStruct((), jnp.int32)  # stands in for an array
    key: Any = jax.eval_shape(jax.random.key, 0)
    return Turn(key, number, ClientInfo(number, number, number))
