"""FedHeNN (Makhija et al., ICML 2022): representations of clients are aligned by their kernels.

    client:  local epochs of CE + eta t (1 - CKA(K_i, K)) in round t, K_i = F F^T being the kernel
             of its features F of the P public samples of the last round; uploads K_i of the P
             samples that this round asks for
    server:  K <- mean_i K_i
    predict: the client's own model
    up:      P P: the kernel of the round's public samples
    down:    P P: the mean kernel of the last round's, with indices of both rounds' samples
    fits:    any models, of any feature widths; few public samples, since each step passes them all
    paper:   https://arxiv.org/abs/2202.07757

Settled here:
* The paper's alignment samples are public here, with a new draw in each round. Rounds count from 0,
  so the weight in the first round with a mean kernel is eta.
* The term lowers the distance of kernels. Public code (MHFL) adds +CKA, which increases it, and
  squares the kernels once more. This is not ported.
* CKA is of centred kernels. In training, batch norms use the batch of public samples, whose
  statistics are discarded. Uploaded kernels are of evaluation mode.
* The mean is uniform over clients that arrive and have samples. P and eta are options here, because
  the paper was not available.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import Count, NonNegative, SearchRange, checked
from fedjax_ht.core.batches import inputs_at
from fedjax_ht.core.bucket import features, own_features
from fedjax_ht.core.local_training import LocalTraining, Loss
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.core.wire import dense
from fedjax_ht.methods.shared import public
from fedjax_ht.methods.shared.supervised import batch_loss, train_client


def alignment(kernel: jax.Array, other: jax.Array) -> jax.Array:
    """Computes the CKA of two kernels float [P, P], in [0, 1]; 0 if one is constant."""

    def centred(k):
        return k - k.mean(0) - k.mean(1)[:, None] + k.mean()

    a, b = centred(kernel), centred(other)
    # The square root has no gradient at 0.
    norms = jnp.maximum(jnp.sum(a * a) * jnp.sum(b * b), jnp.finfo(jnp.float32).tiny)
    return jnp.sum(a * b) / jnp.sqrt(norms)


@checked
def fedhenn(
    training: LocalTraining,
    eta: Annotated[NonNegative, SearchRange(0.001, 1.0)] = 0.01,
    public_per_round: Count = 100,
) -> Method:
    """Makes FedHeNN, described in the module's docstring.

    Args:
      training: local training.
      eta: weight of the distance between kernels; multiplied by the round.
      public_per_round: public samples of a round, P.
    """

    def init_server(federation, key):
        return public.no_targets(public_per_round, public_per_round)

    def client_update(bucket, client, downlink, data, ctx):
        targets = public.received_targets(downlink)
        mean, everyone = dense(targets.rows), jnp.ones(public_per_round, bool)
        shown = inputs_at(data, public.samples_at(data, targets.positions).indices)
        weight = jnp.where(targets.rows.mask.any(), eta * ctx.round, 0)

        def loss(params, stats, batch, key):
            keys = jax.random.split(key)
            aligned, _ = features(bucket, params, stats, shown, everyone, train=True, key=keys[1])
            value, stats = batch_loss(bucket, params, stats, batch, keys[0])
            distance = 1 - alignment(aligned @ aligned.T, mean)
            return Loss(value + weight * distance, stats)

        client, result = train_client(training, loss, bucket, client, data, ctx.key)
        rows = public.outputs_of(bucket, client, data, downlink.requested.value, own_features)
        return client, rows @ rows.T, {"loss": result.loss}

    return Method(
        name="fedhenn",
        training=training,
        needs=Needs(public_samples=public_per_round, classes=False),
        init_server=init_server,
        broadcast=public.send,
        client_update=client_update,
        server_update=public.serve_mean,
        wire=Wire(server_reads="sums", redrawn=True),
    )
