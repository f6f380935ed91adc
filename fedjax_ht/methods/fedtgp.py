"""FedTGP (Zhang et al., AAAI 2024): the server trains global prototypes to keep classes apart.

    client:  L = CE + lambda * R(features, global prototypes); uploads the mean feature of every
             class that it has samples of
    server:  Phat_c = F(e_c), F = Linear-ReLU-Linear on a table of embeddings e; S epochs over the
             uploaded prototypes P of cross-entropy over -||P - Phat_c||, the true class pushed
             delta further (Eq. 10); delta = min(largest distance between class centres, tau)
             (Eq. 9)
    predict: the class of the nearest global prototype
    up:      C_i K: class means of features
    down:    C K, once there are prototypes: trained class prototypes
    paper:   https://arxiv.org/abs/2401.03230

The second rule, "own_prototype", predicts among the client's classes, the third by its head.

Settled here:
* variant="released" is HtFLlib: delta is the largest nearest-neighbour distance, R the mean square
  between each sample and its prototype with lambda 10 (the paper: Euclidean distance between class
  means, lambda 0.1). The script in the authors' repository also has the released form, so the
  published numbers come from it.
* Both variants train on mini-batches with SGD, as released; the paper names neither. Eqs. 5 and 10
  are sums over classes and clients; here, as released, a step descends on the mean over a
  mini-batch. By SGD the sum of ten uploads is ten times that step (server_lr).
* The prototypes uploaded are those of the model just trained. The released code uploads those of
  the model before training, which its authors' Algorithm 1 does not: not reproduced.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.options import Count, NonNegative, Positive, SearchRange, checked
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.federation import require_one_feature_width
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View
from fedjax_ht.core.server_training import RowTraining, train_on_rows
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import FIRST_ROWS, Masked
from fedjax_ht.losses import adaptive_margin, margin_contrastive
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.methods.shared.variants import Variant, settled
from fedjax_ht.models.layers import uniform_fan_in

FORMS = prototypes.FORMS  # values of options that default to None, by variant


class Server(NamedTuple):
    """The server's state.

    Attributes:
      trained: {"embeddings" float32 [C, K], and F's "w1", "b1", "w2", "b2" unless F is ablated}.
      prototypes: float32 [C, K], Phat.
      ready: bool scalar, False until the first round has trained them.
    """

    trained: PyTree
    prototypes: jax.Array
    ready: jax.Array


def init_trained(key: jax.Array, num_classes: int, dim: int, use_f: bool) -> PyTree:
    """Draws `Server.trained`: embeddings from N(0, 1), F as torch initialises linear layers."""
    keys = jax.random.split(key, 5)
    trained = {"embeddings": jax.random.normal(keys[0], (num_classes, dim))}
    if use_f:
        shapes = {"w1": (dim, dim), "b1": (dim,), "w2": (dim, dim), "b2": (dim,)}
        for k, (name, shape) in zip(keys[1:], shapes.items()):
            trained[name] = uniform_fan_in(k, shape, dim)
    return trained


def global_prototypes(trained: PyTree) -> jax.Array:
    """Computes Phat = F(e), float32 [C, K]; the embeddings themselves if F is ablated."""
    if "w1" not in trained:
        return trained["embeddings"]
    hidden = jax.nn.relu(trained["embeddings"] @ trained["w1"] + trained["b1"])
    return hidden @ trained["w2"] + trained["b2"]


def published(server: Server) -> Masked:
    """Masks the server's prototypes, so that none is sent before the first are trained."""
    ready = jnp.full(len(server.prototypes), server.ready)
    return Masked(server.prototypes, ready, FIRST_ROWS)


@checked
def fedtgp(
    training: LocalTraining,
    *,
    weight: Annotated[NonNegative | None, SearchRange(0.01, 10.0)] = None,
    variant: Variant = "paper",
    tau: Annotated[NonNegative, SearchRange(1.0, 100.0)] = 100.0,
    server_epochs: Count = 100,
    server_lr: Positive = 0.01,
    server_batch_size: Count = 10,
    margin: NonNegative | None = None,
    use_f: bool = True,
) -> Method:
    """Makes FedTGP, described in the module's docstring.

    Args:
      training: the recipe of local training.
      weight: lambda, the regulariser's weight; None takes the variant's, 0.1 (paper) or 10
        (released).
      variant: form of the method, the paper's or the released code's; see the module's docstring
        for their differences.
      tau: cap of the adaptive margin.
      server_epochs: number S of passes over the uploaded prototypes per round.
      server_lr, server_batch_size: learning rate and batch size of the server's SGD.
      margin: a fixed margin, an ablation; 0 is the standard contrastive loss. None takes the
        adaptive margin.
      use_f: True trains the prototypes through F; False, an ablation, the prototypes themselves.

    Returns:
      The method; its `check` rejects models whose feature widths differ.

    Example:
      >>> method = fl.fedtgp(fl.LocalTraining(optax.sgd(0.1)), server_epochs=10)
      >>> method.name, method.rules[0]
      ('fedtgp', 'prototype')
    """
    strength = settled(variant, {"weight": weight}, FORMS)["weight"]
    recipe = RowTraining(optax.sgd(server_lr), server_epochs, server_batch_size)

    def init_server(federation, key):
        trained = init_trained(key, federation.num_classes, federation.feature_dim, use_f)
        return Server(trained, global_prototypes(trained), jnp.array(False))

    def broadcast(federation, bucket, server, ctx):
        return published(server)

    def client_update(bucket, client, downlink, data, ctx):
        pull = prototypes.regulariser(downlink, strength, variant)
        client, result = train_model(training, bucket, client, data, ctx, regulariser=pull)
        uplink = prototypes.prototype_uplink(prototypes.class_sums(bucket, client, data))
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        values, present = prototypes.uploaded(gather_received(received))  # [P, C, K], [P, C]
        if margin is None:
            centres = prototypes.mean_by_class(values, present)
            delta = adaptive_margin(centres, present.any(0), tau, variant)
        else:
            delta = jnp.float32(margin)

        def loss(trained, batch, mask, key):
            return margin_contrastive(
                batch.prototypes, batch.labels, mask, global_prototypes(trained), delta
            )

        rows = prototypes.as_rows(values, present)
        trained, final_loss = train_on_rows(
            recipe, loss, server.trained, rows, rows.valid, key=ctx.key
        )
        new = Server(trained, global_prototypes(trained), server.ready | present.any())
        return new, {"server_loss": final_loss, "margin": delta}

    return Method(
        name="fedtgp",
        training=training,
        check=require_one_feature_width,
        init_server=init_server,
        init_client=prototypes.init_client,
        receive=prototypes.receive,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        predict=prototypes.scores,
        rules=prototypes.RULES,
        view=View(prototypes=published),
    )
