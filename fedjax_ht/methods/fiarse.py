"""FIARSE (Wu et al., NeurIPS 2024): a client trains the entries of largest magnitude.

    client:  of share gamma_i holds the entries of w with |w| >= theta_i, the
             floor(gamma_i (W - N))-th largest |w|; descends on CE(m w_i), where
             m = 1[|w_i| >= theta_i] is read anew in every step and theta_i stays, along
             g m (1 + 2 theta_i |w_i| / (|w_i| + theta_i)^2), g being the gradient in m w_i
    server:  w <- w - eta_g mean_i (w - w_i), entry by entry over the clients that hold it; the rest
             stays
    predict: the client's part of the model; the whole model in a column of its own
    up:      gamma_i (W - N) + N + S: changes of the entries that the client holds and of norms, and
             running statistics
    down:    gamma_i (W - N) + N + S: the entries that the client holds, norms, and running
             statistics
    fits:    one architecture or a few, clients that cannot send or store all of it; arithmetic is
             not saved
    paper:   https://arxiv.org/abs/2407.19389

W counts all parameters, N those of norms, which every client holds, S running statistics.

Settled here:
* variant="released": there is no factor, because the released mask has booleans, which have no
  gradient. A client counts at the entries that it has changed, so an entry with a gradient of 0
  counts as absent. By default it counts at all entries that it held at the round's start; `holders`
  sets this independently of the variant.
* Client i has shares[i modulo their number]. Magnitudes are compared over the whole model;
  masks="layer" compares them within each layer, the paper's other form, so that each keeps the
  share of its own entries. A layer is the head, or a module directly below the extractor (a
  convolution, a residual block) with all its parameters; the authors' are the first convolution,
  each stage and the last layer. Ties at theta_i keep more entries than gamma_i says. Biases that
  start at 0 are not held below share 1, and at share 1 theta_i is min |w|, so that the factor is
  not exactly 1 there.
* A message identifies its entries by a bit for each entry of the model, or by an index for each
  sent entry, whichever is shorter.
* Kernels stay dense: a mask saves bytes but no arithmetic, and the reported FLOPs are those of the
  whole model. The metric `kept` is a client's share of entries, by which sparse hardware would
  reduce them.
* Clients have equal weights, and 0 without samples. Running statistics of norms are sent, and
  averaged over all clients of a round. The paper has one architecture; here every architecture has
  its own server model.
"""

import math
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.check.options import Part, Positive, SearchRange, Within, checked
from fedjax_ht.core.bucket import Bucket, init_variables
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import GlobalModel, Method, Needs, Wire
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.trees import PyTree
from fedjax_ht.core.wire import FIRST_ROWS, SHORTEST, Masked, dense
from fedjax_ht.methods.shared.architectures import groups_of, joined, part_for
from fedjax_ht.methods.shared.averaging import client_weights, mean_or
from fedjax_ht.methods.shared.norms import entries_of, in_norms
from fedjax_ht.methods.shared.supervised import train_model
from fedjax_ht.methods.shared.variants import Forms, Variant, settled

Compared = Literal["model", "layer"]


def layers_of(bucket: Bucket, params: PyTree, compared: Compared) -> tuple[PyTree, int]:
    """Numbers the layers within which entries are compared.

    Args:
      bucket: the bucket of the model.
      params: parameters of the model, {"base", "head"}.
      compared: "model" makes the whole model one layer; with "layer" the head is one, and so is
        each module directly below the extractor.

    Returns:
      Each parameter leaf's layer number, -1 for leaves of norms; and the number of layers.
    """
    numbers: dict[tuple[str, ...], int] = {}

    def number(path, norm: bool) -> int:
        if norm:
            return -1
        names = tuple(entry.key for entry in path)
        layer = names[: 2 if names[0] == "base" else 1] if compared == "layer" else ()
        return numbers.setdefault(layer, len(numbers))

    return jax.tree_util.tree_map_with_path(number, in_norms(bucket, params)), len(numbers)


def magnitudes(layers: tuple[PyTree, int], params: PyTree) -> list[list[jax.Array]]:
    """Returns the magnitudes of each layer's leaves outside of norms; `layers` from `layers_of`."""
    numbers, count = layers
    of_layers: list[list[jax.Array]] = [[] for _ in range(count)]
    for leaf, number in zip(jax.tree.leaves(params), jax.tree.leaves(numbers), strict=True):
        if number >= 0:
            of_layers[number].append(jnp.abs(leaf))
    return of_layers


FORMS: Forms = {"paper": {"holders": "mask"}, "released": {"holders": "change"}}


class Server(NamedTuple):
    """The server's state of one architecture.

    Attributes:
      params: w, {"base", "head"}.
      stats: running statistics of its norms.
      thresholds: float32 [number of shares], theta of each share, or [number of shares, layers];
        stored here, so that magnitudes are sorted once per round and not for each client.
    """

    params: PyTree
    stats: PyTree
    thresholds: jax.Array


class Message(NamedTuple):
    """A part of a model, or its change.

    Attributes:
      weights: Masked(float32 [W], bool [W]), the entries outside of norms, in the order of `jax`'s
        leaves.
      norms: Masked(float32 [N], bool [N]), the entries of norms; () for a model without any.
      stats: running statistics of norms, {} without any.
    """

    weights: Masked
    norms: Masked | tuple
    stats: PyTree


def held_entries(share: float, entries: int) -> int:
    """Returns floor(share * entries), at least 1; ignores rounding errors of the product."""
    return max(1, math.floor(round(share * entries, 6)))


def masked(w: jax.Array, threshold: jax.Array, biased: bool) -> jax.Array:
    """Sets entries of magnitude below a threshold to 0, with the gradient of FIARSE.

    Args:
      w: float array.
      threshold: theta, float32 scalar of at least 0; it is treated as a constant.
      biased: True multiplies the gradient of kept entries by 1 + 2 theta |w| / (|w| + theta)^2;
        that of the others is 0.

    Returns:
      w 1[|w| >= theta].
    """
    size = lax.stop_gradient(jnp.abs(w))
    held, slope = size >= threshold, jnp.ones_like(w)
    if biased:
        total = jnp.where(size + threshold > 0, size + threshold, 1)  # both are 0 where biases are
        slope = 1 + 2 * threshold * size / total**2
    # This difference is 0, and carries the gradient.
    moving = w - lax.stop_gradient(w)
    return jnp.where(held, lax.stop_gradient(w) + slope * moving, 0)


@checked
def fiarse(
    training: LocalTraining,
    *,
    shares: Annotated[tuple[Part, ...], Within(1)] = (1.0, 1 / 4, 1 / 16, 1 / 64),
    variant: Variant = "paper",
    holders: Literal["mask", "change"] | None = None,
    server_lr: Annotated[Positive, SearchRange(0.1, 1.0)] = 1.0,
    masks: Compared = "model",
) -> Method:
    """Makes FIARSE, described in the module's docstring.

    Args:
      training: local training.
      shares: shares gamma of the entries outside of norms, which clients take in turn.
      variant: form of the method, the paper's or the released code's; see the module's docstring
        for their differences.
      holders: clients that count at an entry, those whose "mask" had it at the round's start, or
        those with a "change" there; None takes the variant's, "mask" (paper) or "change"
        (released).
      server_lr: eta_g, the server's learning rate.
      masks: entries whose magnitudes are compared, those of the whole "model" or of each "layer".
    """
    by_change = settled(variant, {"holders": holders}, FORMS)["holders"] == "change"
    biased = variant == "paper"

    def served(bucket, params, stats) -> Server:
        thresholds = []
        for sizes in magnitudes(layers_of(bucket, params, masks), params):
            sizes = jnp.sort(jnp.concatenate(list(map(jnp.ravel, sizes))))
            places = [sizes.size - held_entries(share, sizes.size) for share in shares]
            thresholds.append(sizes[jnp.array(places)])
        if masks == "model":
            return Server(params, stats, thresholds[0])
        return Server(params, stats, jnp.stack(thresholds, 1))

    def init_server(federation, key):
        servers = []
        for i, (bucket, *_) in enumerate(groups_of(federation)):
            model = init_variables(bucket, jax.random.fold_in(key, i))
            servers.append(served(bucket, model["params"], model["stats"]))
        return servers

    def broadcast(federation, bucket, server, ctx):
        params, stats, thresholds = part_for(federation, bucket, server)
        weights, norms, _ = entries_of(bucket, params)
        of_layers = jnp.atleast_1d(thresholds[ctx.info.id % len(shares)])

        def is_held(w, number):
            return jnp.abs(w) >= of_layers[number]

        numbers, _ = layers_of(bucket, params, masks)
        held = entries_of(bucket, jax.tree.map(is_held, params, numbers)).weights
        return Message(Masked(weights, held, SHORTEST), _all_of(norms), stats)

    def receive(bucket, client, downlink, data, ctx):
        part, entries = dense(downlink), entries_of(bucket, client["params"])
        norms = part.norms if entries.norms.size else entries.norms
        params = entries.model(part.weights, norms)
        return client | {"params": params, "stats": downlink.stats}

    def client_update(bucket, client, downlink, data, ctx):
        received, mask = client["params"], downlink.weights.mask
        sizes = jnp.where(mask, jnp.abs(downlink.weights.values), jnp.inf)
        entries, layers = entries_of(bucket, received), layers_of(bucket, received, masks)
        thresholds = []
        for of_layer in magnitudes(layers, entries.model(sizes, entries.norms)):
            # the smallest entry of a layer that was sent is theta itself
            thresholds.append(jnp.min(jnp.stack(list(map(jnp.min, of_layer)))))

        def masked_leaf(w, number):
            return w if number < 0 else masked(w, thresholds[number], biased)

        def part(params):
            return jax.tree.map(masked_leaf, params, layers[0])

        client, result = train_model(
            training, bucket, client, data, ctx, trained=received, put=part
        )
        change = jax.tree.map(jnp.subtract, received, result.params)
        weights, norms, _ = entries_of(bucket, change)
        uplink = Message(Masked(weights, mask, SHORTEST), _all_of(norms), result.stats)
        if by_change:
            norms = Masked(norms, norms != 0, SHORTEST) if norms.size else ()
            uplink = Message(Masked(weights, weights != 0, SHORTEST), norms, result.stats)
        return client, uplink, {"loss": result.loss, "kept": mask.mean()}

    def server_update(federation, server, received, ctx):
        new = []
        groups = groups_of(federation)
        for uploads, old, (bucket, *_) in zip(joined(federation, received), server, groups):
            clients, sent = client_weights(uploads), uploads.uplink
            weights, norms, model = entries_of(bucket, old.params)
            params = model(
                weights - server_lr * _mean_change(sent.weights, clients),
                norms - server_lr * _mean_change(sent.norms, clients),
            )
            stats = mean_or(old.stats, sent.stats, clients)
            new.append(served(bucket, params, stats))
        return new, {}

    return Method(
        name="fiarse",
        training=training,
        needs=Needs(classes=False),
        init_server=init_server,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        global_model=GlobalModel(
            params=lambda server: server[0].params,
            stats=lambda server: server[0].stats,
            bucket=_only_architecture,
        ),
        wire=Wire(server_reads="sums"),
    )


def _all_of(norms: jax.Array) -> Masked | tuple:
    """Sends all entries of norms, without positions; () if there are none."""
    return Masked(norms, jnp.ones(norms.shape, bool), FIRST_ROWS) if norms.size else ()


def _mean_change(sent: Masked | tuple, clients: jax.Array) -> jax.Array | float:
    """Averages changes [P, W] entry by entry over the clients that send it; 0 if none does.

    Args:
      sent: the changes of P clients, or () without entries.
      clients: float32 [P], 1 for clients that count and 0 for others, which are never read.
    """
    if not isinstance(sent, Masked):
        return 0.0
    weights = jnp.where(sent.mask, clients[:, None], 0)
    return weighted_sum(sent.values, weights) / jnp.maximum(weights.sum(0), 1)


def _only_architecture(federation: Federation) -> Bucket | None:
    """Returns the bucket of a one-architecture federation, for server scores; else None."""
    return federation.buckets[0] if len(federation.buckets) == 1 else None
