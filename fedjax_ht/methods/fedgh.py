"""FedGH (Yi et al., ACM MM 2023): the server trains one global head on the clients' prototypes.

    client:  head_i <- head, then local epochs of cross-entropy; uploads the mean feature P_i^c of
             every class that it has samples of
    server:  S epochs over the uploaded (P_i^c, c) of cross-entropy by the global head
    predict: the client's extractor and the global head, once received
    up:      C_i K: class means of features
    down:    H: the head that they train
    paper:   https://arxiv.org/abs/2303.13137

Settled here:
* The server's head is trained, by SGD on shuffled mini-batches as in HtFLlib. In the authors' code
  the optimiser trains another network, so that the global head keeps its random weights. This is
  not reproduced.
* server_batch_size=1 is the authors' one prototype at a time, without their clipping.
* Prototypes are class means of the trained model's features over all samples, in evaluation mode.
* The authors score the client's head after training, HtFLlib the global head: see
  `Scoring.state`.
"""

from typing import Annotated

import optax

from fedjax_ht.check.options import Count, Positive, SearchRange, checked
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.bucket import logits
from fedjax_ht.core.federation import require_equal_heads
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.server_training import RowTraining, train_on_rows
from fedjax_ht.losses import cross_entropy
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.heads import head_bucket, init_head, receive_head
from fedjax_ht.methods.shared.supervised import train_model


@checked
def fedgh(
    training: LocalTraining,
    *,
    server_epochs: Count = 1,
    server_lr: Annotated[Positive, SearchRange(0.001, 0.1)] = 0.01,
    server_batch_size: Count = 10,
) -> Method:
    """Makes FedGH, described in the module's docstring.

    Args:
      training: the recipe of local training.
      server_epochs: number S of passes over the uploaded prototypes per round.
      server_lr, server_batch_size: learning rate and batch size of the server's SGD.
    """
    recipe = RowTraining(optax.sgd(server_lr), server_epochs, server_batch_size)

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        uplink = prototypes.prototype_uplink(prototypes.class_sums(bucket, client, data))
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        bucket = head_bucket(federation)
        rows = prototypes.as_rows(*prototypes.uploaded(gather_received(received)))

        def loss(head, batch, mask, key):
            outputs = logits(bucket, {"head": head}, batch.prototypes)
            return cross_entropy(outputs, batch.labels, mask)

        head, final_loss = train_on_rows(recipe, loss, server, rows, rows.valid, key=ctx.key)
        return head, {"server_loss": final_loss}

    return Method(
        name="fedgh",
        training=training,
        check=require_equal_heads,
        init_server=init_head,
        receive=receive_head,
        client_update=client_update,
        server_update=server_update,
    )
