"""FedL2G (Zhang et al., 2024): the server learns guiding vectors that lower the clients' test loss.

    client:  keeps its first samples Q as a quiz and trains on the others: local epochs on CE + G,
             G being the mean square between o(x) and the guiding vector v_y; then, with a batch B
             of the others, theta' = theta - eta grad(CE + G) and q = grad CE(Q; theta'), uploads
             of each class c in B g_c = 2 eta / (|B| D) sum_{x in B of class c} J_o(x; theta) q
    server:  V <- V - eta_s g, g_c the mean of class c's rows over the clients that sent one, all
             rows together clipped to norm 100
    predict: the client's own model
    up:      C_B D: a row for each class in B whose row is not 0, D = C or K
    down:    C D: a guiding vector for each class
    fits:    any models (logits) or models of one feature width (features); long runs, as the first
             rounds train V alone
    paper:   https://arxiv.org/abs/2410.06490

Settled here:
* o are the logits (D = C) or the features (D = K), G's mean is over samples and entries.
* g is the gradient of the quiz's loss in V, through the virtual step, in closed form: a pass
  backwards at theta', and J_o q at theta by transposing the pass backwards there. No gradient of a
  gradient is taken. Rows that are 0 are not sent and count in no mean, as in the released code.
  These are rows of classes outside of B, and of samples without a gradient through their features.
* The first `warmup` rounds train V alone, and clients do not change. They count as rounds, as in
  the released code. The virtual step has the rate of plain SGD in this round, with `schedule` and
  without momentum; a clip below 1 scales it.
* A client with samples for the quiz alone cannot send g, and trains on all of them. The released
  code stops with an error.
* eta_s is 0.1 for logits and 100 for features, as in the authors' script; their program's default
  is 0.01.
* Both virtual passes normalise by the batch, whose statistics are discarded. A client's gradients
  are clipped at norm 100 in training.
* Other methods but FedAPEN train on all their samples. Mention this in a comparison.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_ht.check.options import Count, Positive, SearchRange, Whole, checked
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.batches import shuffled, take_batch
from fedjax_ht.core.bucket import logits
from fedjax_ht.core.federation import Federation, require_one_feature_width
from fedjax_ht.core.local_training import LocalTraining, Loss, LossFn
from fedjax_ht.core.method import Method, View, Wire
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.core.wire import Masked
from fedjax_ht.losses import cross_entropy, masked_mean
from fedjax_ht.methods.shared.corrections import learning_rate
from fedjax_ht.methods.shared.prototypes import mean_by_class
from fedjax_ht.methods.shared.supervised import batch_features, train_client

CLIP_NORM = 100.0  # from the released code, for clients and server
Guide = Literal["logits", "features"]
SERVER_LR: dict[Guide, float] = {"logits": 0.1, "features": 100.0}


def hold_out(data: Data, quiz_size: int) -> Data:
    """Moves a client's first training samples to the split "quiz", if others remain.

    Args:
      data: the data of the client.
      quiz_size: samples of the quiz; a client with no more than these has no quiz.
    """
    indices, count = data.splits["train"]
    held = jnp.where(count > quiz_size, quiz_size, 0)
    study = Split(jnp.roll(indices, -held), count - held)
    return data._replace(splits=data.splits | {"train": study, "quiz": Split(indices, held)})


def mean_gradient(
    loss: Callable, params: PyTree, batches: int, filled: jax.Array
) -> tuple[jax.Array, PyTree]:
    """Averages a loss and its gradient over the `filled` batches; the others are empty.

    The loss is (params, number of the batch) -> scalar, 0 for an empty batch.
    """
    pairs = jax.lax.map(lambda i: jax.value_and_grad(loss)(params, i), jnp.arange(batches))
    return jax.tree.map(lambda x: x.sum(0) / filled, pairs)


def warn(metrics: dict[str, Any]) -> str | None:
    """Warns that clients do not train yet; a `View.warn`."""
    if metrics.get("warming_up"):
        return "clients do not train in the first rounds, which train guiding vectors (warmup)"
    return None


@checked
def fedl2g(
    training: LocalTraining,
    *,
    guide: Guide = "logits",
    server_lr: Annotated[Positive | None, SearchRange(0.01, 100.0)] = None,
    warmup: Whole = 50,
    study_batches: Count = 1,
    quiz_batches: Count = 1,
) -> Method:
    """Makes FedL2G, described in the module's docstring.

    Args:
      training: local training.
      guide: the outputs that the vectors guide, "logits" (FedL2G-l) or "features" (FedL2G-f).
      server_lr: eta_s; None takes 0.1 for logits and 100 for features.
      warmup: first rounds, in which only the guiding vectors are trained.
      study_batches: batches of the virtual step.
      quiz_batches: batches of samples that each client keeps as its quiz.
    """
    rate = SERVER_LR[guide] if server_lr is None else server_lr
    size = training.batch_size
    clipping = optax.chain(optax.clip_by_global_norm(CLIP_NORM), training.optimizer)
    clipped = dataclasses.replace(training, optimizer=clipping)

    def width(federation: Federation) -> int:
        return federation.num_classes if guide == "logits" else federation.feature_dim

    def init_server(federation, key):
        return jax.random.normal(key, (federation.num_classes, width(federation)))

    def outputs_of(bucket, params, stats, batch, key) -> tuple[jax.Array, jax.Array, PyTree]:
        """Returns the logits, the guided outputs o, and the new batch statistics."""
        rows, stats = batch_features(bucket, params, stats, batch, key)
        scores = logits(bucket, params, rows)
        return scores, scores if guide == "logits" else rows, stats

    def guided_loss(bucket, vectors) -> LossFn:
        """Makes the loss CE + G of a batch, for guiding vectors float [C, D]."""

        def loss(params, stats, batch, key):
            scores, outputs, stats = outputs_of(bucket, params, stats, batch, key)
            distance = masked_mean(jnp.mean((outputs - vectors[batch.y]) ** 2, -1), batch.mask)
            return Loss(cross_entropy(scores, batch.y, batch.mask) + distance, stats)

        return loss

    def vector_gradient(bucket, client, vectors, data, key) -> tuple[Masked, jax.Array]:
        """Computes g, Masked float32 [C, D], and the quiz's loss after the virtual step.

        The data have the splits of `hold_out`; the key orders the study samples and draws dropout.
        """
        study, quiz = data.splits["train"], data.splits["quiz"]
        study_key, pass_key, quiz_key = jax.random.split(key, 3)
        if training.shuffle:
            study = study._replace(indices=shuffled(study_key, study))
        params, stats = client["params"], client["stats"]
        step = learning_rate(training, data)
        loss = guided_loss(bucket, vectors)

        def filled(split, batches):
            return jnp.clip((split.count + size - 1) // size, 1, batches)

        def batch_of(split, i):
            return take_batch(data, split.indices, split.count, i * size, size)

        def study_loss(params, i):
            return loss(params, stats, batch_of(study, i), jax.random.fold_in(pass_key, i)).value

        def quiz_loss(params, i):
            batch, part_key = batch_of(quiz, i), jax.random.fold_in(quiz_key, i)
            scores = outputs_of(bucket, params, stats, batch, part_key)[0]
            return cross_entropy(scores, batch.y, batch.mask)

        studied = filled(study, study_batches)
        _, gradient = mean_gradient(study_loss, params, study_batches, studied)
        virtual = jax.tree.map(lambda w, g: w - step * g, params, gradient)
        quiz_value, direction = mean_gradient(
            quiz_loss, virtual, quiz_batches, filled(quiz, quiz_batches)
        )

        def rows_of_batch(i):
            batch, part_key = batch_of(study, i), jax.random.fold_in(pass_key, i)
            outputs, pullback = jax.vjp(
                lambda params: outputs_of(bucket, params, stats, batch, part_key)[1], params
            )
            # The transpose of the linear pullback is J_o. So modules with a rule for reverse mode
            # alone, such as batch norm, need none for forward mode.
            _, transpose = jax.vjp(lambda u: pullback(u)[0], jnp.zeros_like(outputs))
            (pushed,) = transpose(direction)
            members = jax.nn.one_hot(batch.y, len(vectors)) * batch.mask[:, None]
            scale = 2 * step / (jnp.maximum(batch.mask.sum(), 1) * outputs.shape[-1])
            return scale * members.T @ jnp.where(batch.mask[:, None], pushed, 0), members.any(0)

        rows, present = jax.lax.map(rows_of_batch, jnp.arange(study_batches))
        rows = rows.sum(0) / studied
        # The row of a class in the batches is also 0 if no gradient passes, as with dead ReLUs.
        sent = present.any(0) & (rows != 0).any(1)
        return Masked(rows, sent & (quiz.count > 0)), quiz_value

    def client_update(bucket, client, downlink, data, ctx):
        held, loss = hold_out(data, quiz_batches * size), guided_loss(bucket, downlink)

        def trained(client):
            client, result = train_client(clipped, loss, bucket, client, held, ctx.key)
            return client, result.loss

        def waiting(client):
            return client, jnp.float32(0)

        # tuning before an evaluation is of any round
        trains = (ctx.round >= warmup) | (ctx.adapt_epochs is not None)
        client, value = jax.lax.cond(trains, trained, waiting, client)
        key = jax.random.fold_in(ctx.key, 1)
        uplink, quiz = vector_gradient(bucket, client, downlink, held, key)
        return client, uplink, {"loss": value, "quiz_loss": quiz}

    def server_update(federation, server, received, ctx):
        joined = gather_received(received)
        present = joined.uplink.mask & joined.arrived[:, None]
        gradient = mean_by_class(joined.uplink.values, present)
        gradient *= jnp.minimum(1, CLIP_NORM / jnp.maximum(jnp.linalg.norm(gradient), 1e-30))
        new = select(present.any(), server - rate * gradient, server)
        return new, {"classes": present.any(0).sum(), "warming_up": ctx.round < warmup}

    def check(federation):
        if guide == "features":
            require_one_feature_width(federation)

    return Method(
        name="fedl2g",
        training=training,
        check=check,
        init_server=init_server,
        client_update=client_update,
        server_update=server_update,
        view=View(warn=warn),
        wire=Wire(server_reads="sums"),
    )
