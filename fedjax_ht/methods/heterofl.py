"""HeteroFL (Diao et al., ICLR 2021): every client trains the first channels of each layer, as many
as its rate allows.

    a client of rate R holds channels 0 .. ceil(R K) - 1 of a layer of K; see `partial_training` for
    the round

Smaller models lie in larger ones. What lies outside the widest client's model is never trained.
"""

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.averaging import Weighting
from fedjax_ht.methods.shared.partial_training import partial_training


@checked
def heterofl(
    training: LocalTraining,
    weighting: Weighting = "uniform",
    masked_loss: bool = False,
    label_split: bool = True,
    whole_head: bool = False,
) -> Method:
    """Arguments as of `partial_training`."""
    return partial_training(
        "heterofl", "static", training, weighting, masked_loss, label_split, whole_head
    )
