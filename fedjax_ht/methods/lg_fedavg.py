"""LG-FedAvg (Liang et al., 2020): local extractors, one global head.

    client:  head_i <- head, then local epochs of cross-entropy on extractor and head
    server:  head <- sum_i n_i head_i / sum_i n_i over the uploads that arrived
    predict: the client's extractor and the global head
    up:      H: the head
    down:    H: the head
    paper:   https://arxiv.org/abs/2001.01523

Settled here:
* The mean is weighted by samples, as FedGen and HtFLlib run it as a baseline; weighting="uniform"
  is the authors' code.
* Every client starts from random weights. The authors' code starts from a checkpoint of FedAvg,
  which clients of different architectures cannot have.
* The head is that of `SplitModel`; the authors choose how many of the last layers are global.
"""

from fedjax_ht.check.options import checked
from fedjax_ht.core.federation import require_equal_heads
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.methods.shared.architectures import HEAD, plain_update
from fedjax_ht.methods.shared.averaging import Weighting, average_uploads
from fedjax_ht.methods.shared.heads import init_head, receive_head


@checked
def lg_fedavg(training: LocalTraining, weighting: Weighting = "samples") -> Method:
    """Makes LG-FedAvg, described in the module's docstring.

    Args:
      training: the recipe of local training.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    return Method(
        name="lg_fedavg",
        training=training,
        needs=Needs(classes=False),
        check=require_equal_heads,
        init_server=init_head,
        receive=receive_head,
        client_update=plain_update(training, weighting, HEAD),
        server_update=average_uploads,
        wire=Wire(server_reads="sums"),
    )
