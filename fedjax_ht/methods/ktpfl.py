"""KT-pFL (Zhang et al., NeurIPS 2021): each client is taught by a mixture of clients, learned.

    client:  epochs of KL(s(t_n(x) / T) || s(f_n(x) / T)) over the last round's public samples, s
             being the softmax, then local epochs of CE on its own; uploads z_n(x) = f_n(x), in
             logits, of the P public samples that this round asks for
    server:  c <- c - eta grad_c [sum_n mean_x KL(s(sum_m c_nm z_m(x) / T) || s(z_n(x) / T))
             + rho |c - 1/N|^2], c_nm = 1/N at first, and t_n(x) <- sum_m c_nm z_m(x)
    predict: the client's own model
    up:      P C: a row of logits for each public sample of the round
    down:    P C: the client's own targets of the last round's, with indices of both rounds' samples
    fits:    any models; clients of which some are alike, few enough for N^2 coefficients
    paper:   https://arxiv.org/abs/2111.02862

Settled here:
* The text's KL teaches the coefficients; the authors' code takes a mean square and scales the rate
  by 5 until the mean gradient is near 0.01.
* The coefficients take their step on the same uploads as the targets, and before them, because an
  exchange has one upload.
* For clients that are absent or have no samples, rows do not change and columns have weight 0: the
  present clients share their coefficients of a row evenly, so that its sum stays. With all clients
  present this is the printed form. Absent clients also get a target, for their next participation.
* KL at temperature T is not scaled by T^2. Each round draws new public samples.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import Count, NonNegative, Positive, SearchRange, checked
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.core.trees import Array, select
from fedjax_ht.losses import kl_divergence
from fedjax_ht.methods.shared import public
from fedjax_ht.methods.shared.averaging import client_weights, set_rows


class Server(NamedTuple):
    """The server's state.

    Attributes:
      coefficients: float32 [N, N], c.
      targets: float32 [N, P, C], each client's targets.
      shared: mask and positions of all clients' targets; its values are zeros.
    """

    coefficients: Array
    targets: Array
    shared: public.Targets


def mixed(coefficients: jax.Array, scores: jax.Array, present: jax.Array) -> jax.Array:
    """Mixes the logits of the present clients for each client, float [N, P, C].

    Args:
      coefficients: c, float [N, N].
      scores: logits, float [N, P, C]; 0 for absent clients.
      present: bool [N]; they share the coefficients of absent clients evenly.
    """
    # Coefficients may be negative, so that scaling a row to its sum would have no bound.
    rest = coefficients.sum(1) - (coefficients * present).sum(1)
    share = rest / jnp.maximum(present.sum(), 1)
    return jnp.einsum("nm,mpc->npc", (coefficients + share[:, None]) * present, scores)


def knowledge_loss(
    coefficients: jax.Array,
    scores: jax.Array,
    present: jax.Array,
    *,
    temperature: float,
    rho: float,
) -> jax.Array:
    """Computes the loss of the coefficients; arguments as for `mixed`."""
    teachers = mixed(coefficients, scores, present) / temperature
    everyone = jnp.ones(scores.shape[1], bool)

    def of_client(teacher, own_scores):
        return kl_divergence(teacher, own_scores / temperature, everyone)

    distances = jax.vmap(of_client)(teachers, scores)
    apart = jnp.where(present[:, None], coefficients - 1 / len(present), 0)
    return jnp.sum(jnp.where(present, distances, 0)) + rho * jnp.sum(apart**2)


@checked
def ktpfl(
    training: LocalTraining,
    *,
    temperature: Positive = 10.0,
    coefficient_lr: Annotated[Positive, SearchRange(0.001, 1.0)] = 0.1,
    rho: NonNegative = 0.7,
    public_per_round: Count = 1000,
    digest_epochs: Count = 1,
    digest_batch_size: Count = 100,
) -> Method:
    """Makes KT-pFL, described in the module's docstring.

    Args:
      training: local training, and the optimiser of both phases.
      temperature: T, of the softmax of scores and targets.
      coefficient_lr, rho: eta, and the weight of the pull towards equal coefficients.
      public_per_round: public samples of a round, P.
      digest_epochs, digest_batch_size: epochs and batch size of training on public samples.
    """
    recipe = public.recipe_on_public(training, digest_batch_size, digest_epochs)

    def distance(scores, targets, mask):
        return kl_divergence(targets / temperature, scores / temperature, mask)

    def init_server(federation, key):
        clients, classes = federation.num_clients, federation.num_classes
        return Server(
            coefficients=jnp.full((clients, clients), 1 / clients),
            targets=jnp.zeros((clients, public_per_round, classes)),
            shared=public.no_targets(public_per_round, classes),
        )

    def broadcast(federation, bucket, server, ctx):
        rows = server.shared.rows._replace(values=server.targets[ctx.info.id])
        return public.send(federation, bucket, server.shared._replace(rows=rows), ctx)

    def server_update(federation, server, received, ctx):
        joined, clients = gather_received(received), federation.num_clients
        counts = client_weights(joined) > 0
        present = set_rows(jnp.zeros(clients, bool), joined, True, counts)
        scores = set_rows(jnp.zeros_like(server.targets), joined, joined.uplink, counts)
        loss, gradient = jax.value_and_grad(knowledge_loss)(
            server.coefficients, scores, present, temperature=temperature, rho=rho
        )
        # Rows of absent clients have no loss, and columns no scores: they stay.
        coefficients = server.coefficients - coefficient_lr * gradient * present * present[:, None]
        targets = mixed(coefficients, scores, present)
        exist = public.renewed(
            federation, server.shared, jnp.zeros_like(targets[0]), counts.any(), ctx
        )
        new = select(counts.any(), Server(coefficients, targets, exist), server)
        return new, {"knowledge_loss": loss}

    return Method(
        name="ktpfl",
        training=training,
        needs=Needs(public_samples=public_per_round),
        init_server=init_server,
        broadcast=broadcast,
        client_update=public.digest_and_train(training, recipe, distance),
        server_update=server_update,
        wire=Wire(redrawn=True),
    )
