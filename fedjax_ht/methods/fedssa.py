"""FedSSA (Yi et al., IJCAI 2024): clients share the rows of their headers that belong to the classes they have seen.

    client:  theta_k^s <- theta^s + mu_t theta_k^s for every own class s (Eq. 5), then local epochs of cross-entropy;
             mu_t = mu_0 cos(pi t / (2 T_stable)) while t <= T_stable, then 0 (Eq. 4); upload the own classes' rows
    server:  theta^s <- mean of the uploaded theta_k^s, class by class (Eq. 3)
    predict: the client's model after its local training

Settled here:
* A row of the header is a class's weights and its bias, so that it costs K + 1 elements; the paper counts K.
* The header is the last linear layer, as released and as the paper counts it; its section 3.2 speaks of two layers.
* t counts from 1, as in the paper; the released code counts from 0. The fused row is no convex mix: Eq. 5 as it stands.
* The mean is over the owners of a class among this round's uploaders; a class that nobody uploaded keeps its row. The
  released code averages over all owners, with rows of clients that never took part: not reproduced.
* Rows of classes that a client has not seen are never overwritten. They keep their history, training included.
* Clients are scored as their training left them: that is `SimulationOptions(evaluate="trained")`.
* The server knows a client's classes from its last upload, and sends the whole header to one it has not heard from.
* hide_classes: clients upload the whole header with zeros in the rows of other classes, and the server ignores rows of
  zeros (section 4.3); it then sends everybody the whole header. Noise on such an uplink would make owners of all.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.federation import Federation, require_equal_heads
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Data, Method, PyTree
from fedjax_ht.core.round import gather_received
from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.heads import init_head, take_head
from fedjax_ht.methods.prototypes import mean_by_class
from fedjax_ht.methods.supervised import head_scores, init_model, train_model


class Server(NamedTuple):
    """rows float32 [C, K + 1], the global header; wanted bool [num_clients, C], the classes to send to each client, all
    of them until it has uploaded, or () where classes are hidden."""

    rows: jax.Array
    wanted: jax.Array | tuple


def rows_of(head: PyTree) -> jax.Array:
    """A linear layer's parameters by class: its weights, then its bias; float32 [C, K + 1]."""
    return jnp.concatenate([head["kernel"].T, head["bias"][:, None]], axis=1)


def head_of(rows: jax.Array) -> PyTree:
    """The inverse of `rows_of`."""
    return {"kernel": rows[:, :-1].T, "bias": rows[:, -1]}


def seen_classes(data: Data, num_classes: int) -> jax.Array:
    """bool [num_classes]: which classes the client has training samples of."""
    indices, count = data.splits["train"]
    real = jnp.arange(indices.shape[0]) < count
    return jnp.zeros(num_classes, bool).at[data.labels[indices]].max(real)


def stabilisation(t: jax.Array, mu: float, stable_rounds: int) -> jax.Array:
    """mu_t, the weight of a client's own history in its fused header (Eq. 4); 0 from t = stable_rounds on."""
    return jnp.where(t < stable_rounds, mu * jnp.cos(jnp.pi * t / (2 * stable_rounds)), 0.0)


def check_linear_heads(federation: Federation) -> None:
    """ValueError unless all heads are one equal linear layer with a bias."""
    require_equal_heads(federation)
    head = jax.eval_shape(lambda key: init_head(federation, key), jax.random.key(0))
    if set(head) != {"kernel", "bias"}:
        raise ValueError(
            f"fedssa fuses the rows of one linear layer, but the head is made of {', '.join(sorted(head))}; "
            "choose a group whose heads are linear"
        )


def fedssa(training: LocalTraining, mu: float = 0.5, stable_rounds: int = 2, hide_classes: bool = False) -> Method:
    """Args:
    training: local training.
    mu: mu_0 in [0, 1].
    stable_rounds: T_stable, the round from which on global rows replace a client's own.
    hide_classes: see the module's text.
    """
    if not 0 <= mu <= 1:
        raise ValueError(f"mu is {mu}; it must be at least 0 and at most 1")
    if stable_rounds < 1:
        raise ValueError(f"stable_rounds is {stable_rounds}; it must be at least 1")

    def init_server(federation, key):
        wanted = () if hide_classes else jnp.ones((federation.num_clients, federation.num_classes), bool)
        return Server(rows_of(init_head(federation, key)), wanted)

    def broadcast(federation, bucket, server, ctx):
        return server.rows if hide_classes else Masked(server.rows, server.wanted[ctx.info.id])

    def receive(bucket, client, downlink, data, ctx):
        rows, own = rows_of(client["params"]["head"]), seen_classes(data, bucket.num_classes)
        values, sent = (downlink, True) if hide_classes else downlink
        fused = values + stabilisation(ctx.round + 1, mu, stable_rounds) * rows
        return take_head(client, head_of(jnp.where((own & sent)[:, None], fused, rows)))

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        rows, own = rows_of(client["params"]["head"]), seen_classes(data, bucket.num_classes)
        uplink = jnp.where(own[:, None], rows, 0) if hide_classes else Masked(rows, own)
        return client, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        uplink, info, arrived = gather_received(received)
        values, sent = (uplink, (uplink != 0).any(-1)) if hide_classes else uplink
        present = sent & arrived[:, None]  # [P, C]
        owned = present.any(0)
        rows = jnp.where(owned[:, None], mean_by_class(values, present), server.rows)
        if hide_classes:
            return Server(rows, ()), {"classes": owned.sum()}
        heard = jnp.where(present.any(1), info.id, federation.num_clients)  # without samples there is nothing to tell
        return Server(rows, server.wanted.at[heard].set(present, mode="drop")), {"classes": owned.sum()}

    return Method(
        name="fedssa",
        check=check_linear_heads,
        init_server=init_server,
        init_client=init_model,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        predict=lambda bucket, client, downlink, x, mask: {"head": head_scores(bucket, client, x, mask)},
    )
