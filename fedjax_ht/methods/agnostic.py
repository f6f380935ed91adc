"""Agnostic federated learning (Mohri et al., ICML 2019): a model for the worst mixture of clients.

    client:  F_i, the loss of w on its training samples; w_i <- w, then local epochs; uploads w_i
             and F_i
    server:  w <- sum_i lam_i w_i / sum_i lam_i over the uploads of one architecture, then lam <-
             P(lam + rate F) with F of the clients heard, P projecting onto the simplex
    predict: the client's copy of the model
    up:      W + 1: all parameters, and the loss
    down:    W: all parameters
    fits:    one architecture or a few, where the worst clients count
    paper:   https://arxiv.org/abs/1902.00146

Settled here:
* Clients of the paper send the gradient of one batch, and the loss on it. `training.steps=1` with
  plain SGD is that step, w - eta sum_i lam_i g_i / sum_i lam_i; F_i is of all training samples.
* The newest w is scored; the paper's is the mean over all rounds.
* Clients that were not heard keep their lam until the projection, which takes from them what the
  others gain, down to 0. At low participation whole rounds may have clients of lam 0 alone, and
  then w stays; a smaller rate helps.
* The paper has one architecture; here every architecture has its own w, and all have one lam. Batch
  statistics stay with each client, as in `fedavg`.
"""

import functools
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from optax.projections import projection_simplex

from fedjax_ht.check.options import Positive, SearchRange, checked
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.methods.shared.architectures import (
    init_parts,
    joined,
    part_for,
    receive_model,
    require_no_new_clients,
)
from fedjax_ht.methods.shared.averaging import client_weights, mean_or, set_rows
from fedjax_ht.methods.shared.supervised import own_loss, train_model


class Server(NamedTuple):
    """The server's state.

    Attributes:
      models: w of each architecture, in the order of `groups_of`.
      shares: float32 [num_clients], lam.
    """

    models: list[PyTree]
    shares: jax.Array


class Uplink(NamedTuple):
    """A client's model, and the loss of the one that it received."""

    params: PyTree
    loss: jax.Array


@checked
def agnostic(
    training: LocalTraining, rate: Annotated[Positive, SearchRange(0.001, 1.0)] = 0.01
) -> Method:
    """Makes agnostic federated learning, described in the module's docstring.

    Args:
      training: the recipe of local training.
      rate: step size of the clients' shares along their losses.
    """

    def init_server(federation, key):
        clients = federation.num_clients
        return Server(init_parts(federation, key), jnp.full(clients, 1 / clients))

    def broadcast(federation, bucket, server, ctx):
        return part_for(federation, bucket, server.models)

    def client_update(bucket, client, downlink, data, ctx):
        loss = own_loss(bucket, client, data)
        client, result = train_model(training, bucket, client, data, ctx)
        return client, Uplink(client["params"], loss), {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        models, raised = [], server.shares
        for uploads, old in zip(joined(federation, received), server.models):
            counted, own = client_weights(uploads), server.shares[uploads.info.id]
            models.append(mean_or(old, uploads.uplink.params, counted * own))
            raised = set_rows(raised, uploads, own + rate * uploads.uplink.loss, counted > 0)
        moved = (raised != server.shares).any()
        # without a move, another projection would only round
        shares = select(moved, projection_simplex(raised), server.shares)
        return Server(models, shares), {"largest_share": shares.max()}

    return Method(
        name="agnostic",
        training=training,
        needs=Needs(classes=False),
        check=functools.partial(require_no_new_clients, "agnostic"),
        init_server=init_server,
        broadcast=broadcast,
        receive=receive_model,
        client_update=client_update,
        server_update=server_update,
    )
