"""HeteroFL (Diao et al., ICLR 2021): a client trains the first channels of each layer.

    client:  of rate R holds channels 0 .. ceil(R K) - 1 of a layer of K, and trains them by
             cross-entropy
    server:  averages each entry over the clients that hold it, see `shared.partial_training`
    predict: the client's slice; the whole network in a column of its own
    up:      W_R - (C - C_i) (K_R + 1): the slice, of the head the rows of the client's classes
    down:    W_R: the first channels of every layer
    paper:   https://arxiv.org/abs/2010.01264

Smaller models lie in larger ones. Channels outside the widest client's model are never trained.
"""

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.partial_training import partial_training


@checked
@documented_by(partial_training)
def heterofl(training: LocalTraining, **options) -> Method:
    """Makes HeteroFL; options as for `shared.partial_training.partial_training`."""
    return partial_training("heterofl", "static", training, False, **options)
