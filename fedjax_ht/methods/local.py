"""Local: every client trains alone and nothing is sent. The floor that working together has to
beat."""

from fedjax_ht.core.bounds import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Wire
from fedjax_ht.methods.shared.supervised import train_model


@checked
def local(training: LocalTraining) -> Method:
    """Cross-entropy on the client's own data; only participants train."""

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        return client, (), {"loss": result.loss}

    return Method(
        name="local",
        training=training,
        init_server=lambda federation, key: (),
        broadcast=lambda federation, bucket, server, ctx: (),
        client_update=client_update,
        server_update=lambda federation, server, received, ctx: (server, {}),
        wire=Wire(server_reads="sums"),
    )
