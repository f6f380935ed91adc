"""FedMD (Li and Wang, 2019): clients agree on logits of public samples, and learn from them.

    client:  in its first round epochs of CE on all public samples; in each round
             digest   an epoch of mean |f_i(x) - z(x)| over the last round's public samples,
             revisit  local epochs of CE on its own samples,
             uploads f_i(x), in logits, of the P public samples that this round asks for
    server:  z(x) <- mean_i f_i(x)
    predict: the client's own model
    up:      P C: a row of logits for each public sample of the round
    down:    P C: the means of the last round's, with indices of both rounds' samples
    fits:    any models; a public set like the clients' data, labelled for the first phase
    paper:   https://arxiv.org/abs/1910.03581

Settled here:
* P public samples are drawn anew in each round. FL-bench appends its public batches in each round
  and always uses the first five. This is not ported.
* The paper's round (upload, digest, revisit) starts with the digest here: digest and revisit follow
  the uploads of the round before. A client that was absent digests the newest means.
* The loss of the digest is the mean absolute error, as in the authors' code; digest_loss="mse"
  is FL-bench's.
* The authors train the first phase until accuracy stops rising; here it takes pretrain_epochs, in
  batches of the digest, and the first revisit is its second half. Set 0 for a public set without
  labels.
* Optimiser states restart in each phase of each round; the authors keep Adam's. The mean is uniform
  over clients that arrive and have samples. Uploaded logits are those of evaluation mode.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import Count, Whole, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, Wire, init_model
from fedjax_ht.core.samples import PUBLIC
from fedjax_ht.losses import masked_mean
from fedjax_ht.methods.shared import public
from fedjax_ht.methods.shared.supervised import train_model

DigestLoss = Literal["mae", "mse"]


def absolute_error(scores: jax.Array, targets: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes the mean absolute error of logits float [B, C], over samples and classes."""
    return masked_mean(jnp.mean(jnp.abs(scores - targets), -1), mask)


def squared_error(scores: jax.Array, targets: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes the mean squared error of logits float [B, C], over samples and classes."""
    return masked_mean(jnp.mean((scores - targets) ** 2, -1), mask)


DISTANCES = {"mae": absolute_error, "mse": squared_error}


@checked
def fedmd(
    training: LocalTraining,
    *,
    digest_loss: DigestLoss = "mae",
    public_per_round: Count = 5000,
    digest_epochs: Whole = 1,
    digest_batch_size: Count = 256,
    pretrain_epochs: Whole = 10,
) -> Method:
    """Makes FedMD, described in the module's docstring.

    Args:
      training: local training, and the optimiser of all phases.
      digest_loss: the loss of the digest, "mae" or "mse".
      public_per_round: public samples of a round, P.
      digest_epochs, digest_batch_size: epochs and batch size of the digest. With 0 epochs uploads
        change no client: this is local training after a start on the public labels.
      pretrain_epochs: epochs of the first phase on the public labels.
    """
    recipe = public.recipe_on_public(training, digest_batch_size, max(1, digest_epochs))
    digest = public.digesting(recipe, DISTANCES[digest_loss])
    first = public.recipe_on_public(training, digest_batch_size, max(1, pretrain_epochs))

    def check(federation):
        if pretrain_epochs and not federation.public_set.is_labelled:
            raise ValueError(
                "fedmd first trains on the labels of the public set, whose classes are not those "
                "of the clients' data; set pretrain_epochs to 0, or use another dataset.public"
            )

    def init_client(bucket, ctx):
        return init_model(bucket, ctx) | {"is_pretrained": jnp.zeros((), bool)}

    def init_server(federation, key):
        return public.no_targets(public_per_round, federation.num_classes)

    def client_update(bucket, client, downlink, data, ctx):
        keys = jax.random.split(ctx.key, 3)
        in_round = ctx.adapt_epochs is None  # tuning is on the client's own samples alone
        if pretrain_epochs and in_round:
            whole = data.splits[PUBLIC]
            # Without samples no step is taken, so that only the first round pays for the phase.
            whole = whole._replace(count=jnp.where(client["is_pretrained"], 0, whole.count))
            shown = public.on_split(data, whole)
            client, _ = train_model(first, bucket, client, shown, ctx._replace(key=keys[0]))
        distance = jnp.zeros(())
        if digest_epochs and in_round:
            targets = public.received_targets(downlink)
            client, distance = digest(bucket, client, data, targets, keys[1])
        client, result = train_model(training, bucket, client, data, ctx._replace(key=keys[2]))
        client = client | {"is_pretrained": jnp.ones((), bool)}
        scores = public.outputs_of(bucket, client, data, downlink.requested.value)
        return client, scores, {"loss": result.loss, "digest_loss": distance}

    return Method(
        name="fedmd",
        training=training,
        check=check,
        needs=Needs(public_samples=public_per_round),
        init_client=init_client,
        init_server=init_server,
        broadcast=public.send,
        client_update=client_update,
        server_update=public.serve_mean,
        wire=Wire(server_reads="sums", redrawn=True),
    )
