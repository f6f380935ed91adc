"""FedRolex (Alam et al., NeurIPS 2022): a client trains a rolling window of each layer's channels.

    client:  of rate R in round t holds channels t, t + 1, ... t + ceil(R K) - 1, modulo K, and
             trains them by cross-entropy
    server:  averages each entry over the clients that hold it, see `shared.partial_training`
    predict: the client's slice; the whole network in a column of its own
    up:      W_R - (C - C_i) (K_R + 1): the slice, of the head the rows of the client's classes
    down:    W_R: a window of channels that moves on by one per round
    paper:   https://arxiv.org/abs/2212.01548

Settled here:
* The window moves forward by one channel a round, as published; the released index goes backward.
* All layers count the same t, so that layers of different widths fall out of step, as released.
"""

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.partial_training import partial_training


@checked
@documented_by(partial_training)
def fedrolex(training: LocalTraining, **options) -> Method:
    """Makes FedRolex; options as for `shared.partial_training.partial_training`."""
    return partial_training("fedrolex", "rolling", training, False, **options)
