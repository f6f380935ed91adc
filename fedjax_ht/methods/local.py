"""Local: every client trains alone and nothing is sent, the baseline that federation has to beat.

client:  local epochs of cross-entropy, when it takes part in a round
server:  nothing
predict: the client's own model
up:      0: nothing
down:    0: nothing
"""

from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.methods.shared.supervised import train_model


@checked
def local(training: LocalTraining) -> Method:
    """Makes local training: cross-entropy on the client's data; only participants train.

    Args:
      training: the recipe of local training.
    """

    def init_server(federation, key):
        return ()

    def broadcast(federation, bucket, server, ctx):
        return ()

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        return client, (), {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        return server, {}

    return Method(
        name="local",
        training=training,
        needs=Needs(classes=False),
        init_server=init_server,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        wire=Wire(server_reads="sums"),
    )
