"""FedRoD (Chen and Chao, ICLR 2022): a generic head for all classes, a personal one for a client's.

    client:  w_i = (f, h) <- w; on each batch w_i descends on the balanced softmax
             CE(h(f(x)) + gamma log n_i, y), n_i being its samples by class; and its own h_i on
             CE(h(f(x)) + h_i(f(x)), y), where f and h are constants; uploads w_i
    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads of one architecture
    predict: h(f(x)) + h_i(f(x)); by the second rule h(f(x)) alone, the generic model
    up:      W: all parameters
    down:    W: all parameters
    fits:    one architecture or a few, clients of few classes that are tested on others as well
    paper:   https://arxiv.org/abs/2107.00778

Settled here:
* The authors have no code. Both steps are taken from one point, as in PFLlib. In FL-bench the
  personal loss also trains f, and h_i predicts alone; the paper has neither.
* n_i counts all training samples, and classes that a client lacks have no part in its generic loss,
  so that a client of one class leaves w as it is. PFLlib counts an epoch without its last batch, so
  that a class may be missed.
* h_i starts as the head of the first w that the client receives; the paper does not say. Its form
  with a hypernetwork for h_i is not here.
* The paper has one architecture; here every architecture has its own w. Batch statistics stay with
  each client, as in `fedavg`.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.check.options import NonNegative, SearchRange, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import init_variables, logits, own_features
from fedjax_ht.core.local_training import LocalTraining, Loss
from fedjax_ht.core.method import Method, Needs
from fedjax_ht.core.trees import select
from fedjax_ht.losses import cross_entropy
from fedjax_ht.methods.shared.architectures import averaging_method
from fedjax_ht.methods.shared.averaging import ModelUplink, Weighting, sent_samples
from fedjax_ht.methods.shared.mutual import in_parts
from fedjax_ht.methods.shared.supervised import batch_features, count_labels, train_beside

ABSENT = -1e9  # added to the logits of absent classes; finite for clients without any samples


def log_shares(counts: jax.Array, gamma: float) -> jax.Array:
    """Computes gamma log n_c float [C] of counts by class, `ABSENT` where there are none."""
    return jnp.where(counts > 0, gamma * jnp.log(jnp.maximum(counts, 1)), ABSENT)


@checked
def fedrod(
    training: LocalTraining,
    *,
    gamma: Annotated[NonNegative, SearchRange(0.1, 10.0)] = 1.0,
    weighting: Weighting = "samples",
) -> Method:
    """Makes FedRoD, described in the module's docstring.

    Args:
      training: local training, of the model and of the personal head.
      gamma: power of a client's samples by class in the balanced softmax.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    recipe = in_parts(training, dict.fromkeys(("model", "own"), training.optimizer))

    def init_client(bucket, ctx):
        model = init_variables(bucket, ctx.key)
        return model | {"own": model["params"]["head"]}

    def receive(bucket, client, downlink, data, ctx):
        first = ctx.info.last_round < 0
        own = select(first, downlink["head"], client["own"])
        return client | {"params": downlink, "own": own}

    def client_update(bucket, client, downlink, data, ctx):
        prior = log_shares(count_labels(data, bucket.num_classes), gamma)

        def loss(params, stats, batch: Batch, key) -> Loss:
            model = params["model"]
            rows, stats = batch_features(bucket, model, stats, batch, key)
            generic = logits(bucket, model, rows)
            own = logits(bucket, {"head": params["own"]}, lax.stop_gradient(rows))
            balanced = cross_entropy(generic + prior, batch.y, batch.mask)
            both = lax.stop_gradient(generic) + own
            return Loss(balanced + cross_entropy(both, batch.y, batch.mask), stats)

        client, result = train_beside(recipe, loss, "own", client, data, ctx.key)
        uplink = ModelUplink(client["params"], sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    def predict(bucket, client, downlink, x, mask):
        rows = own_features(bucket, client, x, mask)
        generic = logits(bucket, client["params"], rows)
        return {
            "personal": generic + logits(bucket, {"head": client["own"]}, rows),
            "generic": generic,
        }

    return averaging_method(
        "fedrod",
        training,
        client_update,
        init_client=init_client,
        receive=receive,
        predict=predict,
        rules=("personal", "generic"),
        needs=Needs(),
    )
