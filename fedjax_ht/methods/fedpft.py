"""FedPFT (Beitollahi et al., 2024): a head trained on features drawn from the clients' Gaussians.

    client:  of its frozen features in evaluation mode, without training: the mean m_i^c of every
             class that it has, its variance v_i^c + 1e-6, and its number n_i^c
    server:  a new head, S epochs of cross-entropy by AdamW; a batch draws classes of clients by
             n_i^c, and of each a feature from N(m_i^c, v_i^c)
    predict: the frozen extractor and the server's head
    up:      C_i (K + 1), once: the means and variances, and class counts
    down:    W + S: the frozen extractor with its running statistics, and the head
    fits:    a frozen extractor, pre-trained at best, or a few with a head each; one round with all
             clients. Uploads tell more of a client than sums do
    paper:   https://arxiv.org/abs/2402.01862

Settled here:
* One Gaussian for a client's class, the default of the authors' code. The paper's mixtures of
  several, and full covariances, are not here.
* v_i^c is the mean over features, covariance="spherical", as in the authors' code. "diagonal" has
  one for each feature, so that 2 C_i K numbers are sent.
* Numbers cross the wire as float32. The paper sends float16, in which a variance above 65,504 is
  infinite; `quantised` sends fewer bytes.
* A class with a single sample counts, with v = 1e-6. The authors' code leaves it out.
* All draws are independent, where the authors' server seeds all Gaussians alike, so that they share
  their noise. An epoch has as many draws as the clients have samples, drawn anew.
* Each architecture has a head of its own, see `shared.one_shot`. The extractor is the one of
  `model.weights`, or random. The server sends it, and its bytes count; the paper's clients have it.
"""

from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_ht.check.options import Count, Positive, SearchRange, checked
from fedjax_ht.core.batches import (
    Batch,
    class_means,
    class_sums,
    forward_batch,
    sum_batches,
)
from fedjax_ht.core.bucket import init_variables, own_features
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method
from fedjax_ht.core.wire import Masked, Metadata, over_rows
from fedjax_ht.losses import cross_entropy
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.averaging import set_rows
from fedjax_ht.methods.shared.one_shot import Statistics, one_shot, ordered

LEAST = 1e-6  # added to variances


class Gaussians(NamedTuple):
    """Gaussians by class, of a client [C, ...] or of a bucket's M clients [M, C, ...].

    An uplink has those of the client's classes.

    Attributes:
      rows: float32 [C, K + V], means and then variances; V is K, or 1 if spherical.
      counts: float32 [C], samples; 0 for a class without a Gaussian.
    """

    rows: Any
    counts: Any


def train_head(
    optimizer: optax.GradientTransformation, draw, head, steps: jax.Array, key: jax.Array
):
    """Trains a linear head.

    Args:
      optimizer: the optimiser.
      draw: (step, key) -> (features [B, K], labels [B]).
      head: {"kernel": [K, C], "bias": [C]}.
      steps: int32, the number of steps.
      key: the key for the draws.

    Returns:
      The head, trained by cross-entropy.
    """

    def step(i, carry):
        head, state = carry
        x, y = draw(i, jax.random.fold_in(key, i))

        def loss(head):
            return cross_entropy(x @ head["kernel"] + head["bias"], y, jnp.ones(len(y), bool))

        updates, state = optimizer.update(jax.grad(loss)(head), state, head)
        return optax.apply_updates(head, updates), state

    return lax.fori_loop(0, steps, step, (head, optimizer.init(head)))[0]


def drawing(gaussians: Gaussians, width: int, batch_size: int):
    """Makes the `draw` of `train_head` for features [B, width] from a bucket's Gaussians."""
    classes, ends = gaussians.counts.shape[-1], jnp.cumsum(gaussians.counts.ravel())
    means, variances = jnp.split(gaussians.rows.reshape(len(ends), -1), [width], 1)
    deviations = jnp.sqrt(jnp.maximum(variances, LEAST))  # a code may round them below 0

    def draw(i, key):
        of_class, of_feature = jax.random.split(key)
        places = jax.random.uniform(of_class, (batch_size,)) * ends[-1]
        drawn = jnp.minimum(jnp.searchsorted(ends, places, side="right"), len(means) - 1)
        noise = jax.random.normal(of_feature, (batch_size, width))
        return means[drawn] + deviations[drawn] * noise, (drawn % classes).astype(jnp.int32)

    return draw


@checked
def fedpft(
    training: LocalTraining,
    *,
    covariance: Literal["spherical", "diagonal"] = "spherical",
    server_epochs: Count = 50,
    server_lr: Annotated[Positive, SearchRange(1e-5, 1e-2)] = 1e-4,
    server_batch_size: Count = 32,
) -> Method:
    """Makes FedPFT, described in the module's docstring.

    Args:
      training: the recipe of local training; no client trains by it.
      covariance: one variance for all features of a class, or one for each.
      server_epochs: number S of epochs of the head's training.
      server_lr, server_batch_size: learning rate of AdamW, whose weight decay is 0.01, and features
        drawn in a step.

    Returns:
      The method; its `check` rejects heads that are not one linear layer.
    """
    optimizer = optax.adamw(server_lr, weight_decay=0.01)

    def init(federation, bucket):
        rows = len(federation.members(bucket)), federation.num_classes
        width = bucket.feature_dim + (bucket.feature_dim if covariance == "diagonal" else 1)
        return Gaussians(jnp.zeros((*rows, width)), jnp.zeros(rows))

    def of_client(bucket, client, data, sends):
        sums = prototypes.class_sums(bucket, client, data)
        means = class_means(sums)

        def squares(batch: Batch):
            rows = own_features(bucket, client, batch.x, batch.mask)
            return class_sums((rows - means[batch.y]) ** 2, batch, bucket.num_classes)

        split = data.splits["train"]
        variances = class_means(sum_batches(squares, data, split, forward_batch()))
        if covariance == "spherical":
            variances = variances.mean(1, keepdims=True)
        sent = (sums.counts > 0) & sends
        both = jnp.concatenate([means, variances + LEAST], 1)
        uplink = Gaussians(Masked(both, sent), Metadata(Masked(sums.counts, sent)))
        mean = (variances.mean(1) * sums.counts).sum() / jnp.maximum(split.count, 1)
        return uplink, {"variance": mean}  # 0 reveals a dead extractor

    def add(federation, bucket, kept, received):
        places = jnp.searchsorted(np.array(federation.members(bucket)), received.info.id)
        counts = received.uplink.counts.value
        sent_nothing = ~counts.mask.any(1)  # a client without samples, which has nothing to add
        counts = counts._replace(mask=counts.mask & received.uplink.rows.mask)  # after a defence
        news = received.arrived & counts.mask.any(1)
        complete = news | (received.arrived & sent_nothing)
        received = received._replace(info=received.info._replace(id=places))

        def written(table, sent: Masked):
            rows = jnp.where(over_rows(sent.mask, sent.values), sent.values, 0)
            return set_rows(table, received, rows, news)

        uplink = received.uplink._replace(counts=counts)
        return Gaussians(*map(written, kept, uplink)), complete

    def heads(federation, kept, clients, key):
        trained = []
        for i, (bucket, gaussians) in enumerate(zip(ordered(federation), kept)):
            first, steps_key = jax.random.split(jax.random.fold_in(key, i))
            total = gaussians.counts.sum()
            steps = server_epochs * jnp.ceil(total / server_batch_size).astype(jnp.int32)
            head = init_variables(bucket, first)["params"]["head"]
            draw = drawing(gaussians, bucket.feature_dim, server_batch_size)
            trained.append(train_head(optimizer, draw, head, steps, steps_key))
        return trained

    statistics = Statistics(init, of_client, add, heads, server_reads="uploads")
    return one_shot("fedpft", training, statistics)
