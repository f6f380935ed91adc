"""FedGen's generator of features of a class, and its training on clients' heads at the server."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.core.bucket import Bucket, logits
from fedjax_ht.core.context import Context
from fedjax_ht.core.trees import PyTree
from fedjax_ht.losses import cross_entropy, diversity_loss
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.norm import Norm


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
    """The numbers of a variant of FedGen.

    Attributes:
      alpha: weight of the client's cross-entropy on generated features.
      beta: weight of the client's KL to the head's predictions of generated features.
      decay: factor on alpha, beta and server_lr in every round.
      diversity: weight of the generator's diversity loss.
      ensemble: the generator's loss is that of the averaged logits, not the average of the clients'
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


def draw_labels(key: jax.Array, counts: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Draws labels int32 [size] in proportion to the counts; and a mask of True."""
    labels = jax.random.categorical(key, jnp.log(counts), shape=(size,))
    return labels, jnp.ones(size, bool)


def train_generator(
    recipe: Recipe,
    batch_size: int,
    generate: Callable[..., tuple[jax.Array, jax.Array]],
    *,
    bucket: Bucket,
    generator: PyTree,
    heads: PyTree,
    counts: jax.Array,
    ctx: Context,
) -> tuple[PyTree, jax.Array]:
    """Trains the generator on the uploaded heads.

    Args:
      recipe, batch_size: options of the training, and number of features per step.
      generate: (bucket, generator, key, labels, mask) -> (noise, features).
      bucket: the bucket whose model has the heads.
      generator: parameters of the generator.
      heads: parameters of the uploaded heads, [P, ...]; those of a client without counts weigh
        nothing.
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
