"""FedSA with semantic anchors (Zhou et al., AAAI 2025): features are drawn to anchors of classes.

    client:  descends on CE + calibration sum_c CE(h(a_c), c) / C + weight mean (f(x) - a_y)^2
             + margin CE(-(|f(x) - a_c| + gap [c = y]), y), a the anchors; uploads the mean features
             of its classes over the training steps
    server:  draws a = F(z), z normal and F twice linear, batch norm over the classes, ReLU; per
             class, p_c <- the mean over the uploaders and a_c <- ema a_c + (1 - ema) p_c
    predict: the class of the nearest p_c
    up:      C_i K: class means of features
    down:    C K + C' K: the anchors, and p of the classes that ever came
    fits:    any models of one feature width, clients that are asked for all classes
    paper:   https://arxiv.org/abs/2501.05496

The method shares its short name with `fedsa_lora` and nothing else.

Settled here:
* gap, a constant, is the larger of two means over classes of the distance to the nearest other
  class: of the client's last class means, 0 before any, and of the anchors.
* The head is calibrated on the anchors of all classes in every batch, those of absent classes too.
* ema is 0.9999, as in public code: in 300 rounds an anchor moves 3 % of the way.
* The rules "own_prototype" and "head" are `fedproto`'s.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import NonNegative, SearchRange, Share, checked
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.bucket import logits
from fedjax_ht.core.federation import require_one_feature_width
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View, Wire
from fedjax_ht.core.wire import Masked
from fedjax_ht.losses import cross_entropy, sample_prototype_mse
from fedjax_ht.methods.shared import prototypes
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.ops import pairwise_distance

EPSILON = 1e-5  # of the batch norm


class Server(NamedTuple):
    """The server's state, and its message.

    Attributes:
      anchors: float32 [C, K], a.
      prototypes: Masked float32 [C, K], p.
    """

    anchors: jax.Array
    prototypes: Masked


def draw_anchors(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Draws F(z), float32 [C, K] of at least 0."""
    rows = jax.random.normal(key, shape)
    for block in range(2):
        kernel = jax.random.normal(jax.random.fold_in(key, block), (shape[1], shape[1]))
        rows = rows @ kernel / jnp.sqrt(shape[1])
        rows = jax.nn.relu((rows - rows.mean(0)) / jnp.sqrt(rows.var(0) + EPSILON))
    return rows


def mean_gap(rows: jax.Array, present: jax.Array) -> jax.Array:
    """Averages the distances of rows float [C, K] to their nearest others; 0 for fewer than two."""
    pairs = present[:, None] & present & ~jnp.eye(len(rows), dtype=bool)
    nearest = jnp.where(pairs, pairwise_distance(rows, rows), jnp.inf).min(1)
    return jnp.where(pairs.any(1), nearest, 0).sum() / jnp.maximum(present.sum(), 1)


@checked
def fedsa_anchors(
    training: LocalTraining,
    *,
    weight: Annotated[NonNegative, SearchRange(0.01, 10.0)] = 1.0,
    margin: Annotated[NonNegative, SearchRange(0.01, 10.0)] = 1.0,
    calibration: Annotated[NonNegative, SearchRange(0.01, 10.0)] = 1.0,
    ema: Share = 0.9999,
) -> Method:
    """Makes FedSA with anchors, described in the module's docstring.

    Args:
      training: local training.
      weight: strength of the pull of features to the anchors of their classes.
      margin: weight of the contrast between anchors, with the gap as its margin.
      calibration: weight of the head's loss on the anchors.
      ema: share of an anchor that a round keeps.
    """

    def init_server(federation, key):
        shape = federation.num_classes, federation.feature_dim
        return Server(draw_anchors(key, shape), prototypes.no_prototypes(*shape))

    def init_client(bucket, ctx):
        return prototypes.init_client(bucket, ctx) | {"gap": jnp.float32(0)}

    def client_update(bucket, client, downlink, data, ctx):
        anchors, classes = downlink.anchors, jnp.arange(bucket.num_classes)
        all_classes = jnp.ones(bucket.num_classes, bool)
        gap = jnp.maximum(client["gap"], mean_gap(anchors, all_classes))

        def pull(rows, batch):
            square = sample_prototype_mse(rows, batch.y, batch.mask, anchors, all_classes)
            scores = -pairwise_distance(rows, anchors) - gap * (classes == batch.y[:, None])
            return weight * square + margin * cross_entropy(scores, batch.y, batch.mask)

        def known(params):
            scores = logits(bucket, params, anchors)
            return calibration * cross_entropy(scores, classes, all_classes)

        client, result = train_model(
            training,
            bucket,
            client,
            data,
            ctx,
            regulariser=pull,
            penalty=known,
            gather_features=True,
        )
        assert result.class_sums is not None  # features were gathered
        uplink = prototypes.prototype_uplink(result.class_sums)
        own = uplink.prototypes
        client = client | {"gap": mean_gap(own.values, own.mask)}
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        values, present = prototypes.uploaded(gather_received(received))
        heard, means = present.any(0)[:, None], prototypes.mean_by_class(values, present)
        anchors = jnp.where(heard, ema * server.anchors + (1 - ema) * means, server.anchors)
        rows = jnp.where(heard, means, server.prototypes.values)
        return Server(anchors, Masked(rows, server.prototypes.mask | present.any(0))), {}

    def predict(bucket, client, downlink, x, mask):
        return prototypes.scores(bucket, client, downlink.prototypes, x, mask)

    return Method(
        name="fedsa_anchors",
        training=training,
        check=require_one_feature_width,
        init_server=init_server,
        init_client=init_client,
        receive=prototypes.receive,
        client_update=client_update,
        server_update=server_update,
        predict=predict,
        rules=prototypes.RULES,
        view=View(prototypes=lambda server: server.prototypes),
        wire=Wire(server_reads="sums"),
    )
