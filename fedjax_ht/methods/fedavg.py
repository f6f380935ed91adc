"""FedAvg (McMahan et al., AISTATS 2017): clients of one architecture average their parameters.

    client:  w_i <- w, then local epochs of cross-entropy
    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads that arrived
    predict: the client's copy of the model
    up:      W: all parameters
    down:    W: all parameters
    paper:   https://arxiv.org/abs/1602.05629

Batch statistics are never averaged: each client keeps its own (as PFLlib does). The server's model
is scored in a federation of slices (`make_sliced_federation`), which keep none.
"""

from fedjax_ht.check.options import checked
from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import GlobalModel, Method, Needs, Wire
from fedjax_ht.methods.shared.architectures import plain_update, receive_model
from fedjax_ht.methods.shared.averaging import Weighting, mean_model


@checked
def fedavg(training: LocalTraining, weighting: Weighting = "samples") -> Method:
    """Makes FedAvg, described in the module's docstring.

    Args:
      training: the recipe of local training.
      weighting: weights of the average, the clients' numbers of training samples ("samples") or
        equal for all clients that have any ("uniform").

    Returns:
      The method; its `check` rejects a federation of several architectures.

    Example:
      >>> method = fl.fedavg(fl.LocalTraining(optax.sgd(0.1)))
      >>> method.name, method.wire.server_reads
      ('fedavg', 'sums')
    """

    def check(federation):
        if len(federation.buckets) > 1:
            names = ", ".join(b.name for b in federation.buckets)
            raise ValueError(
                "fedavg averages whole models and needs one architecture for all clients, got "
                f"{names}; choose a group of one architecture, or a method that averages each "
                "architecture by itself, such as fedprox"
            )

    def init_server(federation, key):
        return init_variables(federation.buckets[0], key)["params"]

    def server_update(federation, server, received, ctx):
        (received,) = received.values()
        return mean_model(server, received), {}

    return Method(
        name="fedavg",
        training=training,
        needs=Needs(classes=False),
        check=check,
        init_server=init_server,
        receive=receive_model,
        client_update=plain_update(training, weighting),
        server_update=server_update,
        global_model=GlobalModel(lambda server: server),
        wire=Wire(server_reads="sums"),
    )
