"""What a method's messages tell of a client's data besides the numbers that noise hides, from its
traced program.

Nothing is run, and no method is asked, but for `Wire.server_reads`. Refused, in one line each, is
what tells more.
"""

from collections.abc import Iterable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.federation import Bucket, Federation, init_variables
from fedjax_ht.core.influence import LOOP, Sources, influences
from fedjax_ht.core.inputs import abstract, usual_rule, zeros
from fedjax_ht.core.local_training import Batch, TrainingResult
from fedjax_ht.core.method import ClientInfo, Context, Data, Method, PyTree, Received, Split
from fedjax_ht.core.round import any_state
from fedjax_ht.core.statistics import norm_moments
from fedjax_ht.core.uploads import comparable, is_payload, leaves_of
from fedjax_ht.core.wire import Masked, Metadata

Exposure = Literal["nothing", "alike", "apart"]

STATE, SAMPLES, COUNT, WHO, PUBLIC = range(5)  # the arguments of `client_round`


def exposure(method: Method, federation: Federation) -> Exposure:
    """What uploads tell of who takes part, besides their numbers. "nothing" is sent; or all are
    "alike", and tell that somebody does: of one shape, sent whole, and made of nothing that a
    client keeps, which would tell who took part in earlier rounds; or they are "apart"."""

    def one(x):
        return jax.ShapeDtypeStruct((1, *x.shape), x.dtype)

    received, found = {}, Sources()
    for bucket in federation.buckets:
        (_, _, uplink), (_, _, sources) = client_round(method, federation, bucket)
        received[bucket.name] = Received(jax.tree.map(one, uplink), None, np.ones(1, bool))
        found |= _joined([sources])
    leaves = [leaf for r in received.values() for leaf in leaves_of(r.uplink)]
    if not any(map(is_payload, leaves)):
        return "nothing"
    whole = not any(isinstance(leaf, Masked) for leaf in leaves)
    return (
        "alike"
        if whole and STATE not in found and len(comparable(received, nested=False)) == 1
        else "apart"
    )


def check_uploads(method: Method, federation: Federation, sums: bool) -> None:
    """Refuses what noise on uploads does not hide.

    Args:
      method, federation: who sends what.
      sums: noise is on their sum.

    Raises:
      ValueError: which rows are sent, a count, or another integer depends on data or on a client's
        state; or, of sums, the server reads more than sums, or clients may weigh differently.
    """
    unit, name = f"privacy.unit is {'client' if sums else 'upload'!r}", method.name
    if method.sees_data:
        raise ValueError(f"{unit}, but the server of {name} reads the clients' samples")
    for bucket in federation.buckets:
        (_, _, uplink), (_, _, sources) = client_round(method, federation, bucket)
        pairs = list(zip(leaves_of(uplink), leaves_of(sources)))
        counts = _joined(source for leaf, source in pairs if isinstance(leaf, Metadata))
        masks = _joined(source.mask for leaf, source in pairs if isinstance(leaf, Masked))
        others = _joined(
            s for leaf, s in pairs if not isinstance(leaf, Metadata) and not is_payload(leaf)
        )
        if (counts | masks | others) & {STATE, SAMPLES, COUNT}:
            raise ValueError(
                f"{unit}, but clients of {name} say which rows or counts they have, which depends "
                "on their data and "
                "which no noise hides"
            )
        if sums and WHO in counts:
            raise ValueError(
                f"{unit}, but clients of {name} send counts of their own; a sum has to weigh alike"
            )
    if sums and method.wire.server_reads != "sums":
        raise ValueError(
            f"{unit}, but the server of {name} reads more than sums of uploads; take 'upload'"
        )


def check_samples(method: Method, federation: Federation) -> None:
    """Refuses what noise on the gradients of training does not hide.

    Raises:
      ValueError: a client sends or keeps what it makes of its samples otherwise; or trains twice a
        round, or in a loop; or models normalise by batch, which one sample at a time is not.
    """
    unit, name = "privacy.unit is 'sample'", method.name
    if method.sees_data:
        raise ValueError(f"{unit}, but the server of {name} reads the clients' samples")
    for bucket in federation.buckets:
        for part in (bucket, bucket.shared):
            if part is not None and _normalises_by_batch(part):
                raise ValueError(
                    f"{unit}, but {part.name} normalises by batch; take model.norm='group', "
                    "'layer' or 'none'"
                )
        splits: list[str] = []

        def stand_in(training, loss_fn, params, stats, data, key, num_classes, split="train"):
            """Trains on nothing, and depends on all that the loss reads besides its batch."""
            splits.append(split)  # noqa: B023
            batch = Batch(zeros(bucket.input_shape), jnp.zeros(1, jnp.int32), jnp.ones(1, bool))  # noqa: B023
            out = loss_fn(params, stats, batch, key)
            if out.rows is not None:
                raise ValueError(
                    f"{unit}, but clients of {name} send sums over samples by class, which have "
                    "no noise"
                )
            return TrainingResult(
                jax.tree.map(lambda x: x + out.value, params), stats, out.value, None
            )

        found = _joined(
            [client_round(method, federation, bucket, jax.tree_util.Partial(stand_in))[1]]
        )
        if SAMPLES in found:
            raise ValueError(
                f"{unit}, but clients of {name} send or keep what they make of samples besides "
                "training by gradients"
            )
        if splits != ["train"] or LOOP in found:
            raise ValueError(
                f"{unit}, but clients of {name} do not train once a round; nobody counts their "
                "steps"
            )


def _joined(sources: Iterable[PyTree]) -> Sources:
    return Sources().union(
        *jax.tree.leaves(list(sources), is_leaf=lambda x: isinstance(x, Sources))
    )


def _normalises_by_batch(bucket: Bucket) -> bool:
    def kept(key):
        variables, x = init_variables(bucket, key), zeros(bucket.input_shape)
        return (
            variables["stats"] or norm_moments(bucket, variables["params"], x, jnp.ones(1, bool))[1]
        )

    return bool(jax.tree.leaves(jax.eval_shape(kept, jax.random.key(0))))


def client_round(
    method: Method, federation: Federation, bucket: Bucket, trainer: Any = None
) -> tuple[PyTree, PyTree]:
    """`influences` of a client's round, (its state after receipt, after training, uplink), by its
    `STATE` and the round in which it was last reached, its `SAMPLES`, their `COUNT`, `WHO` it is,
    and what is `PUBLIC`. `trainer` is that of `Data`."""
    key, number = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((), jnp.int32)
    two = jax.ShapeDtypeStruct((2,), jnp.int32)
    rule = usual_rule(bucket.input_shape)

    def sent(key, number):
        ctx = Context(key, number, ClientInfo(number, np.int32(1), number), shared_key=key)
        return method.broadcast(federation, bucket, method.init_server(federation, key), ctx)

    def work(state, samples, count, who, public):
        (client, last_round), (inputs, labels, indices), (downlink, shared_key, round) = (
            state,
            samples,
            public,
        )
        data = Data(
            inputs, labels, rule, {name: Split(indices, count) for name in ("train", "val", "test")}
        )
        ctx = Context(
            who[0], round, ClientInfo(who[1], np.int32(1), last_round), shared_key=shared_key
        )
        received = method.receive(bucket, client, downlink, data, ctx)
        data = data._replace(round=round, trainer=trainer)
        return received, *method.client_update(bucket, received, downlink, data, ctx)[:2]

    client = jax.eval_shape(lambda key: any_state(method, bucket, key), key)
    samples, public = (
        (abstract(bucket.input_shape, 2), two, two),
        (jax.eval_shape(sent, key, number), key, number),
    )
    return influences(work, (client, number), samples, number, (key, number), public)
