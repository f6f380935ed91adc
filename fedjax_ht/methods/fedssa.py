"""FedSSA (Yi et al., IJCAI 2024): clients share their headers' rows of the classes they have seen.

    client:  theta_k^s <- theta^s + mu_t theta_k^s for every class s that it has samples of (Eq. 4),
             other classes' rows stay (Eq. 5);
             mu_t = mu_0 cos(pi t / (2 T_stable)) while t <= T_stable, then 0 (Eq. 4);
             local epochs of cross-entropy; uploads the rows of its classes
    server:  theta^s <- mean of theta_k^s over the clients that hold class s, the newest row of each
             (Eq. 3)
    predict: the client's model after its local training
    up:      C_i (K + 1): the header's rows of the client's classes
    down:    C_i (K + 1), at first C (K + 1): the global rows of the client's classes
    paper:   https://arxiv.org/abs/2312.09006

Settled here:
* A row of the header is a class's weights and its bias, K + 1 numbers; the paper counts K.
* The header is the last linear layer, as released and as the paper counts it; its section 3.2 has
  two layers.
* Eq. 3 averages over all clients that hold a class. The server keeps the newest row of each
  (owners="stored"), as released; but clients that never took part have no row, where the released
  code counts their initial ones. owners="uploaded" averages over this round's uploaders alone and
  stores nothing: with ten participants that is two clients a class. A class without a row keeps the
  server's. Stored rows are N C (K + 1) numbers on the server. owners="summed" averages in the same
  way as "uploaded". The server does not store the clients' classes and sends all clients the whole
  header. It reads only sums of rows and their number, so that secure sums work
  (`deploy.secure_sums`).
* t counts from 1, as in the paper (the released code counts from 0), and it counts a client's own
  rounds: with one client in ten taking part, global rounds would be over before most clients have
    any history (clock="round" is that).
  The authors' code has T_stable = 2 where all clients take part, and 45 for ten of 50.
* Local training is the config's. The text has SGD at 0.01; the code SGD at 0.005 with momentum 0.9,
  weight decay 5e-5, gradients clipped at 50, batches of 512 and 25 epochs: `recipe=released` of
  experiments/configs/cifar10_class_shares.py.
* The fused row is not a convex combination, as in Eq. 4. Where all clients take part together, a
  row that learns nothing grows by the product of all 1 + mu_t; where they take turns, by a few
  times that, since newcomers keep fusing into rows that others have lengthened. Settings whose
  product passes MOST_GROWTH are refused, but for stored rows by global rounds, of which a client
  fuses in few. With the rows of the uploaders alone, each round's mean compounds on the last one's,
  however many rounds newcomers take to come: without stored rows only global rounds count. Rows
  longer than LONG_ROW give a warning, whatever the cause.
* Clients are scored as their training left them: that is `Scoring("trained")`.
* The server knows a client's classes from its last upload, and sends the whole header to a client
  without one.
* hide_classes: clients upload the whole header with zeros in the rows of other classes, and the
  server ignores rows of zeros (section 4.3); it then sends all clients the whole header. Noise on
  such an uplink would make all clients owners.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.check.options import Count, SearchRange, Share, checked, traced
from fedjax_ht.core.aggregation import gather_received
from fedjax_ht.core.federation import Federation, require_equal_heads
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Method, View, Wire, init_model
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import Array
from fedjax_ht.core.wire import Masked
from fedjax_ht.methods.shared.averaging import client_weights, set_rows
from fedjax_ht.methods.shared.heads import head_of, init_head, rows_of, take_head
from fedjax_ht.methods.shared.prototypes import mean_by_class
from fedjax_ht.methods.shared.supervised import own_classes, train_model

Decay = Literal["cosine", "linear", "step"]
Clock = Literal["client", "round"]
Owners = Literal["stored", "uploaded", "summed"]

MOST_GROWTH = 1000.0  # product of all 1 + mu_t
LONG_ROW = 100.0  # length of a row of the header; the first ones are about 0.6 long


class Server(NamedTuple):
    """The server's state.

    Attributes:
      rows: float32 [C, K + 1], the global header.
      held: bool [num_clients, C], the classes that each client last uploaded; () with
        owners="summed".
      newest: float32 [num_clients, C, K + 1], the rows that each client last uploaded; () without
        owners="stored".
    """

    rows: jax.Array
    held: Array | tuple[()]
    newest: Array | tuple[()]


def stabilisation(
    t: jax.Array | np.ndarray, mu: float, stable_rounds: int, decay: Decay = "cosine"
) -> Any:
    """Computes mu_t, the weight of a client's history in its fused header (FedSSA Eq. 4).

    Args:
      t: int, from 1; of NumPy or jax, as the result is.
      mu: the first weight, mu_0.
      stable_rounds: the round T_stable from which on mu_t is 0.
      decay: "cosine" is the paper's; "linear" is mu_0 (1 - t / T), "step" mu_0 up to T.

    Returns:
      float32, of the shape of `t`.
    """
    xp = np if isinstance(t, np.ndarray) else jnp
    share = t / stable_rounds
    factors = {
        "cosine": xp.cos(np.pi / 2 * share),
        "linear": 1 - share,
        "step": xp.ones_like(share),
    }
    return xp.where(t < stable_rounds, mu * factors[decay], 0.0)


def most_growth(mu: float, stable_rounds: int, decay: Decay = "cosine") -> float:
    """Computes the product of 1 + mu_t, t = 1, 2, ...: how far fusing alone can lengthen a row."""
    t = np.arange(1, stable_rounds + 1, dtype=np.float32)  # NumPy: nothing is compiled or traced
    return float(np.exp(np.sum(np.log1p(stabilisation(t, mu, stable_rounds, decay)))))


def check_linear_heads(federation: Federation) -> None:
    """Raises a ValueError unless all heads are one equal linear layer with a bias."""
    require_equal_heads(federation)
    head = jax.eval_shape(lambda: init_head(federation, jax.random.key(0)))
    if set(head) != {"kernel", "bias"}:
        raise ValueError(
            "fedssa fuses the rows of one linear layer, but the head is made of "
            f"{', '.join(sorted(head))}; choose a group whose heads are linear"
        )


def check_growth(mu: float, stable_rounds: int, decay: Decay, clock: Clock, owners: Owners) -> None:
    """Raises a ValueError if mu compounds too far."""
    if traced(mu):  # checked where it was chosen
        return
    if mu and owners != "stored" and clock == "client":
        raise ValueError(
            f"owners={owners!r} fuses as long as new clients appear, and rows compound in every "
            "round; use clock='round', mu=0 or owners='stored'"
        )
    # With the rows of all owners stored, and global rounds, a client that rarely takes part fuses
    # in few of them.
    growth = most_growth(mu, stable_rounds, decay)
    if growth > MOST_GROWTH and not (clock == "round" and owners == "stored"):
        raise ValueError(
            f"stable_rounds is {stable_rounds} with mu {mu}: fusing itself would lengthen rows "
            f"{growth:.0f} times; use fewer rounds, a smaller mu, or clock='round' with "
            "owners='stored'"
        )


def long_rows(metrics: dict[str, float]) -> str | None:
    """Warns of rows longer than training alone makes them; a `View.warn`."""
    if metrics["longest_row"] <= LONG_ROW and not math.isnan(metrics["longest_row"]):
        return None
    return "rows of the header have become huge, as mu compounds; lower mu or stable_rounds"


@checked
def fedssa(
    training: LocalTraining,
    *,
    mu: Annotated[Share, SearchRange(0.0, 1.0, log=False)] = 0.5,
    stable_rounds: Count = 5,
    decay: Decay = "cosine",
    clock: Clock = "client",
    owners: Owners = "stored",
    semantic: bool = True,
    hide_classes: bool = False,
) -> Method:
    """Makes FedSSA, described in the module's docstring.

    Args:
      training: the recipe of local training.
      mu: the first weight mu_0 of stabilisation; 0 is the ablation without it.
      stable_rounds: the round T_stable from which on global rows replace a client's own.
      decay: decay of mu_t, see `stabilisation`.
      clock: rounds that t counts, those a client took part in ("client") or all ("round").
      owners: rows that are averaged, see the module's docstring.
      semantic: False is the ablation without semantic aggregation: every client counts as an owner
        of every class.
      hide_classes: True lets clients upload the whole header, see the module's docstring.

    Returns:
      The method; its `check` rejects heads that are not one linear layer.

    Raises:
      ValueError: mu compounds too far, or the options contradict each other.

    Example:
      >>> method = fl.fedssa(fl.LocalTraining(optax.sgd(0.1)), stable_rounds=3)
      >>> method.wire.server_reads  # the server stores every owner's newest row
      'uploads'
    """
    check_growth(mu, stable_rounds, decay, clock, owners)
    if hide_classes and owners == "summed":
        raise ValueError(
            "owners is 'summed', which counts the clients that hold a class, but hide_classes "
            "hides them; choose one of the two"
        )
    whole = hide_classes or owners == "summed"  # the server sends the whole header

    def classes(data: Data, num_classes: int) -> jax.Array:
        return own_classes(data, num_classes) if semantic else jnp.ones(num_classes, bool)

    def init_server(federation, key):
        rows, n = rows_of(init_head(federation, key)), federation.num_clients
        newest = jnp.zeros((n, *rows.shape)) if owners == "stored" else ()
        held = () if owners == "summed" else jnp.zeros((n, federation.num_classes), bool)
        return Server(rows, held, newest)

    def init_client(bucket, ctx):
        return init_model(bucket, ctx) | {"rounds": jnp.int32(0)}  # rounds of training so far

    def broadcast(federation, bucket, server, ctx):
        if whole:
            return server.rows
        held = server.held[ctx.info.id]
        return Masked(server.rows, held | ~held.any())  # all rows to a client without upload

    def receive(bucket, client, downlink, data, ctx):
        rows, seen = rows_of(client["params"]["head"]), classes(data, bucket.num_classes)
        values, sent = (downlink, True) if whole else (downlink.values, downlink.mask)
        t = (client["rounds"] if clock == "client" else ctx.round) + 1
        fused = values + stabilisation(t, mu, stable_rounds, decay) * rows
        return take_head(client, head_of(jnp.where((seen & sent)[:, None], fused, rows)))

    def client_update(bucket, client, downlink, data, ctx):
        client, result = train_model(training, bucket, client, data, ctx)
        rows, seen = rows_of(client["params"]["head"]), classes(data, bucket.num_classes)
        uplink = jnp.where(seen[:, None], rows, 0) if hide_classes else Masked(rows, seen)
        return client | {"rounds": client["rounds"] + 1}, uplink, {"loss": result.loss}

    def server_update(federation, server, received, ctx):
        joined = gather_received(received)
        uplink = joined.uplink
        if hide_classes:
            values, sent = uplink, (uplink != 0).any(-1)
        else:
            values, sent = uplink.values, uplink.mask
        present = sent & (client_weights(joined) > 0)[:, None]  # [P, C]
        values = jnp.where(sent[..., None], values, 0)  # [P, C, K + 1]
        # A client that is absent, or has no samples and so no rows, keeps what it uploaded before.
        heard = present.any(1)
        held, newest = (), ()
        if owners != "summed":
            held = set_rows(server.held, joined, present, heard)
            if owners == "stored":
                newest = set_rows(server.newest, joined, values, heard)
                values, present = newest, held
        owned = present.any(0)
        rows = jnp.where(owned[:, None], mean_by_class(values, present), server.rows)
        longest = jnp.sqrt(jnp.max(jnp.sum(rows**2, -1)))
        return Server(rows, held, newest), {"classes": owned.sum(), "longest_row": longest}

    return Method(
        name="fedssa",
        training=training,
        check=check_linear_heads,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        receive=receive,
        client_update=client_update,
        server_update=server_update,
        wire=Wire(
            positions="own" if hide_classes else "alike",  # a row of zeros is no row
            server_reads="sums" if owners == "summed" else "uploads",
        ),
        view=View(warn=long_rows),
    )
