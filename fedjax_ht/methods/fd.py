"""FD, federated distillation (Jeong et al., 2018): clients share class logits.

    client:  L = CE + lambda * R(logits, Z_y); uploads the mean logits of every class that it has
             samples of, gathered while training
    server:  Z_c <- the mean over this round's uploaders of class c; Z is replaced each round
    predict: the client's own model
    up:      C_i C: class means of logits
    down:    C' C: their means over the clients
    paper:   https://arxiv.org/abs/1811.11479

As a baseline it is also called FedDistill.

Settled here:
* R is the mean square on raw logits, the form behind the FedTGP and FedKTL tables.
  regulariser="soft_cross_entropy" takes softmax(Z_y) for the label, as HtFLlib did later. Its
  current form, a cross-entropy against raw logits, has no minimum and is not offered.
* A sample whose class has no row in Z does not contribute. In the first round Z has no rows.
* Each client receives the mean over all uploaders, including itself; Jeong et al. exclude the
  client.
* The mean is uniform over a class's uploaders. Logits are those of training mode before each step,
  over all epochs.
"""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.options import NonNegative, SearchRange, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import logits
from fedjax_ht.core.local_training import LocalTraining, Loss
from fedjax_ht.core.method import Method, Wire
from fedjax_ht.losses import cross_entropy, masked_mean, sample_prototype_mse
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.supervised import batch_features, train_client

Regulariser = Literal["mse_logits", "soft_cross_entropy"]


def soft_cross_entropy(
    outputs: jax.Array, labels: jax.Array, mask: jax.Array, targets: jax.Array, available: jax.Array
) -> jax.Array:
    """Computes the mean cross-entropy of outputs against softmax(targets[label]).

    A sample whose class has no target counts with loss 0.

    Args:
      outputs: logits, float [B, C].
      labels: the samples' classes, int [B].
      mask: bool [B], True for the samples that count.
      targets: logits of each class, float [C, C]; rows that are not available are never read.
      available: bool [C], the classes that have a target.

    Returns:
      Scalar, in nats.
    """
    known = available[labels]
    # Rows that are not available may be NaN: they are replaced before the softmax.
    soft_labels = jax.nn.softmax(jnp.where(known[:, None], targets[labels], 0))
    return masked_mean(jnp.where(known, optax.softmax_cross_entropy(outputs, soft_labels), 0), mask)


REGULARISERS = {"mse_logits": sample_prototype_mse, "soft_cross_entropy": soft_cross_entropy}


@checked
def fd(
    training: LocalTraining,
    weight: Annotated[NonNegative, SearchRange(0.01, 10.0)] = 1.0,
    regulariser: Regulariser = "mse_logits",
) -> Method:
    """Makes FD, described in the module's docstring.

    Args:
      training: the recipe of local training.
      weight: lambda, the regulariser's weight.
      regulariser: the regulariser R, see the module's docstring.
    """
    distance = REGULARISERS[regulariser]

    def init_server(federation, key):  # Z; its mask marks the classes that have been uploaded
        return prototypes.no_prototypes(federation.num_classes, federation.num_classes)

    def client_update(bucket, client, downlink, data, ctx):
        def loss(params, stats, batch: Batch, key) -> Loss:
            representations, stats = batch_features(bucket, params, stats, batch, key)
            outputs = logits(bucket, params, representations)
            value = cross_entropy(outputs, batch.y, batch.mask)
            value = value + weight * distance(
                outputs, batch.y, batch.mask, downlink.values, downlink.mask
            )
            return Loss(value, stats, rows=outputs)

        client, result = train_client(training, loss, bucket, client, data, ctx.key)
        assert result.class_sums is not None  # since the loss returns rows
        return client, prototypes.prototype_uplink(result.class_sums), {"loss": result.loss}

    return Method(
        name="fd",
        training=training,
        init_server=init_server,
        client_update=client_update,
        server_update=prototypes.serve_means,
        wire=Wire(server_reads="sums"),
    )
