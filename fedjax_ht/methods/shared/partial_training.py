"""Partial training: a client trains a slice of the global model, as wide as its `Bucket.width`.

    server:  sends each client the slice of w that `slicing.make_plan` picks for it in this round
    client:  w_i <- the slice, then local training by cross-entropy
    server:  w   <- entry by entry the weighted mean over the clients that hold it; the rest stays

HeteroFL, Federated Dropout and FedRolex differ only in the plan. They have in common:

* Clients have equal weights, as released; weighting="samples" is DFRD's Eq. 1. Clients without
  samples have weight 0.
* In the head, a client sends and affects only the rows of its own classes (label_split). A class
  that no client has keeps its row.
* masked_loss sets the logits of classes that the client lacks to 0 before the loss, as HeteroFL and
  FedRolex do by default; to 0, not to minus infinity, so that they still count in the softmax's
  sum. DFRD's authors do not use it.
* A client keeps the slice that it trained last. "Trained" evaluation scores that slice, "received"
  the slice of the coming round. `GlobalModel` scores the whole model.
* Norms use batch statistics, also in evaluation. HeteroFL scores the whole model with statistics of
  all training data, as `Scoring.global_statistics` does.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.bucket import Bucket, init_variables
from fedjax_ht.core.context import Context
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import GlobalModel, Method, Wire
from fedjax_ht.core.trees import Array, PyTree
from fedjax_ht.core.wire import FIRST_ROWS, Masked, Metadata, dense
from fedjax_ht.methods.shared import slicing
from fedjax_ht.methods.shared.averaging import Weighting, client_weights, sent_samples
from fedjax_ht.methods.shared.heads import head_of, rows_of
from fedjax_ht.methods.shared.supervised import own_classes, train_model
from fedjax_ht.models.sliced import parameter_axes


class Uplink(NamedTuple):
    """A client's trained slice.

    Attributes:
      base: the extractor's parameters.
      head: Masked(float32 [C, 1 + K], bool [C]), the head's rows, their bias first.
      classes: Metadata(bool [C]), the rows that count: those of the classes in the client's
        training samples, or all.
      num_samples: Metadata(int32), the client's number of training samples; () for an unweighted
        mean.
    """

    base: PyTree
    head: Masked
    classes: Metadata
    num_samples: Metadata | tuple


def slice_plan(
    network: Bucket,
    rate: float,
    mode: slicing.Mode,
    *,
    ctx: Context,
    client_id: Array,
    per_layer: bool = False,
) -> slicing.Plan:
    """Makes a client's plan for a round, the same at server and client.

    Args:
      network: the bucket of the whole network.
      rate: the client's width rate.
      mode: the rule that cuts slices, see `slicing`.
      ctx: the context of the client or of the server; its round and its shared key are read.
      client_id: the client's id, an int32 scalar, which seeds random plans; None for other modes.
      per_layer: True draws every layer separately, see `PreActResNet.channels`.
    """
    widths = network.module.base.channels(per_layer).widths
    key = None
    if mode == "random":
        assert ctx.shared_key is not None  # as in every round
        key = jax.random.fold_in(ctx.shared_key, client_id)
    return slicing.make_plan(widths, rate, mode, ctx.round, key)


def uploaded_params(uplink: Uplink) -> PyTree:
    """Returns the uploaded parameters {"base", "head"}, of one client or stacked.

    Rows of the head that were not sent are 0.
    """
    return {"base": uplink.base, "head": head_of(dense(uplink.head), bias="first")}


def partial_training(
    name: str,
    mode: slicing.Mode,
    training: LocalTraining,
    per_layer: bool = False,
    *,
    weighting: Weighting = "uniform",
    masked_loss: bool = False,
    label_split: bool = True,
    whole_head: bool = False,
) -> Method:
    """Makes a partial-training method.

    Server state: the global model's parameters {"base", "head"}. Downlink: a slice of them. Client
    state: {"params", "stats"} of its own slice.

    Args:
      name: the method's name.
      mode: the rule that cuts slices, see `slicing`.
      training: the recipe of local training.
      per_layer: mode "random" draws every layer's channels separately, as released; else channels
        that an identity shortcut adds to each other are drawn together.
      weighting: weights of the mean, equal or the clients' numbers of training samples.
      masked_loss: logits of classes that the client lacks are 0 in its loss, the default of
        HeteroFL and FedRolex.
      label_split: a client sends, and affects, only the head's rows of its own classes.
      whole_head: clients send the rows of all classes, for a server that uses their models
        further; the mean still takes those of `label_split`.
    """

    def plan_of(federation, bucket, ctx, client_id):
        whole = federation.server_model
        return slice_plan(
            whole, bucket.width, mode, ctx=ctx, client_id=client_id, per_layer=per_layer
        )

    def axes_of(federation, params):
        return parameter_axes(federation.global_model.module, params, per_layer)

    def broadcast(federation, bucket, server, ctx):
        plan = plan_of(federation, bucket, ctx, ctx.info.id)
        return slicing.extract(server, axes_of(federation, server), plan)

    # the server knows the sent rows if all are sent
    pattern = FIRST_ROWS if whole_head or not label_split else None

    def client_update(bucket, client, downlink, data, ctx):
        classes = own_classes(data, bucket.num_classes)
        client, result = train_model(
            training, bucket, client, data, ctx, classes=classes if masked_loss else None
        )
        counted = classes if label_split else jnp.ones_like(classes)
        sent = jnp.ones_like(classes) if whole_head else counted
        uplink = Uplink(
            base=client["params"]["base"],
            head=Masked(rows_of(client["params"]["head"], bias="first"), sent, pattern),
            classes=Metadata(counted),
            num_samples=sent_samples(ctx, weighting),
        )
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        slices = []
        for bucket in slicing.widest_first(federation):
            uploads = received[bucket.name]
            uplink = uploads.uplink
            plan_for = functools.partial(plan_of, federation, bucket, ctx)
            # A plan is each client's own in mode "random", and the bucket's in the others.
            plan = jax.vmap(plan_for)(uploads.info.id) if mode == "random" else plan_for(None)
            slices.append(
                slicing.Slices(
                    params=uploaded_params(uplink),
                    weights=client_weights(uploads, uplink.num_samples),
                    classes=uplink.classes.value & uplink.head.mask,  # a defence may drop rows
                    plan=plan,
                )
            )
        widths = federation.global_model.module.base.channels(per_layer).widths
        return slicing.scatter_mean(server, axes_of(federation, server), widths, slices), {}

    def init_server(federation, key):
        return init_variables(federation.global_model, key)["params"]

    def receive(bucket, client, downlink, data, ctx):
        return client | {"params": downlink}

    if mode == "random":  # each client's channels are its own
        wire = Wire(positions="own", server_reads="uploads")
    else:
        wire = Wire(positions="nested", server_reads="sums")
    return Method(
        name=name,
        training=training,
        check=functools.partial(slicing.require_slices, name),
        init_server=init_server,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        global_model=GlobalModel(lambda server: server),
        # The round or its key tells the server which channels a client has trained.
        wire=wire._replace(redrawn=mode != "static"),
    )
