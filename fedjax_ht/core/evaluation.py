"""The compiled evaluation: counts correct predictions of the clients and the server's own model."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from fedjax_ht.check.options import OptionalCount, check_fields
from fedjax_ht.core.bucket import Bucket, features, logits
from fedjax_ht.core.compiling import compiled
from fedjax_ht.core.context import Turn
from fedjax_ht.core.executor import Schedule, at_slots, run_clients
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.local_training import train
from fedjax_ht.core.method import Method
from fedjax_ht.core.prediction_counts import Scores, score
from fedjax_ht.core.round import Channel, Participant, RunServer, any_state, send, view
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.statistics import collect_statistics
from fedjax_ht.core.trees import HostNumber, PyTree, select

ScoredState = Literal["received", "trained", "both"]
NormStatistics = Literal["batch", "training"]
"""Statistics of "static_batch" norms when the server's model is evaluated.

They come from the samples of a forward pass ("batch"), or from all clients' training samples
("training", see `core.statistics`).
"""


FurtherRules = Callable[[Callable, Data, int], Callable]
"""((x, mask) -> features [B, K], the client's data, number of classes C) -> a function (x, mask) ->
{rule: scores [B, C]}, see `Scoring.further_rules`."""


@dataclasses.dataclass(frozen=True)
class Scoring:
    """Options of an evaluation: the client state to score, and its forward passes.

    This is also the section `scoring` of a config.

    Attributes:
      state: Client state to score: after the newest downlink ("received"), after its own training
        ("trained"), or "both", the second in separate columns (trained_accuracy and others).
      batch_size: Samples per forward pass; None (0 in a config): a number for the device, or 64 for
        parts of one network, and in a config for model.norm=static_batch.
      train: Whether to also report the accuracy on training samples (train_accuracy).
      auc: Whether to also report the area under the ROC curve on test sets (auc).
      neighbours: Number of a client's nearest training samples that classify its test samples, in
        two more rules, see `metrics.neighbours`; None (0 in a config): none.
      adapt_epochs: Epochs that a client trains by the method after the newest downlink, before it
        is scored; the result is not kept. None (0 in a config): none.
      global_statistics: Statistics of static_batch norms in the server's model: of the forward
        pass, or of all training samples.

    Raises:
      ValueError: a field is out of its bounds, or `adapt_epochs` is set although the trained state
        is scored. One line.
    """

    state: ScoredState = "received"
    batch_size: OptionalCount = None
    train: bool = False
    auc: bool = False
    neighbours: OptionalCount = None
    adapt_epochs: OptionalCount = None
    global_statistics: NormStatistics = "batch"

    @property
    def further_rules(self) -> tuple[str, ...]:
        """The rules of an evaluation besides the method's own."""
        return () if self.neighbours is None else ("own_mean", "neighbours")

    def __post_init__(self):
        check_fields(self, "scoring.")
        if self.adapt_epochs and self.state == "trained":
            raise ValueError(
                f"scoring.adapt_epochs is {self.adapt_epochs}, but scoring.state 'trained' is "
                "scored without adaptation; use 'received' or 'both'"
            )


class EvaluationRequest(NamedTuple):
    """The states and sets to score.

    It is an argument of the compiled evaluation, so that one program serves rounds and evaluations.

    Attributes:
      received: bool; True scores clients after `receive` with the newest downlink, False after
        their training.
      splits: name of a clients' set -> bool, whether to score it.
      epochs: int32, the epochs of `adapted`; None excludes it from the program.
    """

    received: Bool[HostNumber, ""] | bool
    splits: dict[str, Bool[HostNumber, ""]]
    epochs: Int[HostNumber, ""] | int | None = None


def received_where(
    method: Method,
    bucket: Bucket,
    client: PyTree,
    downlink: PyTree,
    data: Data,
    *,
    turn: Turn,
    received: Bool[HostNumber, ""] | bool,
) -> PyTree:
    """Returns the client's state after `receive` if `received` is True, else unchanged.

    Args:
      method, bucket, client, downlink, data, turn: arguments as for `round.client_step`.
      received: bool scalar, traced.
    """
    after = method.receive(bucket, client, downlink, data, turn.context(Purpose.RECEIVE))

    def choose(new, old):
        # Most methods receive nothing or only a head: unchanged arrays need no copy.
        return old if new is old else jnp.where(received, new, old)

    return jax.tree.map(choose, after, client)


def adapted(
    method: Method,
    bucket: Bucket,
    client: PyTree,
    downlink: PyTree,
    data: Data,
    *,
    turn: Turn,
    epochs: Int[HostNumber, ""] | int,
) -> PyTree:
    """Returns the client's state after epochs of the method's training on its own samples.

    Args:
      method, bucket, client, downlink, data, turn: arguments as for `round.client_step`; `client`
        has received the downlink.
      epochs: passes of each training in client_update, traced; with 0, or without samples, the
        client's state is unchanged.

    Raises:
      ValueError: the method's clients do not train by `fl.train` with this trainer. One line.
    """
    calls: list[str] = []

    def trainer(epochs, training, loss, params, stats, data, key, num_classes, split):
        calls.append(split)
        chosen = {"num_classes": num_classes, "split": split, "epochs": epochs}
        return train(training, loss, params, stats, data, key=key, **chosen)

    ctx = turn.context(Purpose.EVALUATION)._replace(adapt_epochs=epochs)
    own = data._replace(round=turn.round, trainer=jax.tree_util.Partial(trainer, epochs))
    trained, _, _ = method.client_update(bucket, client, downlink, own, ctx)
    if not calls:
        raise ValueError(
            f"scoring.adapt_epochs is set, but clients of {method.name} do not train with "
            "fl.train, or add noise to gradients; remove it"
        )
    return select((epochs > 0) & (data.splits["train"].count > 0), trained, client)


def score_splits(
    method: Method,
    bucket: Bucket,
    client,
    downlink,
    data: Data,
    requested: dict[str, Bool[HostNumber, ""]],
    batch_size: int,
    *,
    auc: bool = False,
    further: FurtherRules | None = None,
) -> dict[str, Scores]:
    """Scores one client on its own sets; on its test set also by class, with the reported rule.

    Args:
      method, bucket: the method and the client's bucket.
      client, downlink: the client's state, and the downlink that it received.
      data: the client's own data.
      requested: name of a set -> bool scalar; a set that is not requested counts as empty.
      batch_size: samples per call.
      auc: True also computes the AUC on the test set, with the reported rule.
      further: rules besides the method's own that also score the test set.
    """
    predict, scores = functools.partial(method.predict, bucket, client, downlink), {}
    predictors: dict[str, Callable] = dict.fromkeys(requested, predict)
    if further is not None and "test" in requested:
        assert method.view.features is not None  # a simulation rejects such methods
        of_client = functools.partial(method.view.features, bucket, client)
        by_features = further(of_client, data, bucket.num_classes)
        predictors["test"] = lambda x, mask: predict(x, mask) | by_features(x, mask)
    for name, is_requested in requested.items():
        split = data.splits[name]
        # Requests are traced: for an empty set the loop over batches has no iterations.
        split = split._replace(count=jnp.where(is_requested, split.count, 0))
        reported = method.rules[0] if name == "test" else None
        scores[name] = score(
            predictors[name],
            data,
            split,
            batch_size,
            task=bucket.task,
            by_class_of=reported,
            auc=auc and name == "test",
        )
    return scores


def make_scored_state(
    method: Method, federation: Federation, bucket: Bucket, channel: Channel, keeps: bool = True
) -> Callable:
    """Makes the function that prepares a client for scoring.

    Args:
      method, federation, bucket, channel: arguments as for `round.bucket_round`.
      keeps: True if clients keep a state between rounds, see `keeps_state`; else a new state
        receives the downlink.

    Returns:
      (client, Participant, RunServer, the client's own data, round, EvaluationRequest) -> (the
      method with the run's settings, the bucket with its frozen variables, the client's state to
      score, downlink).
    """

    def prepare(client, participant: Participant, server: RunServer, data: Data, round, request):
        bound, model = method.at(server.settings), server.with_frozen(bucket)
        turn, received = server.turn(participant, round), request.received
        downlink = send(bound, federation, bucket, channel, server=server.state, turn=turn)
        if not keeps:
            client, received = any_state(bound, model, turn.root, federation), True
        of_client = bound, model, client, downlink, data
        client = received_where(*of_client, turn=turn, received=received)
        if request.epochs is not None:
            client = adapted(bound, model, client, downlink, data, turn=turn, epochs=request.epochs)
        return bound, model, client, downlink

    return prepare


def received_state(
    method: Method, federation: Federation, bucket: Bucket, channel: Channel
) -> Callable:
    """Compiles the function that returns a stateless client's state after the newest downlink.

    Returns:
      (Participant, RunServer, data, round) -> the client's state.
    """
    prepare = make_scored_state(method, federation, bucket, channel, keeps=False)

    def run(participant: Participant, server: RunServer, data: Data, round):
        own, request = view(data, participant), EvaluationRequest(True, {})
        return prepare((), participant, server, data=own, round=round, request=request)[2]

    return jax.jit(run)


def client_evaluation(
    method: Method,
    federation: Federation,
    bucket: Bucket,
    channel: Channel,
    batch_size: int,
    keeps: bool = True,
    *,
    auc: bool = False,
    further: FurtherRules | None = None,
) -> Callable:
    """Makes the evaluation of one client.

    Args:
      method, federation, bucket, channel, keeps: arguments as for `make_scored_state`.
      batch_size: samples per call.
      auc, further: arguments as for `score_splits`.

    Returns:
      (client, Participant, RunServer, data, round, EvaluationRequest) -> {split: Scores}; a set
      that is not requested counts as empty.
    """
    prepare = make_scored_state(method, federation, bucket, channel, keeps)
    score = functools.partial(score_splits, batch_size=batch_size, auc=auc, further=further)

    def run(client, participant: Participant, server: RunServer, data: Data, round, request):
        data = view(data, participant)
        bound, model, client, downlink = prepare(
            client, participant, server, data=data, round=round, request=request
        )
        return score(bound, model, client, downlink, data, requested=request.splits)

    return run


def bucket_evaluation(evaluate: Callable) -> Callable:
    """Makes the evaluation of a bucket's clients on one device.

    Args:
      evaluate: the evaluation of one client, see `client_evaluation`; the states are () if clients
        keep nothing between rounds.

    Returns:
      (states, schedule of Participant, RunServer, data, (round, EvaluationRequest)) -> {split:
      Scores [P]}. The states do not change.
    """

    def run(
        states,
        schedule: Schedule,
        server: RunServer,
        data: Data,
        when: tuple[jax.Array, EvaluationRequest],
    ):
        def score_client(_, slot_and_participant):
            slot, participant = slot_and_participant
            return (), evaluate(at_slots(states, slot), participant, server, data, *when)

        # States are read by slot instead of carried through the loop: evaluation does not change
        # them and must not copy them.
        arguments = jnp.ravel(schedule.slots), schedule.arguments
        return run_clients(score_client, (), schedule._replace(arguments=arguments))[1]

    return run


def global_evaluation(
    method: Method,
    federation: Federation,
    statistics: NormStatistics,
    batch_size: int,
    auc: bool = False,
) -> Callable:
    """Compiles the evaluation of the server's own model, with its head.

    Args:
      method, federation: the server's method and federation.
      statistics: the samples that "static_batch" norms take their statistics from: each batch of
        the pass ("batch"), or all clients' training samples ("training").
      batch_size: samples per call.
      auc: True also computes the AUC.

    Returns:
      ((server, {"train", "test"} -> Split), data) -> Scores.
    """

    def run(server_and_splits: tuple[PyTree, dict[str, Split]], data: Data) -> Scores:
        server, splits = server_and_splits
        assert method.global_model is not None  # other methods' servers are not scored
        bucket = method.global_model.bucket(federation)
        assert bucket is not None
        params, stats = method.global_model.params(server), method.global_model.stats(server)
        if statistics == "training":
            stats = collect_statistics(bucket, params, data, splits["train"], batch_size)

        def predict(x, mask):
            representations, _ = features(bucket, params, stats, x, mask, train=False)
            return {"head": logits(bucket, params, representations)}

        kinds = {"task": federation.task, "by_class_of": "head", "auc": auc}
        return score(predict, data, splits["test"], batch_size, **kinds)

    return compiled(run, quick=True)


def client_outputs(
    method: Method,
    federation: Federation,
    channel: Channel,
    scoring: Scoring,
    bucket: Bucket,
    rule: str | None,
    size: int,
) -> Callable:
    """Compiles (client, Participant, RunServer, the bucket's data, batch, round) -> [size, K]."""
    prepare = make_scored_state(method, federation, bucket, channel)

    def run(client, participant: Participant, server: RunServer, data: Data, shown, round):
        request = EvaluationRequest(scoring.state != "trained", {}, scoring.adapt_epochs)
        bound, model, client, downlink = prepare(
            client, participant, server, data=view(data, participant), round=round, request=request
        )
        x, mask = data.preprocess(shown[0]), shown[1]
        if rule is None:
            assert bound.view.features is not None  # `client_features` rejects such methods
            return bound.view.features(model, client, x, mask)
        return bound.predict(model, client, downlink, x, mask)[rule]

    return compiled(run)
