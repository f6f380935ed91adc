"""FedGen (Zhu et al., ICML 2021): a generator of features, trained on the heads, teaches clients.

    client:  head_i <- head, then, with G frozen and y' drawn from the uploaders' labels,
             L = CE(m_i(x), y) + alpha_t CE(head_i(G(y')), y') + beta_t KL(head_i(G(y)) || m_i(x)),
             the KL's first side being a constant
    server:  head <- sum_i n_i head_i / n; G descends on
             E_y sum_i (n_i^y / n^y) CE(head_i(G(y)), y) + diversity loss, y drawn from the
             uploaders' labels, with n_i^y samples of class y at client i
    predict: the client's extractor and the averaged head
    up:      H: the head, and label counts
    down:    H + G, G once it has been trained: the head, the generator of features, label counts
    paper:   https://arxiv.org/abs/2105.10056

Settled here:
* The objectives are the paper's with its authors' weights: alpha 10 and beta 10, both times 0.98^t,
  as is the generator's learning rate. The two terms start after G's first training.
  variant="released" is HtFLlib: neither KL nor diversity, alpha 1 without decay, CE of the averaged
  logits, Adam at 0.1; G, untrained at first, is sent and used from the first round.
* y and y' follow the label counts of the last round's uploaders (HtFLlib gathers all clients'
  labels before the first round; the authors' code draws uniformly over labels at the server). The
  counts are metadata.
* G always normalises by the batch that it generates, so no running statistics are sent (the
  authors' clients use running ones). Its noise is uniform, as in all code. Its Adam restarts every
  round.
* The authors' code drops the two terms after 20 local epochs. This is not reproduced, because no
  recipe here trains that long in a round.
"""

from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.check.docstrings import documented_by
from fedjax_ht.check.options import (
    Count,
    NonNegative,
    Positive,
    SearchRange,
    Whole,
    checked,
    traced,
)
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import logits
from fedjax_ht.core.federation import require_equal_heads
from fedjax_ht.core.local_training import LocalTraining, Loss
from fedjax_ht.core.method import Method
from fedjax_ht.core.trees import Array, PyTree, select
from fedjax_ht.core.wire import FIRST_ROWS, Masked, Metadata, dense
from fedjax_ht.losses import cross_entropy, diversity_loss, kl_divergence
from fedjax_ht.methods.shared.averaging import keep_present, weighted_mean
from fedjax_ht.methods.shared.heads import head_bucket, init_head, take_head
from fedjax_ht.methods.shared.supervised import batch_features, count_labels, train_client
from fedjax_ht.methods.shared.variants import Forms, Variant, settled
from fedjax_ht.models.layers import Linear, Norm


class FeatureGenerator(nn.Module):
    """Linear-BatchNorm-ReLU-Linear on [noise; one-hot label].

    Noise float [B, D], labels int [B] and a mask of real rows, bool [B] -> features [B, K].
    """

    num_classes: int
    hidden_dim: int
    feature_dim: int

    @nn.compact
    def __call__(self, noise: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
        x = jnp.concatenate([noise, jax.nn.one_hot(labels, self.num_classes)], -1)
        x = Norm("static_batch", name="norm")(Linear(self.hidden_dim, name="fc1")(x), mask=mask)
        return Linear(self.feature_dim, name="fc2")(nn.relu(x))


class Recipe(NamedTuple):
    """Option values of a variant of FedGen.

    Attributes:
      alpha: weight of the client's cross-entropy on generated features.
      beta: weight of the client's KL to the head's predictions of generated features.
      decay: factor on alpha, beta and server_lr in every round.
      diversity: weight of the generator's diversity loss.
      ensemble: True takes the generator's loss of the averaged logits, False averages the clients'
        losses.
      weight_decay: weight decay of the generator, added to its gradients.
      server_lr: learning rate of the generator's Adam.
      server_steps: steps of the generator's training in a round.
      server_batch_size: generated features of a step; 0: as many as a batch of local training.
    """

    alpha: float
    beta: float
    decay: float
    diversity: float
    ensemble: bool
    weight_decay: float
    server_lr: float
    server_steps: int
    server_batch_size: int


FORMS: Forms = {
    "paper": {
        "alpha": 10.0,
        "beta": 10.0,
        "decay": 0.98,
        "diversity": 1.0,
        "ensemble": False,
        "weight_decay": 1e-2,
        "server_lr": 3e-4,
        "server_steps": 50,
        "server_batch_size": 128,
    },
    "released": {
        "alpha": 1.0,
        "beta": 0.0,
        "decay": 1.0,
        "diversity": 0.0,
        "ensemble": True,
        "weight_decay": 0.0,
        "server_lr": 0.1,
        "server_steps": 100,
        "server_batch_size": 0,
    },
}


def draw_labels(key: jax.Array, counts: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Draws labels int32 [size] in proportion to counts; also returns a mask of True."""
    labels = jax.random.categorical(key, jnp.log(counts), shape=(size,))
    return labels, jnp.ones(size, bool)


class Server(NamedTuple):
    """The server's state.

    Attributes:
      head, generator: parameters of the global head and of the generator.
      label_counts: float32 [C], training samples by class of the last round's uploaders.
      ready: bool scalar, True as soon as the generator may teach.
    """

    head: PyTree
    generator: PyTree
    label_counts: jax.Array
    ready: jax.Array


class Downlink(NamedTuple):
    """A client's downlink; the leaves of `generator` are Masked by `Server.ready`."""

    head: PyTree
    generator: PyTree
    label_counts: Metadata
    ready: Metadata


class Uplink(NamedTuple):
    """A client's upload: its head, and Metadata(int32 [C]), its training samples by class."""

    head: PyTree
    label_counts: Metadata


@checked
@documented_by(Recipe)
def fedgen(
    training: LocalTraining,
    *,
    variant: Variant = "paper",
    noise_dim: Count = 32,
    hidden_dim: Count = 512,
    alpha: Annotated[NonNegative | None, SearchRange(0.1, 30.0)] = None,
    beta: Annotated[NonNegative | None, SearchRange(0.1, 30.0)] = None,
    diversity: NonNegative | None = None,
    server_lr: Positive | None = None,
    server_steps: Count | None = None,
    server_batch_size: Whole | None = None,
) -> Method:
    """Makes FedGen, described in the module's docstring.

    The other options are those of `Recipe`; those that are None take the variant's value.

    Args:
      training: local training.
      variant: form of the method, the paper's or the released code's; see the module's docstring
        for their differences.
      noise_dim, hidden_dim: widths of the generator's noise and of its hidden layer.
    """
    options = {
        "alpha": alpha,
        "beta": beta,
        "diversity": diversity,
        "server_lr": server_lr,
        "server_steps": server_steps,
        "server_batch_size": server_batch_size,
    }
    recipe = Recipe(**FORMS[variant] | settled(variant, options, FORMS))
    batch_size = recipe.server_batch_size or training.batch_size

    def generate(bucket, generator, key, labels, mask) -> tuple[jax.Array, Array]:
        """Returns the noise drawn, and the features generated from it."""
        module = FeatureGenerator(bucket.num_classes, hidden_dim, bucket.feature_dim)
        noise = jax.random.uniform(key, (labels.shape[0], noise_dim))
        generated: PyTree = module.apply({"params": generator}, noise, labels, mask)
        return noise, generated

    def init_server(federation, key):
        head_key, generator_key = jax.random.split(key)
        c = federation.num_classes
        example = jnp.zeros((1, noise_dim)), jnp.zeros(1, jnp.int32), jnp.ones(1, bool)
        module = FeatureGenerator(c, hidden_dim, federation.feature_dim)
        return Server(
            head=init_head(federation, head_key),
            generator=module.init(generator_key, *example)["params"],
            label_counts=jnp.ones(c),
            ready=jnp.array(variant == "released"),
        )

    def broadcast(federation, bucket, server, ctx):
        generator = jax.tree.map(lambda x: Masked(x, server.ready, FIRST_ROWS), server.generator)
        return Downlink(
            head=server.head,
            generator=generator,
            label_counts=Metadata(server.label_counts),
            ready=Metadata(server.ready),
        )

    def receive(bucket, client, downlink, data, ctx):
        return take_head(client, downlink.head)

    def client_update(bucket, client, downlink, data, ctx):
        generator = dense(downlink.generator)
        strength = downlink.ready.value * recipe.decay ** ctx.round.astype(jnp.float32)

        def loss(params, stats, batch: Batch, key) -> Loss:
            model_key, label_key, *noise_keys = jax.random.split(key, 4)
            representations, stats = batch_features(bucket, params, stats, batch, model_key)
            outputs = logits(bucket, params, representations)
            value = cross_entropy(outputs, batch.y, batch.mask)
            counts = downlink.label_counts.value
            labels, everyone = draw_labels(label_key, counts, training.batch_size)
            _, generated = generate(bucket, generator, noise_keys[0], labels, everyone)
            taught = logits(bucket, params, generated)
            teaching = recipe.alpha * cross_entropy(taught, labels, everyone)
            # A static beta of 0 drops the second term from the program.
            if traced(recipe.beta) or recipe.beta:
                _, alike = generate(bucket, generator, noise_keys[1], batch.y, batch.mask)
                teacher = lax.stop_gradient(logits(bucket, params, alike))
                teaching += recipe.beta * kl_divergence(teacher, outputs, batch.mask)
            return Loss(value + strength * teaching, stats)

        client, result = train_client(training, loss, bucket, client, data, ctx.key)
        uplink = Uplink(result.params["head"], Metadata(count_labels(data, bucket.num_classes)))
        return client, uplink, {"loss": result.loss}

    def train_generator(bucket, generator, heads, counts, ctx) -> tuple[PyTree, jax.Array]:
        """Trains the generator on the uploaded heads.

        Args:
          bucket: the bucket whose model has the heads.
          generator: parameters of the generator.
          heads: parameters of the uploaded heads, [P, ...]; a client without counts has weight 0.
          counts: float32 [P, C], the clients' samples by class.
          ctx: the context of `server_update`.

        Returns:
          The parameters after training, and the mean loss of the steps.
        """
        label_counts, samples = counts.sum(0), counts.sum(1)
        share = samples / jnp.maximum(samples.sum(), 1)

        def loss(generator, key):
            label_key, noise_key = jax.random.split(key)
            labels, everyone = draw_labels(label_key, label_counts, batch_size)
            noise, generated = generate(bucket, generator, noise_key, labels, everyone)

            def outputs_of(head):
                return logits(bucket, {"head": head}, generated)

            outputs = jax.vmap(outputs_of)(heads)  # [P, B, C]
            if recipe.ensemble:
                value = cross_entropy(jnp.einsum("p,pbc->bc", share, outputs), labels, everyone)
            else:
                errors = optax.softmax_cross_entropy_with_integer_labels(outputs, labels[None])
                owners = counts[:, labels] / jnp.maximum(label_counts[labels], 1)  # [P, B]
                value = jnp.mean(jnp.sum(owners * errors, axis=0))
            return value + recipe.diversity * diversity_loss(noise, generated)

        rate = recipe.server_lr * recipe.decay ** ctx.round.astype(jnp.float32)
        optimizer = optax.chain(optax.add_decayed_weights(recipe.weight_decay), optax.adam(rate))

        def step(i, carry):
            generator, state, total = carry
            value, gradients = jax.value_and_grad(loss)(generator, jax.random.fold_in(ctx.key, i))
            updates, state = optimizer.update(gradients, state, generator)
            return optax.apply_updates(generator, updates), state, total + value

        start = (generator, optimizer.init(generator), jnp.float32(0))
        generator, _, total = lax.fori_loop(0, recipe.server_steps, step, start)
        return generator, total / recipe.server_steps

    def server_update(federation, server, received, ctx):
        uplink, _, arrived = gather_received(received)
        counts = jnp.where(arrived[:, None], uplink.label_counts.value, 0)  # [P, C]
        counts = counts.astype(jnp.float32)
        samples = counts.sum(1)

        heads, bucket = keep_present(uplink.head, samples > 0), head_bucket(federation)
        generator, loss = train_generator(bucket, server.generator, heads, counts, ctx)
        new = Server(
            head=weighted_mean(uplink.head, samples),
            generator=generator,
            label_counts=counts.sum(0),
            ready=jnp.array(True),
        )
        return select(samples.any(), new, server), {"generator_loss": loss}

    return Method(
        name="fedgen",
        training=training,
        check=require_equal_heads,
        init_server=init_server,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
    )
