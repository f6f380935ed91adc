"""raFLoRA (Wu et al., 2026): FlexLoRA, each rank's product averaged over the clients that have it.

    client:  A_i, B_i, head_i <- what comes down, then local epochs of cross-entropy
    server:  D = sum_j sum_i n_i s_i b_ij a_ij / sum_i n_i, the inner sums over the clients of rank
             j and more, s_i = alpha / r_i, of each layer; D = U S V^T; sends rank r: A = V_r^T, B =
             U_r S_r / s_r; averages the heads by samples
    predict: the client's copy of adapters and head
    up:      L + H: adapters of the client's rank, and the head
    down:    L + H: adapters of the client's rank, and the head
    fits:    adapters of several ranks (`config.model.lora`), of which few are large
    paper:   https://arxiv.org/abs/2602.13486

a_ij and b_ij are the j-th row of A_i and the j-th column of B_i. FlexLoRA divides by the samples of
all clients, so that components which few have shrink in every round. With equal ranks both methods
are the same.

Settled here:
* The paper averages blocks between two ranks of the federation; its sum is the one above.
* Singular values are all in B, the scale s_i is in the mean, and missing components are dealt with
  as in `flexlora`. Components of a rank that nobody sends are not in D.
* The head is averaged by samples. Batch statistics stay with each client.
"""

from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.flexlora import decomposing


@checked
def raflora(training: LocalTraining) -> Method:
    """Makes raFLoRA, described in the module's docstring.

    Args:
      training: local training.
    """
    return decomposing("raflora", training, by_rank=True)
