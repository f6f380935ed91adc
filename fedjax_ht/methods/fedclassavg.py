"""FedClassAvg (Jang et al., ICPP 2022): clients average classifiers, with supervised contrast.

    client:  before its first round, one local pass from its own classifier (pretraining); then, in
             every round, classifier_i <- classifier and a local pass on two random views x1, x2 of
             each batch with features f1, f2:
             L = SupCon(f1, f2, y) + CE(classifier_i(f1), y)
                 + mu / 2 sum over its tensors of mean((w - w_start)^2),
             w_start being the classifier that the pass started from
    server:  classifier <- sum_i n_i classifier_i / sum_i n_i over the uploads that arrived
    predict: the client's extractor, the classifier behind a ReLU
    up:      H: the classifier
    down:    H: the classifier
    paper:   https://arxiv.org/abs/2210.14226

Settled here:
* The contrastive loss is that of Khosla et al. on features without normalisation, at temperature
  100. variant="released" is the authors' code, which multiplies it by temperature / 0.07, or
  1428.6. Features may have any length |f|, so a pair's similarity is |f|^2 / temperature and its
  gradient |f| / temperature. Training therefore diverges with the usual temperatures of 0.05 to
  0.5, which are for features of length 1. A fair comparison searches between a tenth and ten times
  the default.
* The classifier is the model's head behind a ReLU, in training and in prediction.
* Views are cut, flipped, jittered and greyed on the device, in place of `training.augmentation`.
* The pretrained classifier is overwritten in the first round, as released. Until its first
  participation, a client keeps its own classifier and is scored with it.
* The authors omit the proximal term in an epoch's first batch; with one epoch it is zero there.
* The optimizer is that of `training`, as for all methods. The authors' is Adam at 1e-4 with b1 0.5
  (EMNIST: 5e-4), new in every round; they choose the best round by test loss and score clients
  after their training (`Scoring.state`).
"""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.check.options import NonNegative, Positive, SearchRange, checked
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import features, logits, own_features
from fedjax_ht.core.federation import Federation, require_equal_heads
from fedjax_ht.core.inputs import image_shape, pixels_of
from fedjax_ht.core.local_training import LocalTraining, Loss
from fedjax_ht.core.method import Method, Wire
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import Array, PyTree, select
from fedjax_ht.data.augment import colour_jitter, flip, random_grayscale, resized_crop
from fedjax_ht.losses import cross_entropy, supervised_contrastive
from fedjax_ht.methods.shared.averaging import ModelUplink, average_uploads, sent_samples
from fedjax_ht.methods.shared.heads import init_head, take_head
from fedjax_ht.methods.shared.supervised import train_client
from fedjax_ht.methods.shared.variants import Variant

BASE_TEMPERATURE = 0.07  # of the released code
VIEW = (resized_crop, flip, colour_jitter, random_grayscale)  # the steps of `random_view`


def random_view(key: jax.Array, data: Data, x: jax.Array) -> jax.Array:
    """Draws one random view of each image.

    Args:
      key: the key for the draws.
      data: the dataset of the images, which sets their normalisation.
      x: float [B, H, W, C], normalised.

    Returns:
      float [B, H, W, C], normalised in the same way.
    """
    rule = pixels_of(data.preprocess, "FedClassAvg")
    pixels = rule.pixels(x)
    for i, step in enumerate(VIEW):
        pixels = step(jax.random.fold_in(key, i), pixels)
    return rule.normalise(pixels)


def check(federation: Federation) -> None:
    """Raises a ValueError unless the models take images and have heads of one shape."""
    for bucket in federation.buckets:
        image_shape(bucket.input_shape, "FedClassAvg")
    require_equal_heads(federation)


def proximity(head: PyTree, start: PyTree) -> Array:
    """Sums the mean squared distances between a classifier's tensors and those of `start`."""
    distances = jax.tree.map(lambda w, v: jnp.mean((w - v) ** 2), head, start)
    total: Any = sum(jax.tree.leaves(distances))
    return total


@checked
def fedclassavg(
    training: LocalTraining,
    *,
    mu: Annotated[NonNegative, SearchRange(0.01, 1.0)] = 0.1,
    temperature: Annotated[Positive, SearchRange(10.0, 1000.0)] = 100.0,
    variant: Variant = "paper",
) -> Method:
    """Makes FedClassAvg, described in the module's docstring.

    Args:
      training: the recipe of local training; its `augmentation` is not used.
      mu: weight of the proximal term.
      temperature: temperature of the contrastive loss.
      variant: form of the method, the paper's or the released code's; see the module's docstring
        for their differences.
    """
    scale = temperature / BASE_TEMPERATURE if variant == "released" else 1.0
    training = dataclasses.replace(training, augmentation=None)

    def local_pass(bucket, client, data, key):
        start = client["params"]["head"]

        def loss(params, stats, batch: Batch, key) -> Loss:
            keys = jax.random.split(key, 3)
            x = jnp.concatenate([random_view(k, data, batch.x) for k in keys[:2]])
            # Both views in one pass, so that batch statistics are those of both.
            rows, stats = features(
                bucket, params, stats, x, jnp.tile(batch.mask, 2), train=True, key=keys[2]
            )
            first, second = jnp.split(rows, 2)
            contrast = supervised_contrastive(first, second, batch.y, batch.mask, temperature)
            error = cross_entropy(logits(bucket, params, jax.nn.relu(first)), batch.y, batch.mask)
            return Loss(scale * contrast + error + mu / 2 * proximity(params["head"], start), stats)

        client, result = train_client(training, loss, bucket, client, data, key)
        return client, result.loss

    def receive(bucket, client, downlink, data, ctx):
        return select(ctx.info.last_round >= 0, take_head(client, downlink), client)

    def client_update(bucket, client, downlink, data, ctx):
        # The first participation takes two passes, the first of which pretrains. One loop, so that
        # the compiled program holds the local training once.
        passes = jnp.where(ctx.info.last_round >= 0, 1, 2)

        def one_pass(i, carry):
            client, _ = carry
            left = passes - i
            client = select(left == 1, take_head(client, downlink), client)
            return local_pass(bucket, client, data, jax.random.fold_in(ctx.key, left))

        client, loss = lax.fori_loop(0, passes, one_pass, (client, jnp.float32(0)))
        uplink = ModelUplink(client["params"]["head"], sent_samples(ctx, "samples"))
        return client, uplink, {"loss": loss}

    def predict(bucket, client, downlink, x, mask):
        rows = jax.nn.relu(own_features(bucket, client, x, mask))
        return {"head": logits(bucket, client["params"], rows)}

    return Method(
        name="fedclassavg",
        training=training,
        check=check,
        init_server=init_head,
        receive=receive,
        client_update=client_update,
        server_update=average_uploads,
        predict=predict,
        wire=Wire(server_reads="sums"),
    )
