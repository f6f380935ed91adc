"""The forms of a method's messages: both sides derive them, so that none crosses the wire."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.federation import Bucket, Federation
from fedjax_ht.core.inputs import usual_rule, zeros
from fedjax_ht.core.keys import Purpose, round_key
from fedjax_ht.core.method import ClientInfo, Context, Data, PyTree, Split
from fedjax_ht.core.round import Taught, client_step, send
from fedjax_ht.core.uploads import is_payload, leaves_of
from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.deploy.plan import Plan

_NUMBER = jax.ShapeDtypeStruct((), jnp.int32)
INFO = ClientInfo(_NUMBER, _NUMBER, _NUMBER)


def downlink_form(plan: Plan, federation: Federation, bucket: Bucket) -> PyTree:
    """What comes down to a client of a bucket, as `jax.ShapeDtypeStruct`s."""

    def sent(key, round, info):
        server = plan.method.init_server(federation, round_key(key, Purpose.INIT_SERVER, 0))
        return send(plan.method, federation, bucket, plan.channel, server, key, round, info)

    return jax.eval_shape(sent, _key(), _NUMBER, INFO)


def taught_form(plan: Plan, federation: Federation, bucket: Bucket) -> Taught:
    """What a client of a bucket makes of it, likewise."""

    def step(data, downlink, key, round, info):
        ctx = Context(key, round, None)
        return client_step(plan.method, bucket, plan.channel)(
            plan.method.init_client(bucket, ctx), downlink, data, key, round, info
        )

    none = Split(np.zeros(1, np.int32), np.int32(0))
    splits = dict.fromkeys(ClientIndices._fields, none)
    data = Data(zeros(bucket.input_shape), np.zeros(1, np.int32), usual_rule(bucket.input_shape), splits)
    return jax.eval_shape(step, data, downlink_form(plan, federation, bucket), _key(), _NUMBER, INFO)


def uplink_forms(plan: Plan, federation: Federation) -> dict[str, PyTree]:
    """Bucket name -> the form of its clients' uplinks."""
    return {b.name: taught_form(plan, federation, b).uplink for b in federation.buckets}


def sends(form: PyTree) -> bool:
    """Whether there is anything in an uplink of that form that noise could hide."""
    return any(map(is_payload, leaves_of(form)))


def _key():
    return jax.eval_shape(lambda: jax.random.key(0))
