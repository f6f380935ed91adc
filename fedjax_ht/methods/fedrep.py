"""FedRep (Collins et al., ICML 2021): clients fit their own head, then the shared extractor.

    client:  base_i <- base; E_h epochs of cross-entropy on the head, the extractor being fixed,
             then local epochs on the extractor, the head being fixed; uploads base_i
    server:  base <- sum_i n_i base_i / sum_i n_i over the uploads of equal extractors
    predict: the averaged extractor and the client's head
    up:      W - H: the extractor
    down:    W - H: the extractor
    fits:    equal extractors, clients with few classes each and long head training
    paper:   https://arxiv.org/abs/2102.07078

Settled here:
* E_h is 10 and the extractor has the recipe's epochs, 1 by default, as in the authors' script for
  CIFAR-10; PFLlib has 1 and 1. The optimiser restarts for the extractor.
* Batch norms normalise by the batch in both parts of training, as in PFLlib, and their statistics
  stay with each client.
* As in `fedper`, the head is that of `SplitModel`, and a mean is over clients whose extractors have
  parameters of equal names and shapes. It is weighted by samples, as in the authors' code.
"""

import dataclasses

import jax

from fedjax_ht.check.options import Count, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.architectures import EXTRACTOR, averaging_method
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.supervised import train_model


@checked
def fedrep(
    training: LocalTraining,
    head_epochs: Count = 10,
    weighting: Weighting = "samples",
) -> Method:
    """Makes FedRep, described in the module's docstring.

    Args:
      training: local training, of the extractor; the head takes the same with `head_epochs`.
      head_epochs: E_h, passes over the client's samples in which its head is trained.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    of_head = dataclasses.replace(training, epochs=head_epochs, steps=None)

    def client_update(bucket, client, downlink, data, ctx):
        client, _ = train_model(of_head, bucket, client, data, ctx, part="head")
        ctx = ctx._replace(key=jax.random.fold_in(ctx.key, 1))
        client, result = train_model(training, bucket, client, data, ctx, part="base")
        uplink = ModelUplink(client["params"]["base"], sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    return averaging_method("fedrep", training, client_update, EXTRACTOR)
