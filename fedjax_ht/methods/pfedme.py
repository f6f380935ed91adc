"""pFedMe (Dinh et al., NeurIPS 2020): personal models near the server's, by Moreau envelopes.

    client:  w_i, theta_i <- w; on each batch K steps theta_i <- theta_i - eta_p (g + lam (theta_i
             - w_i)), g the gradient of CE(theta_i), then one of w_i along lam (w_i - theta_i), the
             envelope's gradient; uploads w_i
    server:  w <- (1 - beta) w + beta sum_i n_i w_i / sum_i n_i over the uploads of one architecture
    predict: theta_i; by the second rule w, the global model
    up:      W: all parameters
    down:    W: all parameters
    fits:    one architecture or a few, clients that differ much; training costs K times FedAvg's
    paper:   https://arxiv.org/abs/2006.08848

Settled here:
* A batch is a local round of the paper. theta_i carries over from batch to batch, as in the
  authors' code, and is trained by plain SGD of rate `personal_lr`, eta_p. The clients' optimiser
  trains w_i; its rate times lam should also be below 2.
* The client keeps theta_i. The authors' code overwrites it by w_i before it is scored, and PFLlib's
  by w. Theirs also adds 0.001 theta_i to g.
* The mean weighs clients by samples, as in the authors' code; the paper's is uniform
  (weighting="uniform").
* Clients that are not drawn do not train; in the authors' code all train in every round.
* The paper has one architecture; here every architecture has its own w. Batch statistics are
  theta_i's, and stay with the client.
"""

import functools
from typing import Annotated

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.check.options import Count, NonNegative, Positive, SearchRange, checked, traced
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import head_scores
from fedjax_ht.core.local_training import LocalTraining, Loss, train
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.architectures import averaging_method, mean_parts
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.corrections import pull
from fedjax_ht.methods.shared.personal import begin_as_received
from fedjax_ht.methods.shared.supervised import batch_loss


@checked
def pfedme(
    training: LocalTraining,
    *,
    lam: Annotated[Positive, SearchRange(1.0, 20.0)] = 15.0,
    personal_lr: Positive = 0.09,
    personal_steps: Count = 5,
    beta: NonNegative = 1.0,
    weighting: Weighting = "samples",
) -> Method:
    """Makes pFedMe, described in the module's docstring.

    Args:
      training: local training, of the client's copy of the server's model.
      lam: strength of the pull of the personal model towards that copy.
      personal_lr: learning rate of the personal model; its product with lam must be below 2.
      personal_steps: steps of the personal model on each batch, K.
      beta: the server's step towards the clients' mean; above 1 it goes beyond.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    product = lam * personal_lr
    if not traced(product) and product >= 2:
        raise ValueError(
            f"lam * personal_lr is {product:g}; it must be below 2, or a personal model moves away "
            "from the server's: lower personal_lr or lam"
        )

    def client_update(bucket, client, downlink, data, ctx):
        def loss(w, state, batch: Batch, key) -> Loss:
            near = pull(lam, lax.stop_gradient(w))

            slope_of = jax.value_and_grad(functools.partial(batch_loss, bucket), has_aux=True)

            def step(number, carry):
                (theta, stats), _ = carry
                step_key = jax.random.fold_in(key, number)
                (value, stats), slope = slope_of(theta, stats, batch, step_key)
                slope = jax.tree.map(jnp.add, slope, near(theta))
                theta = jax.tree.map(lambda t, g: t - personal_lr * g, theta, slope)
                return (theta, stats), value

            state, value = lax.fori_loop(0, personal_steps, step, (state, jnp.float32(0)))
            away = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), w, state[0])
            # theta is constant in w: the envelope's gradient is that of this distance alone.
            return Loss(value + lam / 2 * sum(jax.tree.leaves(away)), state)

        state = downlink, client["stats"]
        result = train(training, loss, downlink, state, data, key=ctx.key)
        theta, stats = result.stats
        uplink = ModelUplink(result.params, sent_samples(ctx, weighting))
        return client | {"params": theta, "stats": stats}, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        means = mean_parts(federation, server, received)
        return jax.tree.map(lambda w, mean: w + beta * (mean - w), server, means), {}

    def predict(bucket, client, downlink, x, mask):
        models = {"personal": client, "global": client | {"params": downlink}}
        return {rule: head_scores(bucket, model, x, mask) for rule, model in models.items()}

    return averaging_method(
        "pfedme",
        training,
        client_update,
        receive=begin_as_received,
        server_update=server_update,
        predict=predict,
        rules=("personal", "global"),
    )
