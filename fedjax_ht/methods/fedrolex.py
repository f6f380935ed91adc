"""FedRolex (Alam et al., NeurIPS 2022): every client trains a window of each layer's channels,
which rolls on.

    in round t a client of rate R holds channels t, t + 1, ... t + ceil(R K) - 1, modulo K; see
    `partial_training`

Settled here:
* The window moves forward by one channel a round, as published; the released index goes backward.
* All layers count the same t, so that layers of different widths fall out of step, as released.
"""

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.averaging import Weighting
from fedjax_ht.methods.shared.partial_training import partial_training


@checked
def fedrolex(
    training: LocalTraining,
    weighting: Weighting = "uniform",
    masked_loss: bool = False,
    label_split: bool = True,
    whole_head: bool = False,
) -> Method:
    """Arguments as of `partial_training`."""
    return partial_training(
        "fedrolex", "rolling", training, weighting, masked_loss, label_split, whole_head
    )
