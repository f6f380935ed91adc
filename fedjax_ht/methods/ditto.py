"""Ditto (Li et al., ICML 2021): a personal model beside FedAvg's, pulled towards it.

    client:  w_i <- w; on each batch w_i descends on CE, and the personal v_i on
             CE + (lam / 2) |v_i - w|^2; uploads w_i
    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads of one architecture
    predict: v_i
    up:      W: all parameters
    down:    W: all parameters
    fits:    one architecture or a few, clients that differ much; training costs twice FedAvg's
    paper:   https://arxiv.org/abs/2012.04221

Settled here:
* v_i is pulled towards w as received, and starts as the first w that the client receives. Both
  models have the same batches and number of steps; the paper allows others for v_i.
* lam is 1; the paper chooses 0.1, 1 or 2 for each client. PFLlib's default is 0, which is local
  training.
* The paper has one architecture; here every architecture has its own mean, weighted by samples.
  Batch statistics of both models stay with each client, as in `fedavg`.
"""

from typing import Annotated

from fedjax_ht.check.options import NonNegative, SearchRange, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.architectures import averaging_method
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.corrections import corrected, pull
from fedjax_ht.methods.shared.personal import init_both, receive_both, training_both


@checked
def ditto(
    training: LocalTraining,
    lam: Annotated[NonNegative, SearchRange(0.01, 10.0)] = 1.0,
    weighting: Weighting = "samples",
) -> Method:
    """Makes Ditto, described in the module's docstring.

    Args:
      training: local training, of both models.
      lam: strength of the pull of the personal model towards the server's.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    optimizer = training.optimizer

    def client_update(bucket, client, downlink, data, ctx):
        pulled = corrected(optimizer, pull(lam, downlink))
        optimizers = {"own": pulled, "shared": optimizer, "beside": optimizer}
        train_both = training_both(training, optimizers, lambda params: params["own"])
        client, _, result = train_both(bucket, client, data, ctx)
        uplink = ModelUplink(client["shared"]["params"], sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    return averaging_method(
        "ditto", training, client_update, init_client=init_both, receive=receive_both
    )
