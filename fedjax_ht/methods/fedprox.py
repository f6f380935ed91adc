"""FedProx (Li et al., MLSys 2020): local training is pulled towards the server's model.

    client:  w_i <- w; each step descends on CE + (mu / 2) |w_i - w|^2
    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads of one architecture
    predict: the client's copy of the model
    up:      W: all parameters
    down:    W: all parameters
    fits:    one architecture or a few, clients that differ moderately and train long
    paper:   https://arxiv.org/abs/1812.06127

Settled here:
* The paper has one architecture; here every architecture has its own mean.
* The mean is weighted by samples, as in FedAvg and PFLlib. The paper's Algorithm 2 draws clients by
  their samples, with equal weights: weighting="uniform".
* mu is 0.01, the smallest of the paper's values. PFLlib's default is 0, which is FedAvg.
* Clipping, if any, applies to the sum of both gradients. Batch statistics stay with each client, as
  in `fedavg`.
"""

from typing import Annotated

from fedjax_ht.check.options import NonNegative, SearchRange, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.architectures import averaging_method
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.corrections import pull, train_corrected
from fedjax_ht.methods.shared.supervised import train_model


@checked
def fedprox(
    training: LocalTraining,
    mu: Annotated[NonNegative, SearchRange(0.001, 1.0)] = 0.01,
    weighting: Weighting = "samples",
) -> Method:
    """Makes FedProx, described in the module's docstring.

    Args:
      training: local training.
      mu: strength of the pull towards the server's model.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """

    def client_update(bucket, client, downlink, data, ctx):
        pulled = train_corrected(training, pull(mu, downlink))
        client, result = train_model(pulled, bucket, client, data, ctx)
        uplink = ModelUplink(client["params"], sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    return averaging_method("fedprox", training, client_update)
