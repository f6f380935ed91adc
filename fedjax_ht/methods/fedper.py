"""FedPer (Arivazhagan et al., 2019): clients average their extractors, heads stay personal.

    client:  base_i <- base, then local epochs of cross-entropy on extractor and head
    server:  base <- sum_i n_i base_i / sum_i n_i over the uploads of one architecture
    predict: the averaged extractor and the client's head
    up:      W - H: the extractor
    down:    W - H: the extractor
    paper:   https://arxiv.org/abs/1912.00818

Settled here:
* The paper has one architecture. Here a mean is over clients whose extractors have parameters of
  equal names and shapes, with any head.
* The personal layers are the head of `SplitModel`; the paper also keeps some of the last blocks.
* Batch statistics stay with each client, as in `fedavg`.
"""

from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.architectures import EXTRACTOR, averaging_method, plain_update
from fedjax_ht.methods.shared.averaging import Weighting


@checked
def fedper(training: LocalTraining, weighting: Weighting = "samples") -> Method:
    """Makes FedPer, described in the module's docstring.

    Args:
      training: the recipe of local training.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    return averaging_method(
        "fedper", training, plain_update(training, weighting, EXTRACTOR), EXTRACTOR
    )
