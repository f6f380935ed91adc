"""FedIT (Zhang et al., ICASSP 2024): clients average low-rank adapters, A and B apart.

    client:  A_i, B_i, head_i <- A, B, head, then local epochs of cross-entropy
    server:  A <- sum_i n_i A_i / sum_i n_i over the uploads of one architecture and rank, and B and
             the head likewise
    predict: the client's copy of the averaged adapters and head
    up:      L + H: adapters and head
    down:    L + H: adapters and head
    fits:    adapters of one rank (`config.model.lora`), on one trained extractor or a few
    paper:   https://arxiv.org/abs/2305.05644

Settled here:
* The mean of A times the mean of B is not the mean of the products, which `flexlora` and `flora`
  take.
* The paper has one rank. With several, each rank has its own mean; `hetlora` joins them.
* The head is averaged with the adapters, by samples. Batch statistics stay with each client.
"""

from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.adapters import require_adapters
from fedjax_ht.methods.shared.architectures import averaging_method, plain_update
from fedjax_ht.methods.shared.averaging import Weighting


@checked
def fedit(training: LocalTraining, weighting: Weighting = "samples") -> Method:
    """Makes FedIT, described in the module's docstring.

    Args:
      training: local training.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    return averaging_method(
        "fedit", training, plain_update(training, weighting), check=require_adapters("fedit")
    )
