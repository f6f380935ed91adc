"""The contract of a federated method: a NamedTuple of pure functions, and the types that pass
between them.

A method is written for ONE client. The executor decides how the clients of a bucket run (one after
another, vmapped in lanes, sharded), so nothing here carries a client axis unless its shape says so.

Order of a round, for every participating client:

    downlink = method.broadcast(federation, bucket, server, ctx)
    client   = method.receive(bucket, client, downlink, data, ctx)
    client, uplink, metrics = method.client_update(bucket, client, downlink, data, ctx)

then, once, with the uplinks of every bucket:

    server, metrics = method.server_update(federation, server, {bucket.name: Received}, ctx)

"Received" evaluation scores `predict(receive(client))` and throws the received client away;
"trained" evaluation scores `predict(client)`. Both see the newest downlink.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax

from fedjax_ht.core.federation import (
    Bucket,
    Federation,
    PyTree,
    head_scores,
    init_variables,
    own_features,
)

if TYPE_CHECKING:
    from fedjax_ht.core.local_training import LocalTraining

Metrics = dict[str, jax.Array]  # name -> float32 scalar


class ClientInfo(NamedTuple):
    """What the system knows of one client; every field is traced.

    Attributes:
      id: int32 scalar, the client's id in the whole federation.
      num_samples: int32 scalar, its number of training samples.
      last_round: int32 scalar, the last round in which the server reached it; -1 if it never did.
    """

    id: jax.Array
    num_samples: jax.Array
    last_round: jax.Array


class Context(NamedTuple):
    """Where a call stands.

    Attributes:
      key: already folded from (seed, round, client id).
      round: int32 scalar, from 0.
      info: of the client; None on the server.
      pretrained: `Pretrained.variables`, for server_update; () elsewhere.
      shared_key: folded from (seed, round) alone, the same for the server and all clients: what
        broadcast drew for a client, server_update draws again from this key and the client's id.
        None for init_client.
      data: of `Method.sees_data`, for server_update: all clients' training samples as the split
        "train"; else None.
    """

    key: jax.Array
    round: jax.Array
    info: ClientInfo | None
    pretrained: PyTree = ()
    shared_key: jax.Array | None = None
    data: "Data | None" = None


class Split(NamedTuple):
    """One client's share of a set: int32 [max] indices into `Data.inputs`, of which the first
    `count` are real."""

    indices: jax.Array
    count: jax.Array


class Data(NamedTuple):
    """One client's view of the data; inputs and labels are stored once for all clients.

    Attributes:
      inputs: an array with a leading sample axis [N], such as images uint8 [N, H, W, C], or a
        pytree of such.
      labels: int32 [N].
      preprocess: what a model sees of them, see `core.inputs`.
      splits: {"train" | "val" | "test" | ...: Split}.
      round: int32 scalar in client_update, the round, by which training in stored order knows where
        it goes on (see `LocalTraining.steps`); () elsewhere.
      trainer: a `jax.tree_util.Partial` of what trains in place of `local_training.train`, with its
        arguments (see `trust.dp_sgd`); None where that trains itself.
    """

    inputs: PyTree
    labels: jax.Array
    preprocess: PyTree
    splits: dict[str, Split]
    round: "jax.Array | tuple" = ()
    trainer: Callable | None = None


class Received(NamedTuple):
    """A bucket's uplinks at the server, stacked over its participants by ascending client id,
    padding last.

    Attributes:
      uplink: the method's uplink with a leading client axis [P].
      info: ClientInfo with a leading axis [P].
      arrived: bool [P], False for padding, drop-outs and uplinks that were not finite. Never read
        the others' values.
    """

    uplink: PyTree
    info: ClientInfo
    arrived: jax.Array


def init_model(bucket: Bucket, ctx: Context) -> PyTree:
    """The default `init_client`: a client's state is its model, {"params": {"base", "head"},
    "stats"}."""
    return init_variables(bucket, ctx.key)


def send_server(federation: Federation, bucket: Bucket, server: PyTree, ctx: Context) -> PyTree:
    """The default `broadcast`: the server's state goes to every client."""
    return server


def keep_state(
    bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context
) -> PyTree:
    """The default `receive`: the downlink leaves the client's state as it is."""
    return client


def predict_by_head(
    bucket: Bucket, client: PyTree, downlink: PyTree, x: PyTree, mask: jax.Array
) -> dict[str, jax.Array]:
    """The default `predict`: the logits of the model in the client's state, as the rule "head"."""
    return {"head": head_scores(bucket, client, x, mask)}


def always_fits(federation: Federation) -> None:
    """The default `check`: the method runs on any federation."""


class Wire(NamedTuple):
    """What a method's messages mean, for code that compares, sums, delays or hides them.

    Attributes:
      positions: what a position in an uplink means to `trust.vectors`, which compares uplinks: the
        same in all uplinks of one shape ("alike"); in a smaller one what it means in a larger one
        ("nested"); or every client's own ("own").
      server_reads: "sums" where server_update is a function of sums over clients and of nothing
        else of single uplinks: entry by entry over uplinks of one shape, of what masks say is sent,
        with weights that are equal where counts (`ClientInfo.num_samples`, `Metadata`) are. Noise
        on a sum then hides every client (`trust.privacy`), and a server need see no more. Else
        "uploads".
      redrawn: True where server_update works out again, from the round or its shared key, what
        broadcast chose for each client of this very round: an upload that arrives in a later one
        would be taken for something else.
    """

    positions: Literal["alike", "nested", "own"] = "alike"
    server_reads: Literal["sums", "uploads"] = "uploads"
    redrawn: bool = False


class View(NamedTuple):
    """What can be looked at of a method. Nothing here changes a result.

    Attributes:
      features: (bucket, client, x as of `Batch`, mask bool [B]) -> float [B, K], what a client
        makes of inputs before it compares classes; by default the features of the model in its
        state. None: there is nothing to look at.
      prototypes: (server) -> Masked float [C, K] among those features, one a class; or None.
      pictures: (federation, server) -> {title: float [n, H, W, C] in [0, 1]}, what the server shows
        of its state, image i being of class i mod num_classes; or None.
      warn: (a round's metrics, client and server, as floats) -> one line for the user where they
        say that something is wrong, such as weights that grow without bound, or None. Host code;
        the runner prints each line once.
    """

    features: Callable | None = own_features
    prototypes: Callable | None = None
    pictures: Callable | None = None
    warn: Callable[[dict[str, Any]], str | None] | None = None


class Pretrained(NamedTuple):
    """A part of the server that was trained before, such as a generator.

    Attributes:
      variables: arrays that server_update reads and nothing changes, `Context.pretrained`. They are
        an argument of the compiled server step, not a constant in it, and are in no checkpoint.
      trained_on: names of the datasets that it has seen; a run on one of them must be asked for.
      host: True if it is host code; server_update is then not jitted.
    """

    variables: PyTree = ()
    trained_on: tuple[str, ...] = ()
    host: bool = False


class Method(NamedTuple):
    """A federated method. `bucket` and `federation` are static; see the module's text for the order
    of calls.

    Attributes:
      name: as in the registry and in tables.
      training: the recipe that client_update trains by; it says how many steps that takes.
      init_server: (federation, key) -> Server.
      client_update: (bucket, client, downlink, data, ctx) -> (Client, Uplink, Metrics), after
        `receive`.
      server_update: (federation, server, {bucket name: Received}, ctx) -> (Server, Metrics).
      init_client: (bucket, ctx) -> Client.
      broadcast: (federation, bucket, server, ctx) -> Downlink, for one client.
      receive: (bucket, client, downlink, data, ctx) -> Client.
      predict: (bucket, client, downlink, x as of `Batch`, mask bool [B]) -> {rule: scores [B,
        num_classes]}.
      rules: the rules that `predict` returns; the first is the one the method reports. (A dict
        forgets its order when it passes through jit.)
      global_params: (server) -> parameters of `Federation.global_model`, whose own head is scored
        on everybody's test samples; or None.
      check: (federation) -> None; raises a one-line ValueError, before any compilation, where the
        method cannot run.
      sees_data: True for a control whose server_update reads the clients' training samples,
        `Context.data`: no real server could run it.
      vary: (settings) -> this method with other numbers, such as a learning rate or a lambda, which
        may be traced: one program then serves many of them. See `varied`; None without any.
      wire: what messages mean.
      view: what can be looked at.
      pretrained: what the server had before the first round.
    """

    name: str
    training: "LocalTraining"
    init_server: Callable
    client_update: Callable
    server_update: Callable
    init_client: Callable = init_model
    broadcast: Callable = send_server
    receive: Callable = keep_state
    predict: Callable = predict_by_head
    rules: tuple[str, ...] = ("head",)
    global_params: Callable | None = None
    check: Callable = always_fits
    sees_data: bool = False
    vary: Callable[[PyTree], "Method"] | None = None
    wire: Wire = Wire()
    view: View = View()
    pretrained: Pretrained = Pretrained()

    def at(self, settings: PyTree) -> "Method":
        """The method with these numbers; itself where none vary."""
        return self if self.vary is None else self.vary(settings)


def varied(make: Callable[[PyTree], Method], settings: PyTree) -> Method:
    """A method whose numbers are arguments of its compiled functions.

    Args:
      make: settings -> the method, such as `lambda s: fedtgp(LocalTraining(optax.sgd(s["rate"])),
        weight=s["weight"])`. It is called with traced scalars: no number among them may decide a
        shape or a branch.
      settings: values to begin with; whatever is asked of the method outside compiled functions is
        asked of these.
    """
    return make(settings)._replace(vary=make)


def around(method: Method, wrap: Callable[[Method], Method]) -> Method:
    """Returns the method that `wrap` makes of this one, whatever its settings: of what it varies
    into, too."""
    wrapped = wrap(method)
    if method.vary is None:
        return wrapped
    return wrapped._replace(vary=lambda settings: wrap(method.vary(settings)))
