"""FedRE (Yao et al., CVPR 2026): clients send a random mixture of class means, and its labels.

    client:  head_i <- head, then local epochs of cross-entropy; with the mean feature P_i^c of each
             of its classes and w_c ~ U(0, 1) normalised to sum 1, drawn anew in each round, uploads
             r_i = sum_c w_c P_i^c and w
    server:  one epoch over the pairs (r_i, w) of -sum_c w_c log softmax(head(r_i))_c, summed over a
             batch
    predict: the client's extractor and the global head, once received
    up:      K + C_i: a mixture of class means of features, and its labels
    down:    H: the head that they train
    fits:    any models of one feature width, few classes or many; a client of one class sends its
             class mean
    paper:   https://arxiv.org/abs/2511.22265

Settled here:
* The head goes to all clients, as in the paper and in the released form for one architecture; the
  released form for several trains a head that it never sends.
* The server's rate is 0.001, that of the form that runs; the other has 0.01. The loss is a sum, not
  a mean, over a batch of 32, as released, so the step grows with the number of clients.
* Features are taken in evaluation mode. An absent client's pair is not used again. Labels count as
  sent; the paper's table of costs omits them.
* The labels disclose a client's classes, but not their numbers of samples. A client of one class
  has nothing to mix, so its upload leaks as much as a prototype (docs/leaks.md).
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.options import Count, Positive, SearchRange, checked
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.batches import class_means
from fedjax_ht.core.bucket import logits
from fedjax_ht.core.federation import require_equal_heads
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.server_training import RowTraining, train_on_rows
from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.heads import head_bucket, init_head, receive_head
from fedjax_ht.methods.shared.supervised import train_model


class Uplink(NamedTuple):
    """A client's upload.

    Attributes:
      mixture: float32 [K], the weighted mean of its class means.
      labels: Masked float32 [C], the weights, of the client's classes.
    """

    mixture: jax.Array
    labels: Masked


def random_weights(present: jax.Array, key: jax.Array) -> jax.Array:
    """Draws weights of the classes `present` bool [C], float32 [C] of sum 1; zeros without any."""
    drawn = jnp.where(present, jax.random.uniform(key, present.shape), 0)
    return drawn / jnp.maximum(drawn.sum(), jnp.finfo(jnp.float32).tiny)


@checked
def fedre(
    training: LocalTraining,
    server_lr: Annotated[Positive, SearchRange(0.0001, 0.1)] = 0.001,
    server_batch_size: Count = 32,
) -> Method:
    """Makes FedRE, described in the module's docstring.

    Args:
      training: local training.
      server_lr, server_batch_size: learning rate and batch size of the server's SGD.
    """
    recipe = RowTraining(optax.sgd(server_lr), epochs=1, batch_size=server_batch_size)

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        sums = prototypes.class_sums(bucket, client, data)
        present = sums.counts > 0
        weights = random_weights(present, jax.random.fold_in(ctx.key, 1))
        uplink = Uplink(weights @ class_means(sums), Masked(weights, present))
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        bucket, joined = head_bucket(federation), gather_received(received)
        mixtures, labels = joined.uplink
        sent = labels.mask & joined.arrived[:, None]
        # A client without samples has no class, and sends a mixture of nothing.
        valid = sent.any(1)
        rows = Uplink(
            jnp.where(valid[:, None], mixtures, 0), Masked(jnp.where(sent, labels.values, 0), sent)
        )

        def loss(head, batch: Uplink, mask, key):
            log_shares = jax.nn.log_softmax(logits(bucket, {"head": head}, batch.mixture))
            return -jnp.sum(jnp.where(mask[:, None], batch.labels.values * log_shares, 0))

        head, final_loss = train_on_rows(recipe, loss, server, rows, valid, key=ctx.key)
        return head, {"server_loss": final_loss}

    return Method(
        name="fedre",
        training=training,
        check=require_equal_heads,
        init_server=init_head,
        receive=receive_head,
        client_update=client_update,
        server_update=server_update,
    )
