"""Federated Dropout (Caldas et al., 2018), in DFRD's form: every client trains random channels of
each layer.

    in each round a client of rate R draws ceil(R K) of a layer's K channels; see `partial_training`
    for the round

Settled here:
* Clients have rates of their own, as in DFRD; Caldas et al. use one for all.
* Channels that an identity shortcut adds to each other are drawn together. per_layer draws every
  layer for itself, as released: the slice then adds different channels of the global model.
* Nothing is rescaled, neither weights nor activations.
"""

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.averaging import Weighting
from fedjax_ht.methods.shared.partial_training import partial_training


@checked
def feddropout(
    training: LocalTraining,
    weighting: Weighting = "uniform",
    masked_loss: bool = False,
    label_split: bool = True,
    whole_head: bool = False,
    per_layer: bool = False,
) -> Method:
    """Arguments as of `partial_training`."""
    options = (weighting, masked_loss, label_split, whole_head, per_layer)
    return partial_training("feddropout", "random", training, *options)
