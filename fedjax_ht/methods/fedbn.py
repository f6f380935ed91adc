"""FedBN (Li et al., ICLR 2021): clients average all but their normalisation layers.

    client:  takes all parameters of w but those of norms, then local epochs of cross-entropy
    server:  w <- sum_i n_i w_i / sum_i n_i of the parameters outside of norms, over the uploads of
             one architecture
    predict: the averaged parameters and the client's norms
    up:      W - N: all parameters but those of norms
    down:    W - N: all parameters but those of norms
    fits:    one architecture with norms or a few, clients whose inputs differ more than their
             classes
    paper:   https://arxiv.org/abs/2102.07623

Settled here:
* A norm is a normalising module (`fl.Norm`, or flax's batch, layer, group, instance and RMS norms),
  or a module with batch statistics. Public code looks for "bn" in the layers' names, which misses a
  residual block's "downsample.1" and names such as "norm1".
* Scale, shift and statistics of a norm stay with the client. In a model without norms this is
  FedAvg.
* The paper has one architecture and equal weights; here every architecture has its own mean,
  weighted by samples as in FedAvg, or weighting="uniform".
"""

from fedjax_ht.check.options import checked
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.architectures import Part, averaging_method, plain_update
from fedjax_ht.methods.shared.averaging import Weighting
from fedjax_ht.methods.shared.norms import filled_in, norm_paths, without


def outside_norms(bucket: Bucket, params: PyTree) -> PyTree:
    """Shares all parameters but those of norms; for an `architectures.Part`."""
    return without(params, norm_paths(bucket))


@checked
def fedbn(training: LocalTraining, weighting: Weighting = "samples") -> Method:
    """Makes FedBN, described in the module's docstring.

    Args:
      training: local training.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    part = Part(outside_norms, filled_in)
    return averaging_method("fedbn", training, plain_update(training, weighting, part), part)
