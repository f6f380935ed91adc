"""FedRAL (Yi et al., ICCV 2025): clients share a small matrix that aligns their representations.

    client:  A_k <- A^{t-1}; the model and A_k descend together on the cross-entropy of
             head(R + R A_k), R = features(x) (Eq. 5 is the step of A_k); uploads the m_k diagonal
             blocks of A_k, r^2 / m_k numbers, r being the width of R
    server:  A^t <- sum_k (n_k / n) blocks_k(A_k) over the round's uploads, entry by entry; entries
             that no client sent are zero (Eq. 7)
    predict: head(R + R A), A being the client's own A_k; by the second rule the global A^t
    up:      K² / m_i: diagonal blocks of the angle matrix A
    down:    the union of the blocks sent last, K² / m with one m; at first K²: A

Predictions use the client's A_k after Eq. 5, without sparsification; A^t is that of Eq. 7.

Settled here (the paper leaves these open, and the code that it cites was not available):
* All r^2 entries of A_k are trained; sparsification happens once, before the upload. An entry that
  few clients send is scaled down by their share, since zeros count.
* A starts uniform within s / sqrt(r), s = init_scale, and is sent whole once; afterwards the
  downlink is the union of the blocks sent in the last round. The default, 1, leaves A small, so
  that clients descend at the pace of local training with the same learning rate. A larger A makes
  the steps larger: where the head is linear, head(R + R A) is a head with the weights (I + A) W,
  which start larger by I + A and whose gradient steps are larger by (I + A)(I + A)^T. On
  Fashion-MNIST (class shares, 10 blocks, 100 rounds, three seeds) s = 1 has 89.3 %, s = sqrt(3 r)
  93.3 %, and a frozen A of that size (angle_lr=0), which shares nothing, 93.4 %.
* A at prediction: Eq. 1's objective is F_k(D_k; w_k o A), with the global A; the algorithm returns
  the clients' models without a word on A. The rule "own" takes the A_k that Eq. 5 left at the
  client's last training, whenever that was; before, zero, a plain model. The rule "global" takes
  the newest A^t that was sent. Both are scored, "own" is reported (inference="global" reports the
  other), because w_k was trained with A_k, and because the score beside the paper's table is that
  of a round's participants as training left them: until Eq. 7 has been computed, the newest global
  matrix is the A^{t-1} that they started from, and w_k with it is neither Eq. 1's model nor the
  trained one. For means over all clients "global" is Eq. 1's. With class shares it is up to a
  point above "own" (experiments/results/class_shares.md, which lists both).
* Entries are sent without indices: a receiver infers the number of blocks from the number of
  entries, in the uplink always, in the downlink if the clients' numbers of blocks divide one
  another.
* The paper searches the number of blocks over divisors of r; here the default is 2, the least that
  sparsifies. Its Table 4 has upload sizes of 25, 100 and 125 blocks at r = 500; the fourth,
  1.56 KB, is below the least possible 4 r.
"""

import itertools
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_ht.check.options import Count, NonNegative, Positive, SearchRange, Within, checked
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.batches import Batch
from fedjax_ht.core.bucket import Bucket, init_variables, logits, own_features
from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining, Loss
from fedjax_ht.core.method import Method, Needs, Wire
from fedjax_ht.core.reductions import weighted_sum
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.core.wire import Masked, Metadata, Pattern, dense
from fedjax_ht.methods.shared.averaging import Weighting, client_weights, sent_samples
from fedjax_ht.methods.shared.mutual import in_parts
from fedjax_ht.methods.shared.supervised import batch_features, train_beside
from fedjax_ht.models.layers import uniform_fan_in

ENTRY_BYTES = 4  # float32


class Uplink(NamedTuple):
    """A client's upload.

    Attributes:
      angle: Masked float32 [r, r], the client's blocks of A_k.
      num_samples: Metadata(int32), the client's number of training samples; () for an unweighted
        mean.
    """

    angle: Masked
    num_samples: Metadata | tuple


def block_mask(width: int, blocks: jax.Array | int) -> jax.Array:
    """Marks `blocks` diagonal blocks of equal side: bool [width, width], in NumPy for an int."""
    block = np.arange(width) * blocks // width
    return block[:, None] == block[None, :]


def blocks_by_size(shape: tuple[int, ...], number: int) -> np.ndarray:
    """Marks the diagonal blocks with `number` entries in total; for `Pattern.mask`.

    If no blocks have that number, other entries are marked.
    """
    width, _ = shape
    return np.asarray(block_mask(width, width**2 // number)) if number else np.zeros(shape, bool)


BLOCKS = Pattern(blocks_by_size)


def are_nested(numbers: Sequence[int]) -> bool:
    """Returns whether the blocks of each number lie within those of the next smaller number.

    A union of such blocks consists of the blocks of its smallest number.
    """
    ordered = sorted(set(numbers))
    return all(larger % smaller == 0 for smaller, larger in itertools.pairwise(ordered))


def fewest_blocks(byte_budget: float, width: int) -> int:
    """Returns the least number of blocks whose float32 entries fit into `byte_budget`.

    Args:
      byte_budget: bytes of one upload.
      width: width r of the matrix [r, r] with these diagonal blocks, whose number divides r.

    Raises:
      ValueError: the diagonal alone does not fit.
    """
    for blocks in range(1, width + 1):
        if width % blocks == 0 and ENTRY_BYTES * width * width // blocks <= byte_budget:
            return blocks
    raise ValueError(
        f"byte_budget is {byte_budget}; it must be at least {ENTRY_BYTES * width}, the bytes of "
        f"the smallest upload at {width} features"
    )


def blocks_of_clients(
    blocks: int | tuple[int, ...], byte_budget: float | tuple[float, ...] | None, width: int
) -> list[int]:
    """Returns m_k by client id, to be repeated: `blocks`, or as few as `byte_budget` allows."""
    if byte_budget is None:
        return [int(m) for m in np.atleast_1d(blocks)]
    return [fewest_blocks(budget, width) for budget in np.atleast_1d(byte_budget)]


def align(angle: jax.Array, representations: jax.Array) -> jax.Array:
    """Computes R + R A: float [B, r] -> [B, r]."""
    return representations + representations @ angle


@checked
def fedral(
    training: LocalTraining,
    *,
    blocks: Count | Annotated[tuple[Count, ...], Within(1)] = 2,
    byte_budget: Positive | Annotated[tuple[Positive, ...], Within(1)] | None = None,
    angle_lr: Annotated[NonNegative | None, SearchRange(0.001, 1.0)] = None,
    init_scale: Annotated[NonNegative, SearchRange(0.3, 30.0)] = 1.0,
    weighting: Weighting = "samples",
    inference: Literal["own", "global"] = "own",
) -> Method:
    """Makes FedRAL, described in the module's docstring.

    Args:
      training: the recipe of local training.
      blocks: m_k, a divisor of r for all clients, or a tuple of them, of which client i takes entry
        i mod its length. 1 sparsifies nothing (ablation B of Table 7).
      byte_budget: bytes of an upload, or a tuple of them in the same way; replaces `blocks` by the
        fewest blocks whose entries fit. None takes `blocks`.
      angle_lr: eta_A, the rate of plain SGD; 0 freezes A. None takes the optimiser of `training`.
      init_scale: scale s of the first A, whose entries are uniform within s / sqrt(r). With m
        blocks the mean square of R A is s^2 / (3 m) times that of R: s = sqrt(3 m) makes them alike
        (sqrt(3) for a whole A); s = sqrt(3 r), entries of variance 1, makes that of R A r / m times
        as large.
      weighting: weights of the aggregation. "samples" is Eq. 7, n_k / n of all uploads, zeros
        counted; "uniform" (ablation C of Table 7) the plain mean over the clients that sent the
        entry.
      inference: matrix of the reported accuracy, the client's A_k of Eq. 5 ("own") or the server's
        A^t of Eq. 7 ("global"); the other one is a second rule.

    Returns:
      The method; its `check` rejects models whose feature widths differ, and blocks that do not
      divide that width.

    Example:
      >>> method = fl.fedral(fl.LocalTraining(optax.sgd(0.1)), blocks=4)
      >>> method.rules
      ('own', 'global')
    """
    if angle_lr is not None:
        optimizers = {"model": training.optimizer, "angle": optax.sgd(angle_lr)}
        training = in_parts(training, optimizers)
    rules = ("own", "global") if inference == "own" else ("global", "own")

    def mask_of(bucket: Bucket, info: ClientInfo) -> jax.Array:
        numbers = blocks_of_clients(blocks, byte_budget, bucket.feature_dim)
        return block_mask(bucket.feature_dim, jnp.array(numbers)[info.id % len(numbers)])

    def check(federation: Federation) -> None:
        width = federation.feature_dim
        for m in blocks_of_clients(blocks, byte_budget, width):
            if m < 1 or width % m:
                raise ValueError(
                    f"blocks is {m}; it must be a divisor of the models' {width} features"
                )

    def init_server(federation, key):
        r = federation.feature_dim
        return Masked(init_scale * uniform_fan_in(key, (r, r), r), jnp.ones((r, r), bool))

    def init_client(bucket, ctx):
        angle = jnp.zeros((bucket.feature_dim, bucket.feature_dim))
        return init_variables(bucket, ctx.key) | {"angle": angle}

    def broadcast(federation, bucket, server, ctx):
        numbers = blocks_of_clients(blocks, byte_budget, federation.feature_dim)
        # A client does not know whose blocks arrived; a union's size identifies it only if nested.
        return server._replace(pattern=BLOCKS if are_nested(numbers) else None)

    def client_update(bucket, client, downlink, data, ctx):
        def loss(params: PyTree, stats, batch: Batch, key) -> Loss:
            model = params["model"]
            representations, stats = batch_features(bucket, model, stats, batch, key)
            outputs = logits(bucket, model, align(params["angle"], representations))
            return Loss(bucket.task.loss(outputs, batch.y, batch.mask), stats)

        client = client | {"angle": dense(downlink)}
        client, result = train_beside(training, loss, "angle", client, data, ctx.key)
        sent = Masked(client["angle"], mask_of(bucket, ctx.info), BLOCKS)
        uplink = Uplink(sent, sent_samples(ctx, weighting))
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        received = gather_received(received)
        weights = client_weights(received, received.uplink.num_samples)
        new = aggregate(received.uplink.angle, weights, zeros_count=weighting == "samples")
        # A round in which only clients without samples arrive keeps A.
        return select(weights.any(), new, server), {}

    def predict(bucket, client, downlink, x, mask):
        representations = own_features(bucket, client, x, mask)
        angles = {"own": client["angle"], "global": dense(downlink)}
        return {
            rule: logits(bucket, client["params"], align(angle, representations))
            for rule, angle in angles.items()
        }

    return Method(
        name="fedral",
        training=training,
        needs=Needs(classes=False),
        check=check,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        predict=predict,
        rules=rules,
        wire=Wire(server_reads="sums"),
    )


def aggregate(angles: Masked, weights: jax.Array, zeros_count: bool) -> Masked:
    """Computes the weighted mean of matrices entry by entry (FedRAL Eq. 7).

    Args:
      angles: [P, r, r], the clients' blocks.
      weights: float [P], at least 0; a client of weight zero is never read.
      zeros_count: True divides by the weight of all clients, as Eq. 7 does, so that an entry that
        one client alone sends shrinks to its share; False by the weight of the clients that sent
        the entry, so that it stays as it is.

    Returns:
      Masked float32 [r, r]; entries that no client sent are zero under a False mask.
    """
    sent = angles.mask & (weights > 0)[:, None, None]
    weighed = weights[:, None, None] * sent
    total = weights.sum() if zeros_count else weighed.sum(0)
    share = weighed / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)
    return Masked(weighted_sum(angles.values, share), sent.any(0))
