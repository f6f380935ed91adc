"""FedSA-LoRA (Guo et al., ICLR 2025): clients share A, and keep B and the head for themselves.

    client:  A_i <- A, then local epochs of cross-entropy on A_i, B_i and head_i
    server:  A <- sum_i n_i A_i / sum_i n_i
    predict: the averaged A with the client's B and head
    up:      L_A: all A
    down:    L_A: all A
    fits:    adapters (`config.model.lora`), clients that differ much
    paper:   https://arxiv.org/abs/2410.01463

Settled here:
* The paper has one rank. Here rank r has the first r rows of A, and a row is averaged over the
  clients that hold it.
* Batch statistics stay with each client.
"""

from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.methods.shared import adapters
from fedjax_ht.methods.shared.adapters import AdapterUplink
from fedjax_ht.methods.shared.averaging import sent_samples
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.models.adapters import A, B


@checked
def fedsa_lora(training: LocalTraining) -> Method:
    """Makes FedSA-LoRA, described in the module's docstring.

    Args:
      training: local training.
    """

    def init_server(federation, key):
        models = adapters.init_models(federation, key)
        return [adapters.part_of(model.rows, A) for model in models]

    def broadcast(federation, bucket, server, ctx):
        rows = adapters.state_for(federation, bucket, server)
        return adapters.first_rows(rows, adapters.adapted(bucket).rank)

    def receive(bucket, client, downlink, data, ctx):
        params = client["params"]
        private = adapters.part_of(params["base"], B)
        base = adapters.united(adapters.from_rows(downlink), private)
        return client | {"params": params | {"base": base}}

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        rows = adapters.to_rows(adapters.part_of(client["params"]["base"], A))
        uplink = AdapterUplink(rows, (), sent_samples(ctx, "samples"))
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        new = []
        joined = adapters.joined(federation, received, adapters.with_held)
        for old, (uploads, held) in zip(server, joined):
            weights = adapters.sample_weights(uploads)
            new.append(adapters.mean_by_rows(uploads.uplink.rows, weights, held, old))
        return new, {}

    return Method(
        name="fedsa_lora",
        training=training,
        needs=Needs(classes=False),
        check=adapters.require_adapters("fedsa_lora"),
        init_server=init_server,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        wire=Wire(positions="nested", server_reads="sums"),
    )
