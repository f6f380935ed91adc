"""FedDropout, federated dropout (Caldas et al., 2018): a client trains random channels.

    client:  of rate R holds ceil(R K) of a layer's K channels, drawn anew in each round, and trains
             them by cross-entropy
    server:  averages each entry over the clients that hold it, see `shared.partial_training`
    predict: the client's slice; the whole network in a column of its own
    up:      W_R - (C - C_i) (K_R + 1): the slice, of the head the rows of the client's classes
    down:    W_R: random channels, drawn for each client and round
    paper:   https://arxiv.org/abs/1812.07210

Settled here, in DFRD's form:
* Each client has its own rate, as in DFRD; Caldas et al. use one rate for all.
* Channels that an identity shortcut adds to each other are drawn together. per_layer draws every
  layer independently, as released: the slice then adds different channels of the global model.
* Nothing is rescaled, neither weights nor activations.
"""

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.partial_training import partial_training


@checked
@documented_by(partial_training)
def feddropout(training: LocalTraining, *, per_layer: bool = False, **options) -> Method:
    """Makes Federated Dropout; options as for `shared.partial_training.partial_training`."""
    return partial_training("feddropout", "random", training, per_layer, **options)
