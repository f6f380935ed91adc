"""FedGen (Zhu et al., ICML 2021): a generator of features, trained on the clients' heads, teaches
every client.

    server:  head <- sum_i n_i head_i / n; G descends on E_y sum_i (n_i^y / n^y) CE(head_i(G(y)), y)
      + diversity loss,
             y drawn from the uploaders' labels, n_i^y samples of class y at client i
    client:  head_i <- head, then L = CE(m_i(x), y) + alpha_t CE(head_i(G(y')), y')
             + beta_t KL(head_i(G(y)) || m_i(x)), the KL's first side fixed, y' drawn from those
             labels, G frozen
    predict: own extractor, the head averaged

Settled here:
* The paper's objectives with its authors' weights: alpha 10 and beta 10, both times 0.98^t, as is
  the generator's learning rate; the two terms begin when G has been trained once.
  variant="released" is HtFLlib: neither KL nor diversity, alpha 1 without decay and from the first
  round, CE of the averaged logits, Adam at 0.1.
* y and y' follow the label counts of the last round's uploaders (HtFLlib gathers all clients'
  labels before the first round; the authors' code draws uniformly over labels at the server).
  Counts are metadata.
* G normalises by the batch it generates, everywhere, so that no running statistics travel (the
  authors' clients use running ones). Its noise is uniform, as in all code. Its Adam starts anew
  every round.
* The authors' code drops the two terms after 20 local epochs: not reproduced, since nobody trains
  so long in a round.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_ht.core.bounds import Count, NonNegative, Positive, SearchRange, Whole, checked, traced
from fedjax_ht.core.federation import features, logits, require_equal_heads
from fedjax_ht.core.local_training import Batch, LocalTraining, Loss, train
from fedjax_ht.core.method import Method, PyTree
from fedjax_ht.core.round import gather_received, select
from fedjax_ht.core.wire import Masked, Metadata, dense
from fedjax_ht.losses import cross_entropy, diversity_loss, kl_divergence
from fedjax_ht.methods.shared.averaging import weighted_mean
from fedjax_ht.methods.shared.heads import head_bucket, init_head, take_head
from fedjax_ht.methods.shared.prototypes import Variant
from fedjax_ht.methods.shared.supervised import count_labels
from fedjax_ht.models.generator import FeatureGenerator


class Recipe(NamedTuple):
    """What a variant stands for.

    Attributes:
      alpha, beta: weights of the client's two terms.
      decay: a factor on them, and on server_lr, every round.
      diversity: weight of the generator's diversity loss.
      ensemble: the generator's loss is that of the averaged logits, not the average of the clients'
        losses.
      weight_decay: of the generator, added to its gradients.
      server_lr, server_steps, server_batch_size: of the generator's training; a size of 0 is the
        clients' own.
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


RECIPES = {
    "paper": Recipe(10.0, 10.0, 0.98, 1.0, False, 1e-2, 3e-4, 50, 128),
    "released": Recipe(1.0, 0.0, 1.0, 0.0, True, 0.0, 0.1, 100, 0),
}


class Server(NamedTuple):
    """head and generator: parameters. label_counts float32 [C], of the last round. ready: G teaches
    from now on."""

    head: PyTree
    generator: PyTree
    label_counts: jax.Array
    ready: jax.Array


class Downlink(NamedTuple):
    """generator: leaves are Masked by whether it is ready."""

    head: PyTree
    generator: PyTree
    label_counts: Metadata
    ready: Metadata


class Uplink(NamedTuple):
    """head, and int32 [C] training samples by class."""

    head: PyTree
    label_counts: Metadata


@checked
def fedgen(
    training: LocalTraining,
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
    """FedGen as a `Method`, see above.

    Args:
      training: local training.
      variant: see the module's text.
      noise_dim, hidden_dim: of the generator.
      Others: as `Recipe`; None takes the variant's own.
    """
    given = {"alpha": alpha, "beta": beta, "diversity": diversity, "server_lr": server_lr}
    given |= {"server_steps": server_steps, "server_batch_size": server_batch_size}
    recipe = RECIPES[variant]._replace(
        **{name: value for name, value in given.items() if value is not None}
    )
    steps, batch_size = recipe.server_steps, recipe.server_batch_size or training.batch_size

    def generate(bucket, generator, key, labels, mask) -> tuple[jax.Array, jax.Array]:
        """The noise drawn, and the features made of it."""
        module = FeatureGenerator(bucket.num_classes, hidden_dim, bucket.feature_dim)
        noise = jax.random.uniform(key, (labels.shape[0], noise_dim))
        return noise, module.apply({"params": generator}, noise, labels, mask)

    def draw(key, label_counts, size) -> tuple[jax.Array, jax.Array]:
        """Labels int32 [size], in proportion to the counts, and a mask that lets all of them
        pass."""
        return jax.random.categorical(key, jnp.log(label_counts), shape=(size,)), jnp.ones(
            size, bool
        )

    def init_server(federation, key):
        head_key, generator_key = jax.random.split(key)
        c = federation.num_classes
        example = jnp.zeros((1, noise_dim)), jnp.zeros(1, jnp.int32), jnp.ones(1, bool)
        generator = FeatureGenerator(c, hidden_dim, federation.feature_dim).init(
            generator_key, *example
        )["params"]
        return Server(
            init_head(federation, head_key),
            generator,
            jnp.ones(c),
            jnp.array(variant == "released"),
        )

    def broadcast(federation, bucket, server, ctx):
        generator = jax.tree.map(lambda x: Masked(x, server.ready), server.generator)
        return Downlink(
            server.head, generator, Metadata(server.label_counts), Metadata(server.ready)
        )

    def client_update(bucket, client, downlink, data, ctx):
        generator = dense(downlink.generator)
        strength = downlink.ready.value * recipe.decay ** ctx.round.astype(jnp.float32)

        def loss(params, stats, batch: Batch, key) -> Loss:
            model_key, label_key, *noise_keys = jax.random.split(key, 4)
            representations, stats = features(
                bucket, params, stats, batch.x, batch.mask, train=True, key=model_key
            )
            outputs = logits(bucket, params, representations)
            value = cross_entropy(outputs, batch.y, batch.mask)
            labels, everyone = draw(label_key, downlink.label_counts.value, training.batch_size)
            _, generated = generate(bucket, generator, noise_keys[0], labels, everyone)
            teaching = recipe.alpha * cross_entropy(
                logits(bucket, params, generated), labels, everyone
            )
            if traced(recipe.beta) or recipe.beta:
                _, alike = generate(bucket, generator, noise_keys[1], batch.y, batch.mask)
                teacher = lax.stop_gradient(logits(bucket, params, alike))
                teaching += recipe.beta * kl_divergence(teacher, outputs, batch.mask)
            return Loss(value + strength * teaching, stats)

        result = train(
            training, loss, client["params"], client["stats"], data, ctx.key, bucket.num_classes
        )
        uplink = Uplink(result.params["head"], Metadata(count_labels(data, bucket.num_classes)))
        return {"params": result.params, "stats": result.stats}, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        uplink, _, arrived = gather_received(received)
        # [P, C]
        counts = jnp.where(arrived[:, None], uplink.label_counts.value, 0).astype(jnp.float32)
        label_counts, samples = counts.sum(0), counts.sum(1)
        share = samples / jnp.maximum(samples.sum(), 1)

        def pick(x):
            return jnp.where((samples > 0).reshape((-1,) + (1,) * (x.ndim - 1)), x, 0)

        heads, bucket = jax.tree.map(pick, uplink.head), head_bucket(federation)

        def loss(generator, key):
            label_key, noise_key = jax.random.split(key)
            labels, everyone = draw(label_key, label_counts, batch_size)
            noise, generated = generate(bucket, generator, noise_key, labels, everyone)
            # [P, B, C]
            outputs = jax.vmap(lambda head: logits(bucket, {"head": head}, generated))(heads)
            if recipe.ensemble:
                value = cross_entropy(jnp.einsum("p,pbc->bc", share, outputs), labels, everyone)
            else:
                # [P, B]
                each = optax.softmax_cross_entropy_with_integer_labels(outputs, labels[None])
                owners = counts[:, labels] / jnp.maximum(label_counts[labels], 1)
                value = jnp.mean(jnp.sum(owners * each, axis=0))
            return value + recipe.diversity * diversity_loss(noise, generated)

        rate = recipe.server_lr * recipe.decay ** ctx.round.astype(jnp.float32)
        optimizer = optax.chain(optax.add_decayed_weights(recipe.weight_decay), optax.adam(rate))

        def step(i, carry):
            generator, state, total = carry
            value, gradients = jax.value_and_grad(loss)(generator, jax.random.fold_in(ctx.key, i))
            updates, state = optimizer.update(gradients, state, generator)
            return optax.apply_updates(generator, updates), state, total + value

        start = (server.generator, optimizer.init(server.generator), jnp.float32(0))
        generator, _, total = lax.fori_loop(0, steps, step, start)
        new = Server(weighted_mean(uplink.head, samples), generator, label_counts, jnp.array(True))
        return select(samples.any(), new, server), {"generator_loss": total / steps}

    return Method(
        name="fedgen",
        training=training,
        check=require_equal_heads,
        init_server=init_server,
        broadcast=broadcast,
        receive=lambda bucket, client, downlink, data, ctx: take_head(client, downlink.head),
        client_update=client_update,
        server_update=server_update,
    )
