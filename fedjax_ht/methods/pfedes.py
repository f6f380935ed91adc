"""pFedES (Yi et al., AAAI 2025): a tiny shared extractor redraws images, on which models learn.

    client:  F_i descends on (1 - mu) CE(F_i(x)) + mu CE(F_i(G(x))), G being fixed as received; then
             G_i <- G descends on CE(F_i(G_i(x))) for E + 10 epochs, F_i being fixed; uploads G_i
    server:  G <- sum_i n_i G_i / sum_i n_i, of the uploads
    predict: F_i(x), the client's own model
    up:      144 c + c + 8: G, of images with c channels
    down:    144 c + c + 8: G, of images with c channels
    fits:    any models of images, clients of few classes; E local epochs become 3 E + 10 passes
    paper:   https://arxiv.org/abs/2311.06879

Settled here:
* G is a convolution 3x3 to eight channels and one back to c, each before a ReLU: 443 numbers for
  colour. The last ReLU removes negative values, so G(x) does not have x's normalisation. Samples
  that are not images are rejected.
* Each image passes as x and then as G(x). Batch norms use the statistics of each pass in turn, by
  the authors' order of calls, although their networks have no norms. While G_i is trained, norms
  use the batch and discard its statistics, so a client's statistics are those of its own training.
* Both optimisers restart in each round. In the authors' code one optimiser of G serves all clients
  and rounds, so momentum passes from client to client.
* The authors count a client's validation and test samples in n_i; here it is those of training.
* They train by SGD at 0.01, momentum 0.9 and weight decay 1e-3, and clip the gradients of F_i and
  of G_i at norm 50 each: a bound in the optimizer applies to each. They score a client after the
  first step. Later scores would be the same, because the server sends no part of F_i.
* The link leads to an older form of the paper.
"""

import dataclasses
from typing import Annotated

import flax.linen as nn
import jax

from fedjax_ht.check.options import SearchRange, Share, Whole, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import image_shape, zeros
from fedjax_ht.core.local_training import LocalTraining, Loss, train
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.averaging import ModelUplink, average_uploads, sent_samples
from fedjax_ht.methods.shared.supervised import batch_loss, train_client
from fedjax_ht.models.layers import Conv

CHANNELS = 8  # of the hidden layer


class Redrawing(nn.Module):
    """G, two convolutions with a ReLU after each: float [B, H, W, C] -> float [B, H, W, C]."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nn.relu(Conv(CHANNELS, 3, padding=1, name="conv1")(x))
        return nn.relu(Conv(x.shape[-1], 3, padding=1, name="conv2")(hidden))


def redrawn(extractor: PyTree, batch: Batch) -> Batch:
    """Replaces a batch's images x, float [B, H, W, C], by G(x)."""
    images: PyTree = Redrawing().apply({"params": extractor}, batch.x)
    return batch._replace(x=images)


def require_images(federation: Federation) -> None:
    """Raises a ValueError unless the models take images."""
    for bucket in federation.buckets:
        image_shape(bucket.input_shape, "pFedES")


@checked
def pfedes(
    training: LocalTraining,
    mu: Annotated[Share, SearchRange(0.0, 1.0, log=False)] = 0.5,
    extra_epochs: Whole = 10,
) -> Method:
    """Makes pFedES, described in the module's docstring.

    Args:
      training: local training, of the client's model and then, with more epochs, of the extractor.
      mu: weight of the redrawn images in the loss of the client's model; the original images have
        the rest.
      extra_epochs: passes over the client's samples in which the extractor is trained, beyond
        `training.epochs`.
    """
    of_extractor = dataclasses.replace(training, epochs=training.epochs + extra_epochs, steps=None)

    def train_own(bucket, client, extractor, data, key):
        """Trains the client's model."""

        def loss(params, stats, batch: Batch, key) -> Loss:
            plain, stats = batch_loss(bucket, params, stats, batch, key)
            other_key, batch = jax.random.fold_in(key, 1), redrawn(extractor, batch)
            drawn, stats = batch_loss(bucket, params, stats, batch, other_key)
            return Loss((1 - mu) * plain + mu * drawn, stats)

        client, result = train_client(training, loss, bucket, client, data, key)
        return client, result.loss

    def train_extractor(bucket, client, extractor, data, key):
        """Trains the extractor through the client's model."""

        def loss(extractor, stats, batch: Batch, key) -> Loss:
            drawn = redrawn(extractor, batch)
            value, _ = batch_loss(bucket, client["params"], client["stats"], drawn, key)
            return Loss(value, stats)

        result = train(of_extractor, loss, extractor, (), data, key=key)
        return result.params

    def init_server(federation, key):
        return Redrawing().init(key, zeros(federation.buckets[0].input_shape))["params"]

    def client_update(bucket, client, downlink, data, ctx):
        client, own_loss = train_own(bucket, client, downlink, data, ctx.key)
        key = jax.random.fold_in(ctx.key, 1)
        extractor = train_extractor(bucket, client, downlink, data, key)
        uplink = ModelUplink(extractor, sent_samples(ctx, "samples"))
        return client, uplink, {"loss": own_loss}

    return Method(
        name="pfedes",
        training=training,
        needs=Needs(classes=False),
        check=require_images,
        init_server=init_server,
        client_update=client_update,
        server_update=average_uploads,
        wire=Wire(server_reads="sums"),
    )
