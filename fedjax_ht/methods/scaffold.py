"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates correct each client's gradient.

    client:  w_i <- w; T steps w_i <- w_i - eta (g + c - c_i); c_i' = c_i - c + (w - w_i) / (T eta);
             uploads w_i - w and c_i' - c_i, and keeps c_i'
    server:  w <- w + eta_g mean_i (w_i - w), uniform over the uploads of one architecture;
             c <- c + (1 / N) sum_i (c_i' - c_i), N being its clients
    predict: the client's copy of the model
    up:      2 W: the changes of all parameters and of the control variate
    down:    2 W: all parameters and the server's control variate
    fits:    one architecture or a few, clients that differ and take part often
    paper:   https://arxiv.org/abs/1910.06378

Settled here:
* Option II of the paper. T counts the steps that the client takes, a short last batch included, and
  eta is that of the round. c and c_i start at 0, so that c is the mean of all c_i as long as no
  upload is lost: a client whose upload is lost keeps its new c_i.
* The optimiser must be plain SGD: with momentum, decay or clipping a client's change is not T eta
  times a mean gradient. Other recipes are rejected.
* The paper has one architecture; here every architecture has its own server model, c and N. Batch
  statistics stay with each client, as in `fedavg`.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import Positive, SearchRange, checked
from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.local_training import LocalTraining, num_steps
from fedjax_ht.core.method import Method, View
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.methods.shared import architectures
from fedjax_ht.methods.shared.averaging import client_weights, weighted_mean
from fedjax_ht.methods.shared.corrections import (
    learning_rate,
    require_plain_sgd,
    train_corrected,
)
from fedjax_ht.methods.shared.supervised import train_model


class Pair(NamedTuple):
    """Parameters and a control variate, or the changes of both.

    Attributes:
      params: {"base", "head"}.
      control: the same structure.
    """

    params: PyTree
    control: PyTree


@checked
def scaffold(
    training: LocalTraining, server_lr: Annotated[Positive, SearchRange(0.1, 1.0)] = 1.0
) -> Method:
    """Makes SCAFFOLD, described in the module's docstring.

    Args:
      training: local training, by SGD without momentum, decay and clipping.
      server_lr: eta_g, the server's learning rate.

    Raises:
      ValueError: the optimizer is not such SGD. One line.
    """
    require_plain_sgd("scaffold", training)

    def init_server(federation, key):  # a pair for each architecture
        models = architectures.init_parts(federation, key)
        return [Pair(model, jax.tree.map(jnp.zeros_like, model)) for model in models]

    def init_client(bucket, ctx):
        client = init_variables(bucket, ctx.key)
        return client | {"control": jax.tree.map(jnp.zeros_like, client["params"])}

    def receive(bucket, client, downlink, data, ctx):
        return client | {"params": downlink.params}

    def client_update(bucket, client, downlink, data, ctx):
        correction = jax.tree.map(jnp.subtract, downlink.control, client["control"])
        corrected = train_corrected(training, lambda params: correction)
        trained, result = train_model(corrected, bucket, client, data, ctx)
        steps = num_steps(training, data.splits["train"].count)
        length = steps * learning_rate(training, data)
        params = jax.tree.map(jnp.subtract, trained["params"], downlink.params)

        def control_change(shift, way):
            # c_i' - c_i = -c - (w_i - w) / (T eta); a client that did not move changes nothing.
            moves = length > 0
            return jnp.where(moves, -shift - way / jnp.where(moves, length, 1), 0)

        control = jax.tree.map(control_change, downlink.control, params)
        trained |= {"control": jax.tree.map(jnp.add, client["control"], control)}
        return trained, Pair(params, control), {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        new = []
        sizes = architectures.sizes_of(federation)
        for uploads, old, size in zip(architectures.joined(federation, received), server, sizes):
            weights = client_weights(uploads)
            way = weighted_mean(uploads.uplink.params, weights)
            change = weighted_sum(uploads.uplink.control, weights / size)
            pair = Pair(
                jax.tree.map(lambda w, d: w + server_lr * d, old.params, way),
                jax.tree.map(jnp.add, old.control, change),
            )
            new.append(select(weights.any(), pair, old))
        return new, {}

    return architectures.averaging_method(
        "scaffold",
        training,
        client_update,
        init_server=init_server,
        init_client=init_client,
        receive=receive,
        server_update=server_update,
        view=View(invariant=architectures.apart_from_mean("control", kept="control")),
    )
