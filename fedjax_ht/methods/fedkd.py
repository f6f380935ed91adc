"""FedKD (Wu et al., Nature Communications 2022): mutual learning with a compressed shared mentee.

    client:  g_i <- g; on the same batches, with c = CE(m_i(x), y), q = CE(g_i(x), y), h and r the
             features of both models,
             L_m = c + (KL(softmax g_i(x) || softmax m_i(x)) + MSE(h, W_i r)) / (c + q)
             L_g = q + (KL(softmax m_i(x) || softmax g_i(x)) + MSE(h, W_i r)) / (c + q);
             uploads compress(g_i - g)
    server:  U <- compress(uniform mean of the updates); g <- g + U; sends U
    predict: m_i, the private model
    up:      k (p + q + 1) per p x q matrix of rank k, or p q: the auxiliary model's change
    down:    the same; A to clients that the last round did not reach: the mean change
    paper:   https://arxiv.org/abs/2108.13323

compress: every matrix to the fewest singular components that keep a share T of its energy; T rises
linearly over the rounds from `start` to `end`.

Settled here:
* The update to the last global weights is compressed. A client that does not have those weights,
  because it missed the round before (or its upload got lost), is sent g itself, uncompressed; so
  are all clients in the first round. Only participants receive anything; HtFLlib's server sends to
  all clients after every round.
* The paper's models have no convolutions; here a kernel [h, w, I, O] is one matrix [h w I, O]. A
  matrix whose components would be no smaller is sent whole and as it is, like the biases; full rank
  is allowed.
* Each model descends on its own loss, the other one's outputs being constants there; W_i descends
  on both. The paper's other hidden layers and attention maps have no counterpart in models of
  different architectures.
* variant="released" is HtFLlib, for classes only: KL divided by their number too, each model
  descends on L_m + L_g, and the weights are compressed rather than the update, both ways, a
  convolution as I O matrices [h, w] of one common rank. Weights that lose a share 1 - T of their
  energy twice a round lose their rank for good: a fresh layer [1024, 512] is down from 512
  components to 343 after a round, 88 after ten and 23 after 25, before any training; an update is
  as full in the last round as in the first. This requires that matrices sent whole are cut as well.
  A client then sends 199,142 of the 582,026 numbers of the four-layer CNN (28x28, grey) in the
  tenth round, else 550,721.
* No message is larger than raw here (HtFLlib's 5x5 kernel of rank 4 is 44 numbers), and no layer is
  zeroed, as HtFLlib does where the energy needs full rank: with every 1x1 convolution, and with 3x3
  ones from some T on.
* end is 0.98 as in the authors' code; FedKTL's appendix prints 0.95. HtFLlib clips the gradient
  norm of each model and of W_i at 10; set it in the optimizer, which runs separately for each. c +
  q is kept above 1e-6.

An array is compressed as S matrices [M, N] and sent as their first k singular components (u_j,
s_j, v_j), S k (M + N + 1) numbers; or whole, where that is no more. Vectors are sent whole. The
form says how arrays are cut into matrices:

    paper:     an array [..., O] is one matrix [M, O], a convolution's kernel [h, w, I, O] being
               [h w I, O]; arrays sent whole are sent as they are
    released: (HtFLlib) a convolution's kernel is I O matrices [h, w] with one k for all, by the sum
               of their energies, other arrays as above; arrays sent whole also lose their last
               components
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.check.options import Count, Part, checked, traced
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.batches import add_trees
from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.core.task import Task
from fedjax_ht.core.trees import PyTree, select, zeros_of
from fedjax_ht.core.wire import FIRST_ROWS, Masked, Metadata, dense
from fedjax_ht.losses import masked_mean
from fedjax_ht.methods.shared import mutual
from fedjax_ht.methods.shared.averaging import client_weights, set_rows, weighted_mean
from fedjax_ht.methods.shared.variants import Variant
from fedjax_ht.models.layers import uniform_fan_in

Form = Literal["paper", "released"]


class LowRank(NamedTuple):
    """One array's message: its components or the whole array, as their masks say.

    Attributes:
      components: Masked [min(M, N), S, M + 1 + N], rows (u_j, s_j, v_j) of which the first k are
        sent; () for a vector.
      whole: the array itself under one mask.
    """

    components: Masked | tuple[()]
    whole: Masked


def compress(tree: PyTree, energy: jax.Array | float, form: Form = "paper") -> PyTree:
    """Compresses every array to the smallest rank that keeps a share of its energy.

    Args:
      tree: a pytree of arrays.
      energy: share of an array's squared singular values, float scalar. 1 keeps all components, so
        that every array is sent whole, except for an array of zeros, which has none. With the
        Python float 1.0, the paper's form decomposes nothing.
      form: the rule that cuts arrays into matrices, see the module's docstring.

    Returns:
      The tree with a `LowRank` for every array.
    """
    return jax.tree.map(lambda x: _compress(x, energy, form), tree)


def decompress(tree: PyTree, form: Form = "paper") -> PyTree:
    """Rebuilds the arrays of a message that `compress` made with the same form."""
    return jax.tree.map(lambda message: _decompress(message, form), tree, is_leaf=_is_low_rank)


def send_nothing(tree: PyTree, form: Form = "paper") -> PyTree:
    """Makes an empty message with the structure of those of `compress`."""
    shapes = jax.eval_shape(lambda tree: compress(tree, 1.0, form), tree)
    return zeros_of(shapes)


def send_whole(tree: PyTree, whole: PyTree) -> PyTree:
    """Makes a message that sends arrays uncompressed.

    Args:
      tree: a message of `compress`, whose structure is kept.
      whole: the arrays to send.
    """

    def uncompressed(message: LowRank, value: jax.Array) -> LowRank:
        components = message.components
        if components:
            components = components._replace(mask=jnp.zeros_like(components.mask))
        return LowRank(components, Masked(value, jnp.array(True), FIRST_ROWS))

    return jax.tree.map(uncompressed, tree, whole, is_leaf=_is_low_rank)


def _is_low_rank(x) -> bool:
    return isinstance(x, LowRank)


def as_matrices(x: jax.Array, form: Form) -> jax.Array:
    """Returns the matrices [S, M, N] of an array of at least two axes."""
    if form == "released" and x.ndim == 4:
        return jnp.moveaxis(x, (0, 1), (2, 3)).reshape(-1, *x.shape[:2])
    return x.reshape(1, -1, x.shape[-1])


def from_matrices(matrices: jax.Array, shape: tuple[int, ...], form: Form) -> jax.Array:
    """Inverts `as_matrices`: returns the array of this shape."""
    if form == "released" and len(shape) == 4:
        return jnp.moveaxis(matrices.reshape(*shape[2:], *shape[:2]), (2, 3), (0, 1))
    return matrices.reshape(shape)


def _compress(x: jax.Array, energy: jax.Array | float, form: Form) -> LowRank:
    if x.ndim < 2:
        return LowRank((), Masked(x, jnp.array(True), FIRST_ROWS))
    if form == "paper" and isinstance(energy, float) and energy >= 1:
        # A decomposition of a matrix of low rank has no gradient, which an attacker of the message
        # needs (`experiments/leaks`).
        rows = jax.eval_shape(lambda: _compress(x, jnp.float32(1), form)).components.values
        values, mask = jnp.zeros(rows.shape, rows.dtype), jnp.zeros(rows.shape[0], bool)
        return LowRank(Masked(values, mask, FIRST_ROWS), Masked(x, jnp.any(x != 0), FIRST_ROWS))
    # [S, M, R], [S, R], [S, N, R]
    left, values, right = jax.vmap(singular_components)(as_matrices(x, form))
    squares = jnp.square(values).sum(0)
    # The energy lost by ending before component j. Each is a separate sum, to be exact if little is
    # lost.
    tail = jnp.where(jnp.tri(len(squares), dtype=bool).T, squares, 0).sum(1)
    kept = (tail > (1 - energy) * tail[0]) | ((energy >= 1) & (tail[0] > 0))
    components = jnp.moveaxis(jnp.concatenate([left, values[:, None], right], axis=1), 2, 0)
    whole = kept.sum() * components[0].size >= x.size
    value = x
    if form == "released":  # cut even where it is sent whole
        value = _rebuild(Masked(components, kept), x.shape, form)
    kept &= ~whole
    components = jnp.where(kept[:, None, None], components, 0)
    return LowRank(Masked(components, kept, FIRST_ROWS), Masked(value, whole, FIRST_ROWS))


def _decompress(message: LowRank, form: Form) -> jax.Array:
    value, whole = message.whole.values, message.whole.mask
    if not message.components:
        return value
    return jnp.where(whole, value, _rebuild(message.components, value.shape, form))


def _rebuild(components: Masked, shape: tuple[int, ...], form: Form) -> jax.Array:
    """Sums components up to the array of this shape."""
    size = jax.eval_shape(lambda: as_matrices(jnp.zeros(shape), form)).shape[1]
    rows = dense(components)  # [R, S, M + 1 + N]
    left, singular, right = rows[..., :size], rows[..., size : size + 1], rows[..., size + 1 :]
    matrices = jnp.einsum("rsm,rsn->smn", singular * left, right, precision="highest")
    return from_matrices(matrices, shape, form)


def singular_components(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Decomposes a matrix by descending singular values, through the smaller Gram matrix.

    This is five times faster than a direct decomposition of a matrix [1600, 512] on CPU. Values
    below some 3e-4 of the largest are lost in rounding. The sign of a pair of vectors is fixed: the
    largest entry by magnitude of the vector on the smaller side is positive.

    Args:
      matrix: float [M, N], R = min(M, N).

    Returns:
      left float [M, R], values float [R], right float [N, R], with matrix = left * values @
      right.T.
    """
    if matrix.shape[0] < matrix.shape[1]:
        left, values, right = singular_components(matrix.T)
        return right, values, left
    gram = jnp.matmul(matrix.T, matrix, precision="highest")
    vectors = jnp.linalg.eigh(gram)[1][:, ::-1]
    right = vectors * jnp.where(vectors.max(0) >= -vectors.min(0), 1, -1)
    scaled = jnp.matmul(matrix, right, precision="highest")
    values = jnp.linalg.norm(scaled, axis=0)
    return scaled / jnp.maximum(values, jnp.finfo(matrix.dtype).tiny), values, right


LEAST_LOSS = 1e-6  # c + q divides the losses, and may vanish


class Server(NamedTuple):
    """The mentee, and its last step.

    Attributes:
      params: parameters of the shared model g.
      step: the last change U of g, a pytree of `LowRank`.
      made: int32 scalar, the round in which `step` was made; -1 before.
      answered: bool [num_clients], the clients whose upload arrived in that round; these hold the g
        that `step` changes.
    """

    params: PyTree
    step: PyTree
    made: jax.Array
    answered: jax.Array


class Downlink(NamedTuple):
    """A client's downlink.

    Attributes:
      message: a pytree of `LowRank`.
      absolute: Metadata(bool scalar), True where the message is g itself, not a change to it.
    """

    message: PyTree
    absolute: Metadata


@checked
def fedkd(
    training: LocalTraining,
    *,
    start: Part = 0.95,
    end: Part = 0.98,
    rounds: Count = 1000,
    variant: Variant = "paper",
) -> Method:
    """Makes FedKD, described in the module's docstring.

    Args:
      training: the recipe of local training, of both models and W.
      start, end: the energy T in the first round and after `rounds` rounds; 1 sends everything
        uncompressed.
      rounds: number of rounds over which T rises.
      variant: form of the method, the paper's or the released code's; see the module's docstring
        for their differences.
    """
    released = variant == "released"

    def losses(task: Task, private, shared, batch, projection):
        """Computes L_m and L_g; the released form divides the KL by the number of classes."""
        private_error = task.loss(private.logits, batch.y, batch.mask)
        shared_error = task.loss(shared.logits, batch.y, batch.mask)
        both = jnp.maximum(private_error + shared_error, LEAST_LOSS)
        scale = 1 / private.logits.shape[-1] if released else 1.0
        gap = jnp.mean(jnp.square(private.features - shared.features @ projection), axis=-1)
        hidden = masked_mean(gap, batch.mask)

        def loss_of(error, model, teacher):
            divergence = scale * task.divergence(teacher.logits, model.logits, batch.mask)
            return error + (divergence + hidden) / both

        return loss_of(private_error, private, shared), loss_of(shared_error, shared, private)

    train_pair = mutual.pair_training(training, losses, joint=released)

    def threshold(round: jax.Array) -> jax.Array | float:
        if not traced(start) and not traced(end) and start == end == 1:
            return 1.0  # known before a program runs: nothing is decomposed
        return start + (end - start) * jnp.minimum(round / rounds, 1)

    def reference(params: PyTree) -> PyTree:
        """Returns the weights that a compressed message changes; zeros if it has whole weights."""
        return jax.tree.map(jnp.zeros_like, params) if released else params

    def pack(params: PyTree, round: jax.Array) -> PyTree:
        return compress(params, threshold(round), variant)

    def unpack(message: PyTree) -> PyTree:
        return decompress(message, variant)

    def init_server(federation, key):
        params = init_variables(federation.shared, key)["params"]
        return Server(
            params=params,
            step=send_nothing(params, variant),
            made=jnp.int32(-1),
            answered=jnp.zeros(federation.num_clients, bool),
        )

    def init_client(bucket, ctx):
        width = bucket.auxiliary.feature_dim
        key = jax.random.fold_in(ctx.key, 2)
        projection = uniform_fan_in(key, (width, bucket.feature_dim), width)
        return mutual.init_pair(bucket, ctx) | {"projection": projection}

    def broadcast(federation, bucket, server, ctx):
        known = server.answered[ctx.info.id] & (ctx.info.last_round == server.made)
        compressed = (server.made >= 0) if released else known
        message = select(compressed, server.step, send_whole(server.step, server.params))
        return Downlink(message, Metadata(~known))

    def receive(bucket, client, downlink, data, ctx):
        # The client's copy becomes g itself: the next update changes it.
        last = client["shared"]["params"]
        base = select(downlink.absolute.value, jax.tree.map(jnp.zeros_like, last), reference(last))
        return mutual.take_shared(client, params=add_trees(base, unpack(downlink.message)))

    def client_update(bucket, client, downlink, data, ctx):
        last = client["shared"]["params"]
        trained, projection, result = train_pair(bucket, client, data, ctx, client["projection"])
        change = jax.tree.map(jnp.subtract, trained["shared"]["params"], reference(last))
        client = mutual.take_shared(trained, params=last) | {"projection": projection}
        return client, pack(change, ctx.round), {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        received = gather_received(received)
        weights = client_weights(received)
        mean = weighted_mean(jax.vmap(unpack)(received.uplink), weights)
        step = pack(mean, ctx.round)
        answered = set_rows(jnp.zeros_like(server.answered), received, True)
        new = Server(
            params=add_trees(reference(server.params), unpack(step)),
            step=step,
            made=ctx.round,
            answered=answered,
        )
        return select(weights.any(), new, server), {}

    return Method(
        name="fedkd",
        training=training,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        wire=Wire(positions="own"),  # components of a decomposition have no order of their own
        needs=Needs(classes=released),
    )
