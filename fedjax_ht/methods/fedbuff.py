"""FedBuff (Nguyen et al., AISTATS 2022): an asynchronous server steps by every K uploads.

    client:  w_i <- w, then local epochs of cross-entropy
    server:  b <- b + (w_i - w) / sqrt(1 + tau_i) for each upload; at every K-th
             w <- w + eta b / K, b <- 0, where tau_i counts the steps since i was sent its w
    predict: the client's copy of the model
    up:      W: the change of all parameters
    down:    W: all parameters
    fits:    one architecture or a few, on devices of very different speed whose uploads arrive late
    paper:   https://arxiv.org/abs/2106.06639

Settled here:
* Rounds are the unit of time (docs/devices.md, late="arrives"): a deadline is a tick of the clock.
  The server takes the uploads of a tick in the order of client ids, with a step at every K-th. The
  rest stay in the buffer. A client trains again in the round after its upload has arrived.
* Without devices no upload is late, and tau counts the steps before it in its own round. If K is
  the number of participants, tau is 0 and a round is one step of FedAvg with equal weights.
* The paper has one architecture; here each has its own model and buffer. Clients without samples do
  not count in the buffer.
* tau counts only the last `REMEMBERED` steps.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_ht.check.options import Count, Positive, SearchRange, checked
from fedjax_ht.core.context import Received
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, Needs
from fedjax_ht.core.trees import PyTree, select
from fedjax_ht.methods.shared.architectures import init_parts, joined, part_for, receive_model
from fedjax_ht.methods.shared.averaging import client_weights
from fedjax_ht.methods.shared.supervised import train_model

REMEMBERED = 128
"""The number of recent server steps whose rounds are stored."""


class Group(NamedTuple):
    """The server of one architecture.

    Attributes:
      params: the model's parameters.
      buffer: sum of the weighted changes since the last step.
      held: int32, number of the uploads in the buffer.
      steps: int32, number of steps so far.
      rounds: int32 [REMEMBERED], the round of step s at s mod REMEMBERED; -1 before any.
    """

    params: PyTree
    buffer: PyTree
    held: jax.Array
    steps: jax.Array
    rounds: jax.Array


@checked
def fedbuff(
    training: LocalTraining,
    buffer: Count = 10,
    server_rate: Annotated[Positive, SearchRange(0.1, 2.0)] = 1.0,
) -> Method:
    """Makes FedBuff, described in the module's docstring.

    Args:
      training: local training.
      buffer: number K of uploads per server step.
      server_rate: length eta of the server's step.
    """

    def init_server(federation, key):
        return [_first_group(params) for params in init_parts(federation, key)]

    def broadcast(federation, bucket, server, ctx):
        return part_for(federation, bucket, server).params

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        change = jax.tree.map(jnp.subtract, client["params"], downlink)
        return client, change, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        groups, ages = [], []
        for group, uploads in zip(server, joined(federation, received), strict=True):
            new, age = take_uploads(group, uploads, ctx.round, size=buffer, rate=server_rate)
            groups.append(new)
            ages.append(age)
        steps = sum(new.steps - old.steps for new, old in zip(groups, server, strict=True))
        age = jnp.max(jnp.stack(ages)).astype(jnp.float32)
        return groups, {"server_steps": jnp.float32(steps), "staleness": age}

    return Method(
        name="fedbuff",
        training=training,
        needs=Needs(classes=False),
        init_server=init_server,
        broadcast=broadcast,
        receive=receive_model,
        client_update=client_update,
        server_update=server_update,
    )


def _first_group(params: PyTree) -> Group:
    return Group(
        params=params,
        buffer=jax.tree.map(jnp.zeros_like, params),
        held=jnp.int32(0),
        steps=jnp.int32(0),
        rounds=jnp.full(REMEMBERED, -1, jnp.int32),
    )


def take_uploads(
    group: Group, uploads: Received, round: jax.Array, *, size: int, rate: jax.Array | float
) -> tuple[Group, jax.Array]:
    """Puts uploads into the buffer, one after another, and takes a step whenever it is full.

    Args:
      group: the server of the uploads' architecture.
      uploads: changes of its model, in order; `sent_round` says when each was sent.
      round: number of the round.
      size: number of uploads that fill the buffer.
      rate: length of a step.

    Returns:
      The server after the uploads, and the largest tau among them, int32.
    """

    def take_upload(state, upload):
        group, oldest = state
        change, counts, sent_round = upload
        # The downlink of a round comes before its steps.
        age = jnp.sum(group.rounds >= sent_round)

        def added(total, x):
            # A change that has not arrived may be NaN.
            return total + jnp.where(counts, x / jnp.sqrt(1.0 + age), 0)

        def stepped(params, total):
            return params + rate * total / size

        total, held = jax.tree.map(added, group.buffer, change), group.held + counts
        full = group._replace(
            params=jax.tree.map(stepped, group.params, total),
            buffer=jax.tree.map(jnp.zeros_like, total),
            held=jnp.int32(0),
            steps=group.steps + 1,
            rounds=group.rounds.at[group.steps % REMEMBERED].set(round),
        )
        waiting = group._replace(buffer=total, held=held)
        oldest = jnp.maximum(oldest, jnp.where(counts, age, 0))
        return (select(held >= size, full, waiting), oldest), None

    counts = client_weights(uploads) > 0
    rounds = uploads.sent_round
    if rounds is None:  # a caller other than `server_step`, without late uploads
        rounds = jnp.full(counts.shape, round, jnp.int32)
    rows = uploads.uplink, counts, rounds
    (group, oldest), _ = lax.scan(take_upload, (group, jnp.int32(0)), rows)
    return group, oldest
