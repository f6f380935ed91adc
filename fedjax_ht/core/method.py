"""The contract of a federated method: a NamedTuple of pure functions, and their types.

A method is written for ONE client. The executor decides how the clients of a bucket run (one after
another, vmapped in lanes, sharded), so nothing here has a client axis unless its shape says so.

Order of a round, for every participating client:

    downlink = method.broadcast(federation, bucket, server, ctx)
    client   = method.receive(bucket, client, downlink, data, ctx)
    client, uplink, metrics = method.client_update(bucket, client, downlink, data, ctx)

then, once, with the uplinks of every bucket:

    server, metrics = method.server_update(federation, server, {bucket.name: Received}, ctx)

"Received" evaluation scores `predict(receive(client))` and discards the received state; "trained"
evaluation scores `predict(client)`. Both see the newest downlink.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from jaxtyping import Bool, Float, Key

from fedjax_ht.check.options import checked
from fedjax_ht.core.bucket import Bucket, head_scores, init_variables, own_features
from fedjax_ht.core.codes import Code
from fedjax_ht.core.context import Context, Metrics, Received
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import Array, PyTree

# Types of a method's functions: their positional arguments and results. States and messages are
# pytrees whose form only the method knows, hence `PyTree`.


# The attributes of `Method` say what they are.
InitServer = Callable[[Federation, Key[Array, ""]], PyTree]
InitClient = Callable[[Bucket, Context], PyTree]
Broadcast = Callable[[Federation, Bucket, PyTree, Context], PyTree]
Receive = Callable[[Bucket, PyTree, PyTree, Data, Context], PyTree]
ClientUpdate = Callable[[Bucket, PyTree, PyTree, Data, Context], tuple[PyTree, PyTree, Metrics]]
ServerUpdate = Callable[[Federation, PyTree, dict[str, Received], Context], tuple[PyTree, Metrics]]
Predict = Callable[
    [Bucket, PyTree, PyTree, PyTree, Bool[Array, " B"]], dict[str, Float[Array, "B C"]]
]
Check = Callable[[Federation], None]


def init_model(bucket: Bucket, ctx: Context) -> PyTree:
    """Initialises a client's model as its state; the default `init_client`.

    The state is {"params": {"base", "head"}, "stats"}.
    """
    return init_variables(bucket, ctx.key)


def send_server(federation: Federation, bucket: Bucket, server: PyTree, ctx: Context) -> PyTree:
    """Sends the server's state to every client; the default `broadcast`."""
    return server


def keep_state(
    bucket: Bucket, client: PyTree, downlink: PyTree, data: Data, ctx: Context
) -> PyTree:
    """Returns a client's state unchanged; the default `receive`."""
    return client


def predict_by_head(
    bucket: Bucket, client: PyTree, downlink: PyTree, x: PyTree, mask: Bool[Array, " B"]
) -> dict[str, Float[Array, "B C"]]:
    """Returns the logits of a client's model as the rule "head"; the default `predict`."""
    return {"head": head_scores(bucket, client, x, mask)}


def always_fits(federation: Federation) -> None:
    """Accepts any federation; the default `check`."""


def no_stats(server: PyTree) -> PyTree:
    """Returns no batch statistics; the default `GlobalModel.stats`."""
    return {}


def server_bucket(federation: Federation) -> Bucket | None:
    """Returns the server-only model, if any; the default `GlobalModel.bucket`."""
    return federation.global_model


class Wire(NamedTuple):
    """The meaning of a method's messages, for code that compares, sums, delays or hides them.

    Attributes:
      positions: meaning of an entry's position in an uplink, for `trust.vectors`, which compares
        uplinks. It is the same in all uplinks of one shape ("alike"), the same in a smaller uplink
        as in a larger one ("nested"), or different for every client ("own").
      server_reads: "sums" if server_update depends only on sums over clients, not on single
        uplinks. A sum is elementwise over uplinks of one shape, over the entries that masks send.
        Weights must be equal if counts (`ClientInfo.num_samples`, `Metadata`) are. Noise on a sum
        then hides every client (`trust.privacy`), and the server needs only the sum. Else
        "uploads".
      redrawn: True if server_update repeats the draws of broadcast for this round's clients, from
        the round or its shared key. It would misread an upload that arrives in a later round.
      counts: the numbers in the `Metadata` of an uplink. "samples": the client's training samples,
        in total or by class. "steps": the samples of the round's training by class, with
        repetitions. "one": 1, as with privacy of whole uploads. Uploads with implausible counts are
        rejected, see `core.counts`. "other": no counts; no upload is rejected. Send other numbers,
        such as step counts, as payload floats, so that clipping and noise apply.
      code: the form in which uplinks cross the wire, see `core.codes`; None sends them unchanged.
    """

    positions: Literal["alike", "nested", "own"] = "alike"
    server_reads: Literal["sums", "uploads"] = "uploads"
    redrawn: bool = False
    counts: Literal["samples", "steps", "one", "other"] = "samples"
    code: Code | None = None


class View(NamedTuple):
    """Functions to inspect a method. They do not affect results.

    Attributes:
      features: (bucket, client, x as in `Batch`, mask bool [B]) -> float [B, K], the
        representations in which a client compares classes; by default its model's features. None
        for none.
      prototypes: (server) -> Masked float [C, K], one prototype per class in the space of those
        features; or None.
      pictures: (federation, server) -> {title: float [n, H, W, C] in [0, 1]}, images of the
        server's state, where image i is of class i mod num_classes; or None.
      warn: (a round's metrics, client and server, as floats) -> a one-line warning, e.g. about
        weights that grow without bound, or None. Host code; each warning is printed once.
      invariant: (federation, server, {bucket name: states of clients, stacked}) -> floats that are
        zero as long as every upload arrives and no other client has taken part, such as the
        difference between SCAFFOLD's control variate and the mean over clients. `check_method`
        checks it; None for none.
    """

    features: Callable | None = own_features
    prototypes: Callable | None = None
    pictures: Callable | None = None
    warn: Callable[[dict[str, Any]], str | None] | None = None
    invariant: Callable | None = None


class Pretrained(NamedTuple):
    """A pretrained part of the server, such as a generator.

    Attributes:
      variables: arrays that server_update reads as `Context.pretrained`. They never change, and
        checkpoints exclude them. They are an argument of the compiled server step, not a constant.
      trained_on: names of its training data sets; a run on one of them must be confirmed.
      host: True if it is host code; server_update is then not jitted.
    """

    variables: PyTree = ()
    trained_on: tuple[str, ...] = ()
    host: bool = False


class Needs(NamedTuple):
    """Inputs of a method other than the clients' own samples and messages.

    Attributes:
      public_samples: number of public samples per round; the public set must have at least as many.
        Clients and server then have the set as the split "public" of their data, and
        `Federation.public` is its size. 0 for methods without a public set.
      clients_data: True for a control whose server_update reads the clients' training samples,
        `Context.data`. No real server could run it.
      pretrained: a pretrained part of the server.
      classes: True if it reads labels as classes, or compares outputs as logits. False for methods
        that leave targets to the task's loss (`Bucket.task`), and so also support regression.
    """

    public_samples: int = 0
    clients_data: bool = False
    pretrained: Pretrained = Pretrained()
    classes: bool = True


class GlobalModel(NamedTuple):
    """The server's own model, which is scored on all clients' test samples.

    Attributes:
      params: (server) -> its parameters.
      stats: (server) -> its batch statistics; {} by default.
      bucket: (federation) -> the bucket of its architecture, by default `Federation.global_model`;
        None if the model is not scored.
    """

    params: Callable[[PyTree], PyTree]
    stats: Callable[[PyTree], PyTree] = no_stats
    bucket: Callable[[Federation], Bucket | None] = server_bucket


class Method(NamedTuple):
    """A federated method, as pure functions.

    `bucket` and `federation` are static; the module's docstring gives the order of calls.

    Attributes:
      name: name in the registry and in tables.
      training: the recipe of client_update; it determines the number of steps.
      init_server: (federation, key) -> Server.
      client_update: (bucket, client, downlink, data, ctx) -> (Client, Uplink, Metrics), after
        `receive`.
      server_update: (federation, server, {bucket name: Received}, ctx) -> (Server, Metrics).
      init_client: (bucket, ctx) -> Client.
      broadcast: (federation, bucket, server, ctx) -> Downlink, for one client.
      receive: (bucket, client, downlink, data, ctx) -> Client.
      predict: (bucket, client, downlink, x as in `Batch`, mask bool [B]) -> {rule: scores [B,
        num_classes]}.
      rules: the rules that `predict` returns; the method reports the first. (A dict loses its order
        in jit.)
      check: (federation) -> None; raises a one-line ValueError, before any compilation, if the
        method cannot run.
      needs: a public set, or a pretrained part.
      global_model: the server's own model, to be scored, or None.
      vary: (settings) -> this method with other numbers, such as a learning rate or a lambda. They
        may be traced, so that one program serves many values. See `varied`; None for none.
      wire: the meaning of its messages.
      view: functions to inspect the method's state, see `View`.
      recipes: (architecture's name, its clients' recipe) where it differs from `training`, see
        `recipes.by_architecture`.

    Example:
      A method that sends nothing, and whose clients do not even train:

      >>> method = fl.Method(
      ...     name="idle",
      ...     training=fl.LocalTraining(optax.sgd(0.1)),
      ...     init_server=lambda federation, key: (),
      ...     client_update=lambda bucket, client, downlink, data, ctx: (client, (), {}),
      ...     server_update=lambda federation, server, received, ctx: (server, {}),
      ... )
      >>> method.rules  # that of the default `predict`
      ('head',)
    """

    name: str
    training: LocalTraining
    init_server: InitServer
    client_update: ClientUpdate
    server_update: ServerUpdate
    init_client: InitClient = init_model
    broadcast: Broadcast = send_server
    receive: Receive = keep_state
    predict: Predict = predict_by_head
    rules: tuple[str, ...] = ("head",)
    check: Check = always_fits
    needs: Needs = Needs()
    global_model: GlobalModel | None = None
    vary: Callable[[PyTree], "Method"] | None = None
    wire: Wire = Wire()
    view: View = View()
    recipes: tuple[tuple[str, LocalTraining], ...] = ()

    def __repr__(self) -> str:
        return f"<Method {self.name}: rules {', '.join(self.rules)}>"

    def training_of(self, architecture: str) -> LocalTraining:
        """Returns the training recipe of an architecture (a bucket's name)."""
        return dict(self.recipes).get(architecture, self.training)

    def at(self, settings: PyTree) -> "Method":
        """Returns the method with these settings, or the method itself if none vary."""
        return self if self.vary is None else self.vary(settings)


@checked
def varied(make: Callable[[PyTree], Method], settings: PyTree) -> Method:
    """Makes a method whose numbers are arguments of its compiled functions.

    Args:
      make: (settings) -> the method. It is called with traced scalars, so no number may determine a
        shape or a branch.
      settings: initial values, which the method has outside compiled functions.

    Example:
      >>> def make(settings):
      ...     recipe = fl.LocalTraining(optax.sgd(settings["rate"]))
      ...     return fl.fedproto(recipe, weight=settings["weight"])
      >>> method = fl.varied(make, {"rate": 0.1, "weight": 1.0})
      >>> method.at({"rate": 0.01, "weight": 5.0}).name  # no new compilation in a simulation
      'fedproto'
    """
    return make(settings)._replace(vary=make)


def around(method: Method, wrap: Callable[[Method], Method]) -> Method:
    """Wraps a method, including the methods that its `vary` makes."""
    wrapped = wrap(method)
    if method.vary is None:
        return wrapped
    return wrapped._replace(vary=lambda settings: wrap(method.at(settings)))
