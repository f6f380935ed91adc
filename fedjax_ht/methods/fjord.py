"""FjORD (Horvath et al., NeurIPS 2021): clients train slices of random width, each in the next.

    client:  of rate R holds channels 0 .. ceil(R K) - 1 of a layer of K; for every batch draws a
             width p among those of P up to R, and descends on CE(f_p, y), f_p being the slice of
             this width; with kd on CE(f_R, y) + CE(f_p, softmax(f_R)), the teacher a constant
    server:  averages each entry by samples over the clients that hold it; the rest stays
    predict: the client's slice; the whole network in a column of its own
    up:      W_R + S_R: the slice, and running statistics of all widths up to R
    down:    W_R + S_R: the first channels of every layer, and their running statistics
    fits:    clients with unequal compute that may change: a trained slice can be cut again
    paper:   https://arxiv.org/abs/2102.13451

Settled here:
* P is what the clients have, the rates of the federation, or `widths`. The last layer keeps all
  classes, and all of them count.
* Norms that keep running statistics keep a pair for each width (norm="batch"), averaged by samples
  over the clients that train this width; scale and shift are shared. S_R is 0 with other norms. No
  slice is scaled: HeteroFL's scaler is off.
* Self-distillation is that of the authors' code in Flower: weights 1 and 1, temperature 1, one step
  along both gradients. Another port uses mean squares of logits, and trains a copy of the slice
  without effect on the model.
* A slice's program is chosen by `lax.switch` among those of all widths, so that shapes are static.
  A client that runs alone computes the drawn width only; clients side by side in lanes compute all
  widths. FLOPs are counted as if every batch drew R, an upper bound.
* Weight decay and momentum also move entries outside of a batch's slice, as in that code.
"""

import dataclasses
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.check.options import Part, Within, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import Bucket, init_variables, logits
from fedjax_ht.core.contract import keeps_statistics
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining, Loss, train
from fedjax_ht.core.method import GlobalModel, Method, Needs, Wire
from fedjax_ht.core.trees import PyTree, join_trees
from fedjax_ht.core.wire import Metadata
from fedjax_ht.losses import masked_mean
from fedjax_ht.methods.shared import slicing
from fedjax_ht.methods.shared.averaging import client_weights, mean_or, sent_samples
from fedjax_ht.methods.shared.supervised import batch_features
from fedjax_ht.models.sliced import parameter_axes


class Server(NamedTuple):
    """The server's state.

    Attributes:
      params: the global model's parameters {"base", "head"}.
      stats: width -> running statistics of the slice of this width, {} without any.
    """

    params: PyTree
    stats: dict[str, PyTree]


class Message(NamedTuple):
    """A client's slice.

    Attributes:
      params: parameters {"base", "head"} of the slice.
      stats: width -> running statistics, for the widths that the client draws; its keys tell a
        client these widths.
      num_samples: Metadata(int32), in an uplink the client's number of training samples; else ().
    """

    params: PyTree
    stats: dict[str, PyTree]
    num_samples: Metadata | tuple = ()


def label(width: float) -> str:
    """Returns a width as a key of statistics."""
    return str(float(width))


def at_width(bucket: Bucket, rate: float) -> Bucket:
    """Returns the bucket of a narrower slice of a bucket's network."""
    base = bucket.module.base.clone(rate=rate)
    if hasattr(base, "scaler"):
        base = base.clone(scaler=False)
    return dataclasses.replace(bucket, module=bucket.module.clone(base=base), width=rate)


def drawn(key: jax.Array, number: int) -> jax.Array:
    """Draws the index of one of a client's widths, int32."""
    return jax.random.randint(key, (), 0, number)


def require_rate(name: str, federation: Federation) -> None:
    """Raises ValueError unless `at_width` can slice the federation's networks."""
    slicing.require_slices(name, federation)
    if not hasattr(federation.server_model.module.base, "rate"):
        raise ValueError(
            f"{name} makes a client's network of other widths, but its extractor has no field "
            "'rate'; add one, as in fl.models.ConvNet"
        )


@checked
def fjord(
    training: LocalTraining,
    *,
    kd: bool = False,
    widths: Annotated[tuple[Part, ...], Within(1)] | None = None,
) -> Method:
    """Makes FjORD, described in the module's docstring.

    Args:
      training: local training.
      kd: True adds self-distillation: the client's whole slice is trained in every batch, and
        teaches the narrower one.
      widths: P, the widths that clients draw from; None takes the clients' rates.

    Returns:
      The method; its `check` rejects federations without slices, and clients whose rate is not one
      of `widths`.
    """

    def widths_in(federation: Federation) -> list[float]:
        rates = {bucket.width for bucket in federation.buckets}
        return sorted(rates if widths is None else set(map(float, widths)), reverse=True)

    def check(federation):
        require_rate("fjord", federation)
        drawn_from = widths_in(federation)
        rates = {bucket.width for bucket in federation.buckets}
        if keeps_statistics(federation.server_model) and 1.0 not in rates:
            raise ValueError(
                "fjord scores the whole network, whose batch statistics no client of rate 1 keeps; "
                "add such a client, or use another norm"
            )
        for bucket in federation.buckets:
            if bucket.width not in drawn_from:
                raise ValueError(
                    f"fjord's widths are {', '.join(map(str, drawn_from))}, but a client has the "
                    f"rate {bucket.width}; add it to widths, or remove widths"
                )

    def init_server(federation, key):
        whole = federation.server_model
        stats = {}
        for width in widths_in(federation):
            stats[label(width)] = init_variables(at_width(whole, width), key)["stats"]
        return Server(init_variables(whole, key)["params"], stats)

    def broadcast(federation, bucket, server, ctx):
        whole = federation.server_model.module
        axes, channels = parameter_axes(whole, server.params), whole.base.channels().widths
        stats = {name: x for name, x in server.stats.items() if float(name) <= bucket.width}
        return Message(slicing.first_channels(server.params, axes, channels, bucket.width), stats)

    def receive(bucket, client, downlink, data, ctx):
        return client | {"params": downlink.params, "stats": downlink.stats[label(bucket.width)]}

    def client_update(bucket, client, downlink, data, ctx):
        rates = sorted(map(float, downlink.stats), reverse=True)  # the first is the client's own
        axes = parameter_axes(bucket.module, client["params"])
        channels = bucket.module.base.channels().widths

        def slice_of(rate):
            narrow, name = at_width(bucket, rate), label(rate)

            def run(params, stats, batch, key):
                part = slicing.first_channels(params, axes, channels, rate)
                rows, new = batch_features(narrow, part, stats[name], batch, key)
                return logits(narrow, part, rows), stats | {name: new}

            return run

        slices = [slice_of(rate) for rate in rates]

        def loss(params, stats, batch: Batch, key) -> Loss:
            draw_key, whole_key, key = jax.random.split(key, 3)
            value, teacher = jnp.float32(0), None
            if kd:
                teacher, stats = slices[0](params, stats, batch, whole_key)
                value = bucket.task.loss(teacher, batch.y, batch.mask)
            which = drawn(draw_key, len(slices))
            scores, stats = lax.switch(which, slices, params, stats, batch, key)
            if teacher is None:
                return Loss(bucket.task.loss(scores, batch.y, batch.mask), stats)
            targets = lax.stop_gradient(jax.nn.softmax(teacher))
            taught = optax.softmax_cross_entropy(scores, targets)
            return Loss(value + masked_mean(taught, batch.mask), stats)

        result = train(training, loss, client["params"], downlink.stats, data, key=ctx.key)
        client = client | {"params": result.params, "stats": result.stats[label(bucket.width)]}
        uplink = Message(result.params, result.stats, sent_samples(ctx, "samples"))
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        whole = federation.server_model.module
        axes, channels = parameter_axes(whole, server.params), whole.base.channels().widths
        slices, uploads = [], []
        for bucket in slicing.widest_first(federation):
            uplink = received[bucket.name].uplink
            weights = client_weights(received[bucket.name], uplink.num_samples)
            classes = jnp.ones((len(weights), federation.num_classes), bool)
            plan = slicing.make_plan(channels, bucket.width, "static", ctx.round)
            slices.append(slicing.Slices(uplink.params, weights, classes, plan))
            uploads.append((uplink.stats, weights))
        stats = {}
        for name, old in server.stats.items():
            stats[name] = _mean_stats(old, [(s[name], w) for s, w in uploads if name in s])
        return Server(slicing.scatter_mean(server.params, axes, channels, slices), stats), {}

    return Method(
        name="fjord",
        training=training,
        check=check,
        init_server=init_server,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        global_model=GlobalModel(
            params=lambda server: server.params,
            stats=lambda server: server.stats.get(label(1.0), {}),
        ),
        wire=Wire(positions="nested", server_reads="sums"),
        needs=Needs(classes=kd),
    )


def _mean_stats(old: PyTree, uploads: list[tuple[PyTree, jax.Array]]) -> PyTree:
    """Averages the running statistics of one width; keeps the old ones if no client has any.

    Args:
      old: the previous statistics.
      uploads: one pair per bucket, statistics with a leading axis [P] and the clients' weights [P].
    """
    if not uploads:
        return old
    stats = join_trees(jnp.concatenate, [x for x, _ in uploads])
    weights = jnp.concatenate([w for _, w in uploads])
    return mean_or(old, stats, weights)
