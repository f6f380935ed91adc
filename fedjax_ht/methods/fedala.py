"""FedALA (Zhang et al., AAAI 2023): a client learns how much of the server's head it takes.

    client:  base_i <- base; head_i <- head_i + (head - head_i) A_i, entry by entry, A_i in [0, 1]
             first learned by SGD of the cross-entropy on a part of its samples; then local epochs
             of cross-entropy; uploads the model
    server:  w <- sum_i n_i w_i / sum_i n_i over the uploads of one architecture
    predict: the server's extractor and the mixed head
    up:      W: all parameters
    down:    W: all parameters
    fits:    one architecture or a few, clients that differ much
    paper:   https://arxiv.org/abs/2212.01197

Settled here:
* The mixed layers are the head of `SplitModel`. A linear head is the last two tensors in PFLlib and
  FL-bench. The first model that a client receives is not mixed.
* A_i starts at 1 and is kept. It is learned on receipt, before scoring and training: in one pass
  over `share` of the samples, in stored order from a random start. The second receipt takes
  `first_passes` passes. The authors stop when the last ten losses differ by less than 0.1, which
  may never happen.
* Batch norms normalise by the batch while A_i is learned, and these statistics are discarded. Batch
  statistics stay with each client, as in `fedavg`.
* The paper has one architecture; here every architecture has its own mean, weighted by samples.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.check.options import Count, Part, Positive, SearchRange, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.local_training import LocalTraining, Loss, train
from fedjax_ht.core.method import Method
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.methods.shared.architectures import averaging_method, plain_update
from fedjax_ht.methods.shared.averaging import Weighting
from fedjax_ht.methods.shared.corrections import in_unit_interval
from fedjax_ht.methods.shared.supervised import batch_loss


def mixed_head(private: PyTree, shared: PyTree, weights: PyTree) -> PyTree:
    """Mixes two heads entry by entry: private + (shared - private) weights."""
    return jax.tree.map(lambda p, s, a: p + (s - p) * a, private, shared, weights)


def run_of_samples(data: Data, share: float, key: jax.Array) -> Data:
    """Keeps a contiguous share of the training samples, in stored order from a random start."""
    indices, count = data.splits["train"]
    kept = jnp.floor(share * count).astype(jnp.int32)
    start = jax.random.randint(key, (), 0, count - kept + 1)
    # Rolled, not sliced: the run's length depends on the client. The rest is padding.
    run = Split(jnp.roll(indices, -start), kept)
    return data._replace(splits=data.splits | {"train": run})


@checked
def fedala(
    training: LocalTraining,
    *,
    share: Part = 0.8,
    weight_lr: Annotated[Positive, SearchRange(0.1, 10.0)] = 1.0,
    first_passes: Count = 10,
    weighting: Weighting = "samples",
) -> Method:
    """Makes FedALA, described in the module's docstring.

    Args:
      training: local training.
      share: share of the training samples on which A_i is learned.
      weight_lr: learning rate of A_i.
      first_passes: passes over these samples at a client's second receipt.
      weighting: weights of the mean: numbers of training samples, or equal weights.
    """
    one_pass = dataclasses.replace(
        training,
        optimizer=in_unit_interval(optax.sgd(weight_lr)),
        epochs=1,
        steps=None,
        shuffle=False,
        drop_remainder=False,
        augmentation=None,
        schedule=None,
    )

    def init_client(bucket, ctx):
        client = init_variables(bucket, ctx.key)
        weights = jax.tree.map(jnp.ones_like, client["params"]["head"])
        return client | {"weights": weights, "learned": jnp.zeros((), bool)}

    def learn(bucket, client, downlink, data, key):
        """Returns A_i after a pass over the samples."""

        def loss(weights, stats, batch: Batch, key) -> Loss:
            head = mixed_head(client["params"]["head"], downlink["head"], weights)
            model = {"base": downlink["base"], "head": head}
            return Loss(batch_loss(bucket, model, client["stats"], batch)[0], stats)

        result = train(one_pass, loss, client["weights"], (), data, key=key)
        return client | {"weights": result.params}

    def receive(bucket, client, downlink, data, ctx):
        first = ctx.info.last_round < 0
        passes = jnp.where(client["learned"], 1, first_passes)
        passes = jnp.where(first, 0, passes)
        run = run_of_samples(data, share, ctx.key)

        def again(i, client):
            return learn(bucket, client, downlink, run, jax.random.fold_in(ctx.key, i))

        client = lax.fori_loop(0, passes, again, client)
        head = mixed_head(client["params"]["head"], downlink["head"], client["weights"])
        params = {"base": downlink["base"], "head": select(first, downlink["head"], head)}
        return client | {"params": params, "learned": client["learned"] | ~first}

    return averaging_method(
        "fedala",
        training,
        plain_update(training, weighting),
        init_client=init_client,
        receive=receive,
    )
