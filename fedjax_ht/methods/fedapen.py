"""FedAPEN (Qin et al., KDD 2023): mutual learning of a private and a shared model, an ensemble.

    client:  s_i <- s; learns w in [0, 1] by 10 epochs of CE(w p_i(x) + (1 - w) s_i(x), y) on the
             adaptability set; then on the same training batches, with a = p_i(x), b = s_i(x) and
             the other model's output a constant,
             L_p = CE(a, y) + KL(softmax b || softmax a) + CE(w a + (1 - w) b, y)
             L_s = CE(b, y) + KL(softmax a || softmax b) + CE(w a + (1 - w) b, y);  uploads s_i
    server:  s <- uniform mean of the s_i, batch statistics included
    predict: w p_i(x) + (1 - w) s(x)
    up:      A + its batch statistics: the auxiliary model
    down:    A + its batch statistics: the auxiliary model

Settled here:
* `receive` learns w: the paper learns it after a round's aggregation, with the newest s and for the
  next round, which is when a client receives s. In the first round, before s has been trained, w
  is 0.5. A client that missed rounds learns it once, when it takes part again.
* The adaptability set is every twentieth of the client's training samples in stored order, 5 %
  rounded down. They are not used in training. A client with fewer than twenty has none and keeps w
  = 0.5.
* The authors' decay of the learning rate has no effect in their code, so there is none here.
"""

import functools
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_ht.check.options import Within, checked
from fedjax_ht.core.batches import take_batch
from fedjax_ht.core.bucket import head_scores, init_variables
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.server_training import RowTraining, train_on_rows
from fedjax_ht.core.trees import PyTree
from fedjax_ht.methods.shared.corrections import in_unit_interval
from fedjax_ht.methods.shared.mutual import average_copies, init_pair, pair_training, take_shared

BATCH = 64  # samples a step on the adaptability set
EPOCHS, LEARNING_RATE = 10, 1e-3  # of the training of w


class Rows(NamedTuple):
    """Adaptability samples as w sees them.

    Attributes:
      private, shared: float [M, num_classes], the logits of the two models.
      labels: int [M].
    """

    private: jax.Array
    shared: jax.Array
    labels: jax.Array


def hold_out(data: Data, every: int) -> Data:
    """Moves each `every`-th training sample to the split "adapt"; the others stay in "train"."""
    indices, count = data.splits["train"]
    # Static positions: as padding is last, the first count // every of `held` are real samples.
    position = np.arange(len(indices))
    kept = position[(position + 1) % every != 0]
    held = position[every - 1 :: every]
    if not len(held):  # a split needs an entry, though its count is 0
        held = np.zeros(1, int)
    adapt = Split(indices[held], count // every)
    train = Split(indices[kept], count - count // every)
    return data._replace(splits=data.splits | {"train": train, "adapt": adapt})


def ensemble(weight: jax.Array, private: jax.Array, shared: jax.Array) -> jax.Array:
    """Returns the weighted logits of both models, float [B, num_classes]."""
    return weight * private + (1 - weight) * shared


def learn_weight(
    loss_of: Callable, weight: jax.Array, rows: Rows, valid: jax.Array, key: jax.Array
) -> jax.Array:
    """Trains w by SGD on the ensemble's loss over the valid rows.

    Args:
      loss_of: (outputs, labels, mask) -> the loss, the cross-entropy in classification.
      weight: float32 scalar, w so far.
      rows: logits and labels of the adaptability samples.
      valid: bool [M], the real rows.
      key: the key for the shuffles.

    Returns:
      The new w; `weight` if no row is valid.
    """

    def loss(weight, batch: Rows, mask, key):
        outputs = ensemble(weight, batch.private, batch.shared)
        return loss_of(outputs, batch.labels, mask)

    recipe = RowTraining(in_unit_interval(optax.sgd(LEARNING_RATE)), EPOCHS, BATCH)
    return train_on_rows(recipe, loss, weight, rows, valid, key=key)[0]


@checked
def fedapen(
    training: LocalTraining, adapt_every: Annotated[int, Within(2)] = 20, learned: bool = True
) -> Method:
    """Makes FedAPEN, described in the module's docstring.

    Args:
      training: the recipe of local training, of both models.
      adapt_every: one training sample in this many is kept for the adaptability set; at least 2, so
        that some are left to train on.
      learned: True learns w; False, an ablation, keeps w = 0.5 ("FedEN") and excludes the same
        adaptability set from training.
    """

    def init_server(federation, key):
        return init_variables(federation.shared, key)

    def init_client(bucket, ctx):
        return init_pair(bucket, ctx) | {"weight": jnp.float32(0.5)}

    def both_scores(bucket, client, x, mask):
        private = head_scores(bucket, client, x, mask)
        return private, head_scores(bucket.auxiliary, client["shared"], x, mask)

    def adaptability_rows(bucket, client: PyTree, data: Data) -> tuple[Rows, jax.Array]:
        source = data.splits["adapt"]

        def rows(start):
            batch = take_batch(data, source.indices, source.count, start, BATCH)
            return Rows(*both_scores(bucket, client, batch.x, batch.mask), batch.y), batch.mask

        starts = jnp.arange(0, len(source.indices), BATCH)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), lax.map(rows, starts))

    def receive(bucket, client, downlink, data, ctx):
        client = take_shared(client, **downlink)
        if not learned:
            return client
        rows, valid = adaptability_rows(bucket, client, hold_out(data, adapt_every))
        valid &= ctx.round > 0  # the first s is random: there is nothing to learn from it
        learn = functools.partial(learn_weight, bucket.task.loss)
        return client | {"weight": learn(client["weight"], rows, valid, ctx.key)}

    def client_update(bucket, client, downlink, data, ctx):
        def losses(task, private, shared, batch, extra):
            outputs = ensemble(client["weight"], private.logits, shared.logits)
            together = task.loss(outputs, batch.y, batch.mask)

            def loss_of(model, teacher):
                labels = task.loss(model.logits, batch.y, batch.mask)
                apart = task.divergence(teacher.logits, model.logits, batch.mask)
                return labels + apart + together

            return loss_of(private, shared), loss_of(shared, private)

        train_pair = pair_training(training, losses)
        client, _, result = train_pair(bucket, client, hold_out(data, adapt_every), ctx)
        return client, client["shared"], {"loss": result.loss, "weight": client["weight"]}

    def predict(bucket, client, downlink, x, mask):
        private, shared = both_scores(bucket, client, x, mask)
        together = ensemble(client["weight"], private, shared)
        return {"ensemble": together, "head": private, "shared": shared}

    return Method(
        name="fedapen",
        training=training,
        init_server=init_server,
        init_client=init_client,
        receive=receive,
        client_update=client_update,
        server_update=average_copies,
        predict=predict,
        rules=("ensemble", "head", "shared"),
        wire=Wire(server_reads="sums"),
        needs=Needs(classes=False),
    )
