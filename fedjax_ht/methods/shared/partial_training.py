"""Partial training: a client trains a slice of the global model, as wide as its width rate
(`Bucket.width`).

    server:  sends each client the slice of w that `slicing.make_plan` picks for it in this round
    client:  w_i <- the slice, then local training by cross-entropy
    server:  w   <- entry by entry the weighted mean over the clients that hold it; the rest stays

HeteroFL, Federated Dropout and FedRolex differ in the plan alone. What is settled for all of them:

* Clients weigh alike, as released; weighting="samples" is DFRD's Eq. 1. One without samples has no
  weight.
* A client has a say in the head's rows of its own classes only, and sends no others (label_split).
  A class that nobody has keeps its row.
* masked_loss sets the logits of classes that the client lacks to 0 before the loss, as HeteroFL and
  FedRolex do by default; to 0, not to minus infinity, so that they still count in the softmax's
  sum. DFRD's authors leave it off.
* A client holds the slice that it trained last. "Trained" evaluation scores that, "received" the
  slice of the coming round; of `global_params` evaluation scores the whole model.
* Norms go by the statistics of the batch, in evaluation too. HeteroFL scores the whole model by
  statistics of all training data; `SimulationOptions.global_statistics` does.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.federation import Federation, init_variables
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Context, Method, PyTree, Received, Wire
from fedjax_ht.core.wire import Masked, Metadata
from fedjax_ht.methods.shared.averaging import Weighting, client_weights, sent_samples
from fedjax_ht.methods.shared.heads import head_of, rows_of
from fedjax_ht.methods.shared.slicing import Mode, Plan, Slices, extract, make_plan, scatter_mean
from fedjax_ht.methods.shared.supervised import own_classes, train_model
from fedjax_ht.models.sliced import parameter_axes


class Uplink(NamedTuple):
    """A client's trained slice.

    Attributes:
      base: the extractor's parameters.
      head: Masked(float32 [C, 1 + K], bool [C]), the head's rows, their bias first.
      classes: Metadata(bool [C]), the rows that count: of the classes that the client has training
        samples of, or all.
      num_samples: Metadata(int32), or () where it weighs nothing.
    """

    base: PyTree
    head: Masked
    classes: Metadata
    num_samples: Metadata | tuple


def slice_plan(
    federation: Federation,
    rate: float,
    mode: Mode,
    ctx: Context,
    client_id: jax.Array | None,
    per_layer: bool = False,
) -> Plan:
    """The plan of a client in a round, the same for server and client.

    Args:
      federation: whose global model is cut.
      rate: the client's.
      mode: how.
      ctx: of the client or of the server; its round and its shared key count.
      client_id: int32 scalar; random plans differ by it, others do not read it.
      per_layer: every layer is drawn for itself, see `PreActResNet.channels`.
    """
    widths = federation.global_model.module.base.channels(per_layer).widths
    key = jax.random.fold_in(ctx.shared_key, client_id) if mode == "random" else None
    return make_plan(widths, rate, mode, ctx.round, key)


def uploaded_params(uplink: Uplink) -> PyTree:
    """The parameters that a client, or with a leading axis each client, uploaded, {"base", "head"};
    rows of the head that were not sent mean nothing."""
    return {"base": uplink.base, "head": head_of(uplink.head.values, bias="first")}


def partial_training(
    name: str,
    mode: Mode,
    training: LocalTraining,
    weighting: Weighting = "uniform",
    masked_loss: bool = False,
    label_split: bool = True,
    whole_head: bool = False,
    per_layer: bool = False,
) -> Method:
    """The method of this name and mode.

    Server state: the global model's parameters {"base", "head"}. Downlink: a slice of them. Client
    state: {"params", "stats"} of its own slice.

    Args:
      name: of the method.
      mode: how slices are cut.
      training: local training.
      weighting: of the mean, equal or by the clients' numbers of training samples.
      masked_loss, label_split: see the module's text.
      whole_head: clients send the rows of all classes, as a server needs that goes on to use their
        models; the mean still takes those of `label_split`.
      per_layer: of mode random, see `slice_plan`.
    """

    def check(federation):
        if federation.global_model is None:
            raise ValueError(
                f"{name} trains slices of one network; make the federation by "
                "make_sliced_federation "
                "(in a config: set model.rates)"
            )

    def axes_of(federation, params):
        return parameter_axes(federation.global_model.module, params, per_layer)

    def broadcast(federation, bucket, server, ctx):
        plan = slice_plan(federation, bucket.width, mode, ctx, ctx.info.id, per_layer)
        return extract(server, axes_of(federation, server), plan)

    def client_update(bucket, client, downlink, data, ctx):
        classes = own_classes(data, bucket.num_classes)
        client, result = train_model(
            training, bucket, client, data, ctx, classes=classes if masked_loss else None
        )
        counted = classes if label_split else jnp.ones_like(classes)
        sent = jnp.ones_like(classes) if whole_head else counted
        uplink = Uplink(
            client["params"]["base"],
            Masked(rows_of(client["params"]["head"], bias="first"), sent),
            Metadata(counted),
            sent_samples(ctx, weighting),
        )
        return client, uplink, {"loss": result.loss}

    def arrived_slices(federation, rate: float, received: Received, ctx) -> Slices:
        uplink, info = received.uplink, received.info

        def plan_of(client_id):
            return slice_plan(federation, rate, mode, ctx, client_id, per_layer)

        plan = jax.vmap(plan_of)(info.id) if mode == "random" else plan_of(None)
        weights = client_weights(received, uplink.num_samples)
        return Slices(uploaded_params(uplink), weights, uplink.classes.value, plan)

    def server_update(federation, server, received, ctx):
        widest_first = sorted(federation.buckets, key=lambda bucket: -bucket.width)
        slices = [arrived_slices(federation, b.width, received[b.name], ctx) for b in widest_first]
        widths = federation.global_model.module.base.channels(per_layer).widths
        return scatter_mean(server, axes_of(federation, server), widths, slices), {}

    return Method(
        name=name,
        training=training,
        check=check,
        init_server=lambda federation, key: init_variables(federation.global_model, key)["params"],
        broadcast=broadcast,
        receive=lambda bucket, client, downlink, data, ctx: client | {"params": downlink},
        client_update=client_update,
        server_update=server_update,
        global_params=lambda server: server,
        wire=Wire(
            positions="own" if mode == "random" else "nested",
            # each client's channels are its own
            server_reads="uploads" if mode == "random" else "sums",
            # its round, or its key, says which channels a client has trained
            redrawn=mode != "static",
        ),
    )
