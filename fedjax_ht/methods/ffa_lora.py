"""FFA-LoRA (Sun et al., ICLR 2024): A is a fixed random matrix; only B is trained.

    client:  A from a seed; B_i, head_i <- B, head, then local epochs of cross-entropy on both
    server:  B <- sum_i n_i B_i / sum_i n_i, the head likewise
    predict: the client's copy of adapters and head
    up:      L_B + H: all B, and the head
    down:    L_B + H: all B, and the head
    fits:    adapters (`config.model.lora`), at half the message size
    paper:   https://arxiv.org/abs/2403.12313

Settled here:
* With one A the mean of B gives the mean of the products exactly.
* A is not sent: every downlink has its seed, eight bytes beside the payload, so clients keep
  nothing between rounds.
* The paper has one rank. Here rank r has the first r rows of A, and a column of B is averaged over
  the clients that hold it, each times the scale alpha / r of its rank.
* The head is averaged with B, by samples. Batch statistics stay with each client.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods.shared import adapters
from fedjax_ht.methods.shared.adapters import AdapterUplink, Model, Rows
from fedjax_ht.methods.shared.averaging import sent_samples
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.models.adapters import A, B


class Server(NamedTuple):
    """The server's state.

    Attributes:
      seed: uint32 [2], the data of the key that A is drawn from.
      models: each family's B and head.
    """

    seed: jax.Array
    models: list[Model]


class Downlink(NamedTuple):
    """A message to a client.

    Attributes:
      seed: Metadata(uint32 [2]).
      model: B of the client's rank, and the head.
    """

    seed: Metadata
    model: Model


def shared_rows(form: Rows, seed: jax.Array) -> Rows:
    """Draws all A of this form from a seed, as `lora` draws them; all ranks have equal rows."""
    key = jax.random.wrap_key_data(seed)
    leaves, structure = jax.tree.flatten(form)
    drawn = []
    for i, leaf in enumerate(leaves):
        of_layer = jax.random.fold_in(key, i)

        def row(j, of_layer=of_layer, leaf=leaf):
            bound = leaf.shape[-1] ** -0.5
            of_row = jax.random.fold_in(of_layer, j)
            return jax.random.uniform(of_row, leaf.shape[1:], leaf.dtype, -bound, bound)

        drawn.append(jax.vmap(row)(jnp.arange(leaf.shape[0])))
    return jax.tree.unflatten(structure, drawn)


@checked
def ffa_lora(training: LocalTraining) -> Method:
    """Makes FFA-LoRA, described in the module's docstring.

    Args:
      training: local training.
    """

    def init_server(federation, key):
        of_seed, of_models = jax.random.split(key)
        models = []
        for model in adapters.init_models(federation, of_models):
            models.append(model._replace(rows=adapters.part_of(model.rows, B)))
        return Server(jax.random.key_data(of_seed), models)

    def broadcast(federation, bucket, server, ctx):
        model = adapters.state_for(federation, bucket, server.models)
        extractor = adapters.adapted(bucket)
        rows = adapters.first_rows(model.rows, extractor.rank)
        rows = adapters.scaled(rows, 1 / extractor.scale)
        return Downlink(Metadata(server.seed), model._replace(rows=rows))

    def receive(bucket, client, downlink, data, ctx):
        form = adapters.part_of(adapters.to_rows(client["params"]["base"]), A)
        rows = adapters.united(shared_rows(form, downlink.seed.value), downlink.model.rows)
        base = adapters.from_rows(rows)
        return client | {"params": {"base": base, "head": downlink.model.head}}

    def client_update(bucket, client, downlink, data, ctx):
        params = client["params"]
        fixed = adapters.part_of(params["base"], A)

        def put(trained: PyTree) -> PyTree:
            return {"base": adapters.united(fixed, trained["b"]), "head": trained["head"]}

        trained = {"b": adapters.part_of(params["base"], B), "head": params["head"]}
        client, result = train_model(training, bucket, client, data, ctx, trained=trained, put=put)
        rows = adapters.to_rows(result.params["b"])
        uplink = AdapterUplink(rows, result.params["head"], sent_samples(ctx, "samples"))
        return client, uplink, {"loss": result.loss}

    def prepare(family, bucket, uplink):
        rows = adapters.scaled(uplink.rows, adapters.adapted(bucket).scale)
        return adapters.with_held(family, bucket, uplink._replace(rows=rows))

    def server_update(federation, server, received, ctx):
        models = []
        joined = adapters.joined(federation, received, prepare)
        for old, (uploads, held) in zip(server.models, joined):
            weights = adapters.sample_weights(uploads)
            rows = adapters.mean_by_rows(uploads.uplink.rows, weights, held, old.rows)
            models.append(Model(rows, adapters.mean_head(old.head, uploads)))
        return server._replace(models=models), {}

    return Method(
        name="ffa_lora",
        training=training,
        needs=Needs(classes=False),
        check=adapters.require_adapters("ffa_lora"),
        init_server=init_server,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        wire=Wire(positions="nested", server_reads="sums"),
    )
