"""The forms of a method's messages, and whether its clients keep anything, told from its trace:
nothing is run, and no form need cross a wire."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.federation import Bucket, Federation
from fedjax_ht.core.influence import Sources, influences
from fedjax_ht.core.inputs import usual_rule, zeros
from fedjax_ht.core.keys import Purpose, round_key
from fedjax_ht.core.method import ClientInfo, Data, Method, PyTree, Split
from fedjax_ht.core.round import Channel, any_state, client_step, receive, send
from fedjax_ht.core.uploads import is_payload, leaves_of

_NUMBER = jax.ShapeDtypeStruct((), jnp.int32)
_INFO = ClientInfo(_NUMBER, _NUMBER, _NUMBER)


def downlink_form(
    method: Method, federation: Federation, bucket: Bucket, channel: Channel
) -> PyTree:
    """Returns what comes down to a client of a bucket, as `jax.ShapeDtypeStruct`s."""

    def sent(key, round, info):
        server = method.init_server(federation, round_key(key, Purpose.INIT_SERVER, 0))
        return send(method, federation, bucket, channel, server, key, round, info)

    return jax.eval_shape(sent, _key(), _NUMBER, _INFO)


def uplink_form(method: Method, federation: Federation, bucket: Bucket, channel: Channel) -> PyTree:
    """Returns what a client of a bucket sends up, as `jax.ShapeDtypeStruct`s."""

    def step(data, downlink, key, round, info):
        client = any_state(method, bucket, key)
        return client_step(method, bucket, channel)(client, downlink, data, key, round, info).uplink

    downlink = downlink_form(method, federation, bucket, channel)
    return jax.eval_shape(step, _data_form(bucket), downlink, _key(), _NUMBER, _INFO)


def keeps_state(method: Method, federation: Federation, bucket: Bucket, channel: Channel) -> bool:
    """Tells whether anything of a client's state outlives the next downlink."""

    def received(client, downlink, data, key, round, info):
        return receive(method, bucket, client, downlink, data, key, round, info)

    client = jax.eval_shape(lambda key: any_state(method, bucket, key), _key())
    downlink = downlink_form(method, federation, bucket, channel)
    try:
        _, sources = influences(
            received, client, downlink, _data_form(bucket), _key(), _NUMBER, _INFO
        )
    except Exception:  # it raises again, and is named, where a round is traced
        return True
    return any(
        0 in source for source in jax.tree.leaves(sources, is_leaf=lambda x: isinstance(x, Sources))
    )


def _data_form(bucket: Bucket) -> Data:
    """A client's view of no samples."""
    none = Split(np.zeros(1, np.int32), np.int32(0))
    splits = dict.fromkeys(("train", "val", "test"), none)
    return Data(
        zeros(bucket.input_shape), np.zeros(1, np.int32), usual_rule(bucket.input_shape), splits
    )


def sends_payload(form: PyTree) -> bool:
    """Whether there are numbers in a message of that form besides counts and indices."""
    return any(map(is_payload, leaves_of(form)))


def _key():
    return jax.eval_shape(lambda: jax.random.key(0))
