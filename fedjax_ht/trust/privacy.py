"""Differential privacy as a wrapper around a method.

A client's update is its upload minus that of a new client without samples for the same downlink,
which does not depend on the client's data or state. By unit:

    client   Every update is clipped to norm `clip`; the server adds N(0, (noise clip)^2) to their
             sum. The server's state reveals little about a client; the server sees all uploads.
    upload   Every update is clipped, and the client adds this noise itself. An upload reveals
             little about its client, even to the server.
    sample   Clients train by DP-SGD (Abadi et al., CCS 2016), see `dp_train`. Neither uploads nor
             states reveal much about a single sample.

With the first two, every client counts as one sample, for the server and for itself. A client whose
state is not finite keeps its old one; one whose upload is not finite sends an update of zero. So
neither counts nor absence reveal anything. If
uplinks of different shapes are summed separately, each sum has the whole noise, since a client is
in only one of them. With the third, sample counts are public.

Messages with parts that noise cannot hide are rejected, see `trust.disclosure`.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.check.options import check_fields
from fedjax_ht.core import wire
from fedjax_ht.core.batches import Batch, take_batch
from fedjax_ht.core.context import ClientInfo, Context, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import privacy_key
from fedjax_ht.core.local_training import (
    LocalTraining,
    LossFn,
    TrainingResult,
    augmented,
    descend,
    num_steps,
)
from fedjax_ht.core.method import Method, around
from fedjax_ht.core.round import any_state, without_samples
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.trust.attacks import attacked
from fedjax_ht.trust.disclosure import check_samples, check_uploads
from fedjax_ht.trust.options import Attack, Privacy
from fedjax_ht.trust.vectors import comparable


def concealed(method: Method, attack: Attack, privacy: Privacy | None, num_clients: int) -> Method:
    """Returns the method as its clients run it, with attack and privacy, but without defences.

    This defines the order of wrappers around a method. From the inside: the contract's checks
    (`contract.guarded`), the attack, privacy (so that attackers cannot avoid its clipping), and
    last, by `trust.defences.defended`, the defences, which compare the uploads that the server
    gets. An attack without a kind and privacy None are skipped.
    """
    return private(attacked(method, attack, num_clients), privacy)


def private(method: Method, privacy: Privacy | None) -> Method:
    """Returns the method with this privacy.

    Args:
      method: any method.
      privacy: the unit, clipping and noise; None returns the method itself.

    Returns:
      A method whose `check` raises ValueError if its messages reveal what noise cannot hide.

    Raises:
      ValueError: a field of `privacy` is out of range.
    """
    if privacy is None:
        return method
    check_fields(privacy, "privacy.")
    return around(method, functools.partial(_private, privacy))


def _private(privacy: Privacy, method: Method) -> Method:
    of_samples = privacy.unit == "sample"
    made = _private_samples(method, privacy) if of_samples else _private_clients(method, privacy)

    def check(federation):
        method.check(federation)
        if of_samples:
            check_samples(method, federation)
        else:
            check_uploads(method, federation, sums=privacy.unit == "client")

    return made._replace(check=check)


def _private_samples(method: Method, privacy: Privacy) -> Method:
    train = functools.partial(dp_train, privacy.clip, privacy.noise, privacy.secret)

    def client_update(bucket, client, downlink, data, ctx):
        data = data._replace(trainer=jax.tree_util.Partial(train))
        new, uplink, metrics = method.client_update(bucket, client, downlink, data, ctx)
        return new, uplink, _finite(metrics)

    return method._replace(client_update=client_update)


def _private_clients(method: Method, privacy: Privacy) -> Method:
    def broadcast(federation, bucket, server, ctx):
        return method.broadcast(federation, bucket, server, _uncounted(ctx))

    def receive(bucket, client, downlink, data, ctx):
        return method.receive(bucket, client, downlink, data, _uncounted(ctx))

    def client_update(bucket, client, downlink, data, ctx):
        ctx, key = _uncounted(ctx), privacy_key(ctx.key, privacy.secret)
        new, uplink, metrics = method.client_update(bucket, client, downlink, data, ctx)
        finite = wire.all_finite((new, uplink))
        # The state of a new client, since this client's own state depends on its samples.
        nothing, ctx = without_samples(data), ctx.of_newcomer()
        newcomer = any_state(method, bucket, ctx.key)
        newcomer = method.receive(bucket, newcomer, downlink, nothing._replace(round=None), ctx)
        _, untrained, _ = method.client_update(bucket, newcomer, downlink, nothing, ctx)
        uplink = _clip_update(uplink, untrained, privacy.clip)
        if privacy.unit == "upload":
            uplink = _add_noise(uplink, privacy.clip * privacy.noise, key)
        return select(finite, new, client), uplink, _finite(metrics)

    def server_update(federation, server, received: dict[str, Received], ctx):
        uncounted = {}
        for name, r in received.items():
            uncounted[name] = r._replace(info=_one_sample(r.info))
        if privacy.unit == "client":
            key = privacy_key(ctx.key, privacy.secret)
            uncounted = noisy_sums(federation, uncounted, privacy.clip * privacy.noise, key)
        new, metrics = method.server_update(federation, server, uncounted, ctx)
        return jax.tree_util.tree_map_with_path(_without_negative_variance, new), metrics

    counts = "one" if method.wire.counts == "samples" else method.wire.counts
    return method._replace(
        wire=method.wire._replace(counts=counts),
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
    )


def _finite(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Sets metrics that are not finite to 0.

    With them a result would not arrive, and its absence would reveal, say, an infinite loss.
    """
    return {name: jnp.where(jnp.isfinite(x), x, 0) for name, x in metrics.items()}


def _without_negative_variance(path: tuple, x: jax.Array) -> jax.Array:
    """Sets negative entries of a norm's running variance to 0; noise makes them, and roots NaN."""
    is_variance = bool(path) and getattr(path[-1], "key", None) == "var"
    return jnp.maximum(x, 0) if is_variance else x


def _one_sample(info: ClientInfo) -> ClientInfo:
    return info._replace(num_samples=jnp.ones_like(info.num_samples))


def _uncounted(ctx: Context) -> Context:
    return ctx if ctx.info is None else ctx._replace(info=_one_sample(ctx.info))


def _clip_update(uplink: PyTree, untrained: PyTree, clip: float) -> PyTree:
    """Clips the update in an upload, over all arrays of its payload together.

    The result is `untrained` if the update is not finite.
    """
    untrained_leaves, starts, updates = wire.leaves_of(untrained), {}, {}
    for place, leaf in wire.payload_leaves(uplink).items():
        starts[place] = wire.dense(untrained_leaves[place])
        # Rows that are not sent may hold any value, and are not part of the update.
        difference = wire.values_of(leaf) - starts[place]
        updates[place] = jnp.where(wire.sent_rows(leaf), difference, 0)
    return wire.with_payload(uplink, jax.tree.map(jnp.add, starts, clipped(updates, clip)))


def _add_noise(uplink: PyTree, scale: float, key: jax.Array) -> PyTree:
    values = {place: wire.values_of(leaf) for place, leaf in wire.payload_leaves(uplink).items()}
    noise = gaussian(key, values, scale)
    return wire.with_payload(uplink, jax.tree.map(jnp.add, values, noise))


def noisy_sums(
    federation: Federation, received: dict[str, Received], scale: float, key: jax.Array
) -> dict[str, Received]:
    """Adds noise N(0, scale^2) to the sum over clients of every entry that any of them sends.

    This is done separately for uplinks of each shape. The noise is added to the upload of the first
    client, by id, that sends the entry.

    Args:
      federation: the federation of the buckets.
      received: bucket name -> uplinks.
      scale: standard deviation of the noise.
      key: the key of the round.

    Returns:
      bucket name -> uplinks, in the order of `received`.
    """
    noisy = {}
    for part in comparable(received, nested=False):
        # Key by the part's first client, so that the draw does not depend on padding or the order
        # of buckets.
        first_client = min(federation.members(b)[0] for b in federation.buckets if b.name in part)
        joined = jax.tree.map(lambda *xs: jnp.concatenate(xs), *part.values())
        arrays = {}
        for place, leaf in wire.payload_leaves(joined.uplink).items():
            leaf_key = jax.random.fold_in(jax.random.fold_in(key, first_client), place)
            arrays[place] = _noisy_array(joined, leaf, federation.num_clients, scale, leaf_key)
        uplink, start = wire.with_payload(joined.uplink, arrays), 0
        for name, r in part.items():
            stop = start + len(r.arrived)
            rows = operator.itemgetter(slice(start, stop))
            noisy[name] = r._replace(uplink=jax.tree.map(rows, uplink))
            start = stop
    return {name: noisy[name] for name in received}


def _noisy_array(
    received: Received, leaf: Any, absent: int, scale: float, key: jax.Array
) -> jax.Array:
    """Adds noise to each entry of one leaf, in the row of the first client that sends the entry.

    Args:
      received: the uplinks that contain `leaf`.
      leaf: array or `Masked` with a leading client axis.
      absent: a number above any client's id.
      scale: standard deviation of the noise.
      key: the key of the noise on this leaf.
    """
    values = wire.values_of(leaf)

    def by_client(x):
        return x.reshape(-1, *(1,) * (values.ndim - 1))

    sends = by_client(received.arrived) & wire.sent_rows(leaf)
    ids = by_client(received.info.id)
    first = jnp.min(jnp.where(sends, ids, absent), axis=0)
    noise = gaussian(key, values[0], scale)
    return values + jnp.where(sends & (ids == first), noise, 0)


def norm_of(tree: PyTree) -> jax.Array:
    """Computes the L2 norm of all arrays together, a float32 scalar; 0 without arrays."""
    total = jnp.float32(0)
    for x in jax.tree.leaves(tree):
        total = total + jnp.sum(jnp.square(x.astype(jnp.float32)))
    return jnp.sqrt(total)


def clipped(tree: PyTree, clip: float) -> PyTree:
    """Scales all arrays together to a norm of at most `clip`; zeros if the norm is not finite."""
    norm = norm_of(tree)
    factor = clip / jnp.maximum(norm, clip)

    def scaled(x):
        return jnp.where(jnp.isfinite(norm), x * factor.astype(x.dtype), 0)

    return jax.tree.map(scaled, tree)


def gaussian(key: jax.Array, tree: PyTree, scale: float) -> PyTree:
    """Draws noise N(0, scale^2) with the arrays' shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    drawn = []
    for i, x in enumerate(leaves):
        drawn.append(scale * jax.random.normal(jax.random.fold_in(key, i), x.shape, x.dtype))
    return jax.tree.unflatten(structure, drawn)


def clipped_sum(
    gradient_of: Callable, batch: Batch, keys: jax.Array, clip: float
) -> tuple[PyTree, jax.Array]:
    """Sums the clipped gradients, and the losses, of a batch's real samples.

    Args:
      gradient_of: (Batch of one sample, key) -> (loss, gradient).
      batch: a batch of B samples.
      keys: random keys, [B], one per sample.
      clip: bound on the L2 norm of a sample's gradient.
    """

    def gradient_and_loss(sample: Batch, key):
        # A batch of one sample; its mask is True, so that the loss of a masked sample is not 0 / 0.
        alone = jax.tree.map(lambda x: x[None], sample)._replace(mask=jnp.ones(1, bool))
        value, gradient = gradient_of(alone, key)

        def if_real(x):
            # `where`, not a product: a masked sample's gradient may be NaN.
            return jnp.where(sample.mask, x, 0)

        return jax.tree.map(if_real, (clipped(gradient, clip), value))

    return jax.tree.map(lambda x: x.sum(0), jax.vmap(gradient_and_loss)(batch, keys))


def poisson_batch(key: jax.Array, source: Split, size: int) -> Split:
    """Draws each sample with probability size / count, or 1 if there are fewer than `size`.

    Args:
      key: the key of the step.
      source: the samples; `count` of them are real.
      size: mean number of drawn samples.

    Returns:
      The split with drawn samples first.
    """
    # Each sample has its own bits, so that padding has no influence. There are 23 of them: the
    # probability's error is at most 1e-7.
    chance = size / jnp.maximum(source.count, size).astype(jnp.float32)
    position = jnp.arange(source.indices.shape[0])
    chosen = (jax.random.uniform(key, position.shape) < chance) & (position < source.count)
    return Split(source.indices[jnp.argsort(~chosen, stable=True)], chosen.sum(dtype=jnp.int32))


def dp_train(
    clip: float,
    noise: float,
    secret: Sequence[int],
    training: LocalTraining,
    loss_fn: LossFn,
    params: PyTree,
    stats: PyTree,
    data: Data,
    key: jax.Array,
    num_classes: int,
    split: str = "train",
) -> TrainingResult:
    """Trains by DP-SGD, in place of `local_training.train`.

    In every step

        each of n samples is in the batch with probability B / n, independently of the others
        g_i = gradient of sample i's loss
        g = (sum_i g_i min(1, clip / |g_i|) + N(0, (noise clip)^2)) / B
        the recipe's optimiser descends on g

    These are Poisson batches, for which accountants give the best bounds; B is their mean size.
    Gradients are summed over as many blocks of B samples as a batch needs, so no batch is cut.
    If a client has fewer than B samples, every batch has all of them, and B is their number. The
    number of steps is the recipe's, which depends on the client's number of samples.

    The loss sees one sample at a time, with its own key and augmentation; terms that compare
    samples of a batch vanish.

    Args:
      clip, noise: bound on a sample's gradient and noise multiplier.
      secret: words that are folded into the key of the noise, see `keys.privacy_key`.
      training, loss_fn, params, stats, data, key, num_classes, split: arguments as for
        `local_training.train`.

    Returns:
      The result, with unchanged `stats`: running statistics of a batch would reveal its samples.
    """
    source, size = data.splits[split], training.batch_size
    steps, black = num_steps(training, source.count), getattr(data.preprocess, "black", 0.0)
    mean_size = jnp.clip(source.count, 1, size)
    draw_key, noise_key = jax.random.split(privacy_key(key, secret))
    sample_key = jax.random.split(key)[0]

    def step(number, state):
        params, opt_state, total = state

        def gradient_of(sample: Batch, key):
            loss_key, augment_key = jax.random.split(key)
            if training.augmentation is not None:
                sample = augmented(training.augmentation, sample, black, key=augment_key)

            def loss(params):
                return loss_fn(params, stats, sample, loss_key).value

            return jax.value_and_grad(loss)(params)

        drawn = poisson_batch(jax.random.fold_in(draw_key, number), source, size)

        def block(i, sums):
            batch = take_batch(data, drawn.indices, drawn.count, i * size, size)
            block_key = jax.random.fold_in(jax.random.fold_in(sample_key, number), i)
            keys = jax.random.split(block_key, size)
            return jax.tree.map(jnp.add, sums, clipped_sum(gradient_of, batch, keys, clip))

        nothing = jax.tree.map(jnp.zeros_like, params), jnp.float32(0)
        gradients, losses = lax.fori_loop(0, (drawn.count + size - 1) // size, block, nothing)
        added = gaussian(jax.random.fold_in(noise_key, number), params, clip * noise)
        gradients = jax.tree.map(lambda g, n: (g + n) / mean_size, gradients, added)
        params, opt_state = descend(training, data, gradients, opt_state, params)
        return params, opt_state, total + losses / mean_size

    start = params, training.optimizer.init(params), jnp.float32(0)
    params, _, total = lax.fori_loop(0, steps, step, start)
    loss = total / jnp.maximum(steps, 1)
    return TrainingResult(params=params, stats=stats, loss=loss, class_sums=None)
