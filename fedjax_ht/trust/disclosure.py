"""Checks of what a method's messages reveal despite noise on their numbers.

They analyse the method's traced program: nothing is run, and the method only declares
`Wire.server_reads`. A message that reveals more is rejected with a one-line error.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import Bucket, traceable
from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.contract import keeps_statistics
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import abstract, usual_rule, zeros
from fedjax_ht.core.local_training import TrainingResult
from fedjax_ht.core.message_forms import client_form, downlink_form
from fedjax_ht.core.method import Method
from fedjax_ht.core.programs import LOOP, Sources, influences, union
from fedjax_ht.core.samples import PUBLIC as PUBLIC_SPLIT
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.statistics import normalises_by_batch
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import Metadata, is_masked, is_payload, leaves_of
from fedjax_ht.trust.options import Exposure
from fedjax_ht.trust.vectors import comparable

# Arguments of a client's round, as numbered in the dependences of `traced_round`.
STATE, SAMPLES, COUNT, IDENTITY, PUBLIC = range(5)


def exposure(method: Method, federation: Federation) -> Exposure:
    """Returns what uploads reveal about who takes part, besides their numbers.

    Returns:
      "nothing" if no payload is sent. "alike" if an upload only reveals that some client took part:
      all uploads have the same shape, are sent whole, and do not depend on clients' states, which
      would reveal who took part in earlier rounds. Else "apart".
    """

    def row(x):
        return jax.ShapeDtypeStruct((1, *x.shape), x.dtype)

    received, sources, unknown = {}, Sources(), np.zeros(1, np.int32)
    for bucket in federation.buckets:
        (_, _, uplink), (_, _, uplink_sources) = traced_round(method, federation, bucket)
        form = jax.tree.map(row, uplink)
        info = ClientInfo(unknown, unknown, unknown)
        received[bucket.name] = Received(form, info, np.ones(1, bool))
        sources |= union(uplink_sources)
    leaves = [leaf for r in received.values() for leaf in leaves_of(r.uplink)]
    if not any(map(is_payload, leaves)):
        return "nothing"
    one_shape = len(comparable(received, nested=False)) == 1
    if one_shape and STATE not in sources and not any(map(is_masked, leaves)):
        return "alike"
    return "apart"


def check_uploads(method: Method, federation: Federation, sums: bool) -> None:
    """Checks that no part of an upload reveals data despite the noise.

    Args:
      method, federation: the uploads' method and federation.
      sums: True if the noise is on the sum of uploads, False if it is on each.

    Raises:
      ValueError: numbers are narrower than float32; the choice of sent rows, a count, or another
        integer depends on data or a client's state; the code of uploads is incompatible with
        privacy; or, for sums, the server reads more than sums, or clients may have different
        weights.
    """
    unit, name = f"privacy.unit is {'client' if sums else 'upload'!r}", method.name
    _check_server_sees_no_data(method, unit)
    _check_code(method, unit, sums)
    for bucket in federation.buckets:
        (_, _, uplink), (_, _, sources) = traced_round(method, federation, bucket)
        _require_float32(uplink, f"{unit}, but clients of {name}")
        counts, rows = _clear_sources(uplink, sources)
        if (counts | rows) & {STATE, SAMPLES, COUNT}:
            raise ValueError(
                f"{unit}, but clients of {name} reveal which rows or counts they have, which "
                "depends on their data and has no noise"
            )
        if sums and IDENTITY in counts:
            raise ValueError(
                f"{unit}, but clients of {name} send their own counts; a sum needs equal weights"
            )
    if sums and method.wire.server_reads != "sums":
        raise ValueError(
            f"{unit}, but the server of {name} reads more than sums of uploads; use 'upload'"
        )


def _check_code(method: Method, unit: str, sums: bool) -> None:
    """Raises ValueError for uplink codes that would undo the earlier clipping or noise."""
    code = method.wire.code
    if code is None:
        return
    if sums:
        raise ValueError(
            f"{unit}, but uploads of {method.name} are coded after clipping, and rounding "
            "may bring their norm above privacy.clip; use 'sample', or no code"
        )
    if code.remembers:
        raise ValueError(
            f"{unit}, but clients of {method.name} remember the coding error of the upload "
            "without noise, not of the one that they send; use 'sample', or no code"
        )


def _require_float32(tree: PyTree, refusal: str) -> None:
    """Raises ValueError for floats of 16 bits, whose few values make no Gaussian noise."""
    for x in jax.tree.leaves(tree):
        if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4:
            raise ValueError(f"{refusal} train or send {x.dtype}; noise needs float32")


def _clear_sources(uplink: PyTree, sources: PyTree) -> tuple[Sources, Sources]:
    """Returns the sources of an uplink's parts that get no noise.

    They are those of its counts, and those of its masks and other integers.
    """
    counts, rows = [], []
    for leaf, leaf_sources in zip(leaves_of(uplink), leaves_of(sources)):
        if isinstance(leaf, Metadata):
            counts.append(leaf_sources)
        elif not is_payload(leaf):
            rows.append(leaf_sources)
        elif is_masked(leaf):
            rows.append(leaf_sources.mask)
    return union(counts), union(rows)


def check_samples(method: Method, federation: Federation) -> None:
    """Checks that clients reveal samples only through gradients, the only values with noise.

    Raises:
      ValueError: numbers are narrower than float32; a client sends or keeps other functions of its
        samples; it does not train exactly once per round, or trains in a loop; or models normalise
        by batch, although DP-SGD sees one sample at a time.
    """
    unit, name = "privacy.unit is 'sample'", method.name
    _check_server_sees_no_data(method, unit)
    for bucket in federation.buckets:
        for part in (bucket, bucket.shared):
            if part is not None and (keeps_statistics(part) or normalises_by_batch(part)):
                raise ValueError(
                    f"{unit}, but {part.name} normalises by batch; use model.norm='group', "
                    "'layer' or 'none'"
                )
        trainer = _StandIn(bucket, f"{unit}, but clients of {name}")
        forms, sources = traced_round(method, federation, bucket, jax.tree_util.Partial(trainer))
        _require_float32(forms, f"{unit}, but clients of {name}")
        sources = union(sources)
        if SAMPLES in sources:
            raise ValueError(
                f"{unit}, but clients of {name} send or keep results of samples other than "
                "those of training by gradients"
            )
        if trainer.splits != ["train"] or LOOP in sources:
            raise ValueError(
                f"{unit}, but clients of {name} do not train once a round; their steps are not "
                "counted"
            )


class _StandIn:
    """A trainer whose parameters depend on all that the loss reads, except the samples.

    Attributes:
      splits: the splits that it was called with, in order.
    """

    def __init__(self, bucket: Bucket, refusal: str):
        self._bucket, self._refusal = bucket, refusal
        self.splits: list[str] = []

    def __call__(
        self, training, loss_fn, params, stats, data, key, num_classes, split="train"
    ) -> TrainingResult:
        self.splits.append(split)
        x, labels = zeros(self._bucket.input_shape), jnp.zeros(1, jnp.int32)
        out = loss_fn(params, stats, Batch(x, labels, jnp.ones(1, bool)), key)
        if out.rows is not None:
            raise ValueError(f"{self._refusal} send sums over samples by class, without noise")
        if jax.tree.leaves(stats):
            raise ValueError(f"{self._refusal} keep running statistics of samples, without noise")
        params = jax.tree.map(lambda x: x + out.value, params)
        loss = out.value + 0 * data.labels.sum()  # unlike gradients, it has no noise
        return TrainingResult(params=params, stats=stats, loss=loss, class_sums=None)


def _check_server_sees_no_data(method: Method, unit: str) -> None:
    if method.needs.clients_data:
        raise ValueError(f"{unit}, but the server of {method.name} reads the clients' samples")


def traced_round(
    method: Method, federation: Federation, bucket: Bucket, trainer: Any = None
) -> tuple[PyTree, PyTree]:
    """Traces the inputs that a client's round depends on.

    These are its `STATE` (with the round in which it was last reached), its `SAMPLES`, their
    `COUNT`, its `IDENTITY` (key and id), and `PUBLIC` inputs.

    Args:
      method, federation, bucket: arguments that the client's round binds.
      trainer: `Data.trainer`; None for the recipe's own training.

    Returns:
      `programs.influences` of (state after receipt, state after training, uplink): their forms and
      dependences.
    """
    key, number = jax.eval_shape(jax.random.key, 0), jax.ShapeDtypeStruct((), jnp.int32)
    two = jax.ShapeDtypeStruct((2,), jnp.int32)
    rule = usual_rule(bucket.input_shape)

    def work(state, samples, count, identity, public):
        client, last_round = state
        inputs, labels, indices = samples
        key, client_id = identity
        downlink, shared_key, round = public
        # Public samples count as the client's own, since both are in the same array.
        names = "train", "val", "test", PUBLIC_SPLIT
        splits: dict[str, Split] = dict.fromkeys(names, Split(indices, count))
        data = Data(inputs=inputs, labels=labels, preprocess=rule, splits=splits)
        # The count is a constant: with noise on uploads every client counts as one sample, and with
        # noise on gradients counts are public.
        info = ClientInfo(client_id, np.int32(1), last_round)
        ctx = Context(key=key, round=round, info=info, shared_key=shared_key)
        model = traceable(bucket)
        received = method.receive(model, client, downlink, data, ctx)
        data = data._replace(round=round, trainer=trainer)
        return received, *method.client_update(model, received, downlink, data, ctx)[:2]

    client = client_form(method, bucket, federation)
    target, dtype = bucket.task.target
    labels = jax.ShapeDtypeStruct((2, *target), dtype)
    samples = abstract(bucket.input_shape, 2), labels, two
    public = downlink_form(method, federation, bucket), key, number
    return influences(work, (client, number), samples, number, (key, number), public)
