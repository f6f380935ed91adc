"""Per-FedAvg (Fallah et al., NeurIPS 2020): a first model from which one step fits each client.

    client:  w_i <- w; on each batch, split in parts D, D' and D'', w_i descends along
             g - alpha H g at w_i' = w_i - alpha grad F(w_i; D), g being grad F(w_i'; D') and H the
             Hessian of F(.; D'') at w_i, or along g alone ("first_order"); uploads w_i
    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads of one architecture
    predict: w; after `scoring.adapt_epochs` epochs of steps of length alpha along grad F on the
             client's own samples, the model as it is then
    up:      W: all parameters
    down:    W: all parameters
    fits:    one architecture or a few, and scores after a little training
    paper:   https://arxiv.org/abs/2002.07948

Settled here:
* A step takes two or three times the recipe's batch; every second or third of its samples is a
  part. Norms see one part at a time. The gradient of a part without samples is zero.
* H g is exact, as a derivative of the gradient. The paper's "HF" takes a difference of gradients,
  which rounds badly in float32.
* The mean weighs clients by samples, as in PFLlib; the paper's is uniform.
* Clients tune by plain SGD in epochs of the recipe's batches, which all methods of a run have in
  common; the paper takes a single step.
* The paper has one architecture; here every architecture has its own w. Batch statistics stay with
  each client, as in `fedavg`.
"""

import dataclasses
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.check.options import Positive, SearchRange, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.local_training import LocalTraining, Loss
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.architectures import averaging_method
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.supervised import batch_loss, train_client, train_model


@checked
def perfedavg(
    training: LocalTraining,
    alpha: Annotated[Positive, SearchRange(0.001, 0.1)] = 0.01,
    variant: Literal["hessian", "first_order"] = "hessian",
    weighting: Weighting = "samples",
) -> Method:
    """Makes Per-FedAvg, described in the module's docstring.

    Args:
      training: local training, with the steps of the module's docstring.
      alpha: length of the step that fits the model to a client.
      variant: descent along g - alpha H g ("hessian"), or along g ("first_order").
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    parts = 3 if variant == "hessian" else 2
    recipe = dataclasses.replace(training, batch_size=parts * training.batch_size)
    tuning = dataclasses.replace(training, optimizer=optax.sgd(alpha), schedule=None)

    def client_update(bucket, client, downlink, data, ctx):
        def loss(params, stats, batch: Batch, key) -> Loss:
            if len(batch.mask) < parts:
                raise ValueError(
                    "privacy.unit is 'sample', but a step of perfedavg compares samples; use "
                    "'client' or 'upload'"
                )

            def of_part(w, number):
                part = jax.tree.map(lambda a: a[number::parts], batch)
                return batch_loss(bucket, w, stats, part, jax.random.fold_in(key, number))

            slope_of = jax.value_and_grad(of_part, has_aux=True)

            def step(w, direction):
                return jax.tree.map(lambda a, b: a - alpha * b, w, direction)

            w = lax.stop_gradient(params)
            (value, new), way = slope_of(step(w, slope_of(w, 0)[1]), 1)
            if variant == "hessian":
                way = step(way, jax.jvp(lambda w: slope_of(w, 2)[1], (w,), (way,))[1])
            # the sum is zero, and its gradient is the direction of descent
            along = jax.tree.map(lambda a, b, c: jnp.sum(a * (b - c)), way, params, w)
            return Loss(value + sum(jax.tree.leaves(along)), new)

        if ctx.adapt_epochs is None:
            client, result = train_client(recipe, loss, bucket, client, data, ctx.key)
        else:
            client, result = train_model(tuning, bucket, client, data, ctx)
        uplink = ModelUplink(client["params"], sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    return averaging_method("perfedavg", recipe, client_update)
