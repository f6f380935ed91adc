"""DS-FL (Itahara et al., 2021): means of predictions on public samples, sharpened, are labels.

    client:  epochs of KL(t(x) || f_i(x)) over the last round's public samples, then local epochs of
             CE on its own; uploads the probabilities p_i(x) = softmax(f_i(x)) of the P public
             samples that this round asks for
    server:  t(x) <- softmax(mean_i p_i(x) / T), entropy reduction averaging; its own model trains
             on KL(t(x) || f(x)) over the same samples
    predict: the client's own model; the server's in a column of its own
    up:      P C: a row of probabilities for each public sample of the round
    down:    P C: the targets of the last round's, with indices of both rounds' samples
    fits:    any models; unlabelled public samples, far more than a client's own
    paper:   https://arxiv.org/abs/2008.06180

Settled here:
* Probabilities are averaged, as in the paper; other code averages logits. With a mean in [0, 1] and
  T = 0.1 a target's classes differ by at most a factor of e^10.
* The server's model has the architecture of Federation.shared (model.shared), or is the global
  model of a sliced federation. It starts from random weights, trains without labels, and is not
  sent.
* A client that was absent learns from the newest targets. The mean is uniform over clients that
  arrive and have samples; probabilities are those of evaluation mode.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.options import Count, Positive, SearchRange, checked
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.bucket import Bucket, head_scores, init_variables
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import GlobalModel, Method, Needs, Wire
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.losses import masked_mean
from fedjax_ht.methods.shared import public
from fedjax_ht.methods.shared.averaging import client_weights, weighted_mean


class Server(NamedTuple):
    """The server's state.

    Attributes:
      targets: the latest targets.
      model: {"params", "stats"}, the server's own model.
    """

    targets: public.Targets
    model: PyTree


def server_bucket(federation: Federation) -> Bucket:
    """Returns the architecture of the server's model."""
    return federation.global_model or federation.shared


def sharpened(mean: jax.Array, temperature: float) -> jax.Array:
    """Reduces the entropy of probabilities float [P, C]: softmax(mean / temperature)."""
    return jax.nn.softmax(mean / temperature)


def entropy(probabilities: jax.Array) -> jax.Array:
    """Computes the entropy of probabilities float [P, C] by row, in nats; 0 log 0 is 0."""
    tiny = jnp.finfo(jnp.float32).tiny
    return -jnp.sum(probabilities * jnp.log(jnp.maximum(probabilities, tiny)), -1)


def divergence(scores: jax.Array, targets: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes the mean over samples of KL(targets || softmax(scores)), float [B, C] each."""
    return masked_mean(optax.softmax_cross_entropy(scores, targets) - entropy(targets), mask)


@checked
def dsfl(
    training: LocalTraining,
    *,
    temperature: Annotated[Positive, SearchRange(0.05, 1.0)] = 0.1,
    public_per_round: Count = 1000,
    digest_epochs: Count = 1,
    digest_batch_size: Count = 100,
) -> Method:
    """Makes DS-FL, described in the module's docstring.

    Args:
      training: local training, and the optimiser of all phases and of the server.
      temperature: T; below 1 it sharpens.
      public_per_round: public samples of a round, P.
      digest_epochs, digest_batch_size: epochs and batch size of training on public samples.
    """
    recipe = public.recipe_on_public(training, digest_batch_size, digest_epochs)
    digest = public.digesting(recipe, divergence)

    def init_server(federation, key):
        targets = public.no_targets(public_per_round, federation.num_classes)
        return Server(targets, init_variables(server_bucket(federation), key))

    def broadcast(federation, bucket, server, ctx):
        return public.send(federation, bucket, server.targets, ctx)

    def probabilities(bucket, client, x, mask):
        return jax.nn.softmax(head_scores(bucket, client, x, mask))

    def server_update(federation, server, received, ctx):
        joined = gather_received(received)
        weights = client_weights(joined)
        values = sharpened(weighted_mean(joined.uplink, weights), temperature)
        targets = public.renewed(federation, server.targets, values, weights.any(), ctx)
        data = ctx.data._replace(round=ctx.round)
        model, loss = digest(server_bucket(federation), server.model, data, targets, ctx.key)
        new = select(weights.any(), Server(targets, model), server)
        return new, {"server_loss": loss, "entropy": entropy(values).mean()}

    return Method(
        name="dsfl",
        training=training,
        needs=Needs(public_samples=public_per_round),
        init_server=init_server,
        broadcast=broadcast,
        client_update=public.digest_and_train(training, recipe, divergence, probabilities),
        server_update=server_update,
        global_model=GlobalModel(
            params=lambda server: server.model["params"],
            stats=lambda server: server.model["stats"],
            bucket=server_bucket,
        ),
        wire=Wire(server_reads="sums", redrawn=True),
    )
