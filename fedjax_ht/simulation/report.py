"""Reports of rounds and evaluations, on the host."""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_ht.core.mesh import fetch
from fedjax_ht.core.prediction_counts import Scores
from fedjax_ht.core.task import CLASSIFICATION, Task
from fedjax_ht.core.trees import HostNumber, PyTree, join_trees, take
from fedjax_ht.core.wire import WireCost
from fedjax_ht.simulation.serving import Answers, ServerResult
from fedjax_ht.simulation.state import SimulationState

FAR_OFF = 20.0
"""Multiple of the round's median size at which uploads are reported, see
`trust.outliers.size_ratios`. Uploads of honest clients reach 11 (docs/bad_clients.md)."""

NOT_SCORED = Scores({}, np.zeros(0))
"""Scores of a block of clients without samples in the set."""


class RoundReport(NamedTuple):
    """The report of one round.

    Attributes:
      participants: int64 [m], ids ascending.
      arrived: number of uplinks that the server got, including those of earlier rounds.
      not_finite: ids of clients whose result was not finite; they kept their old state, and their
        uploads were ignored.
      accuracy: rule -> accuracy of the participants on their own test sets, after training and
        before the next downlink, float64 [m]; NaN without samples, for attackers, and if there was
        no scoring. Empty if no client of the federation has test samples.
      metrics: means over the participants whose result was finite; empty without any.
      losses: float64 [m], mean loss of each participant's training; NaN if its upload did not
        arrive.
      server_metrics: metrics that the method's server computed.
      uplink, downlink: costs on the wire, summed over clients; uploads of dropped clients do not
        count.
      wasted_lane_steps: share of all lane steps in which a lane had finished and waited for its
        chunk.
      server_finite: False if the server's new state was not finite, and its old one was kept.
      far_off: (id, ratio) of clients whose upload was at least `FAR_OFF` times the round's size,
        ids ascending.
      absent: number of clients that could not be reached; None if devices are not simulated.
      seconds: simulated seconds of the round on the clients' devices; None if nothing takes time
        there.
      late: ids of participants whose upload missed the deadline, ascending.
      arrived_late: ids of clients whose upload of an earlier round arrived in this one, ascending;
        None if late uploads are lost.
      epsilon: the largest epsilon of any client after the round, see
        `privacy_budget.epsilon_spent`; in a deployment, of everything sent so far, including
        repeated rounds.
      refused: ids of clients whose upload the server rejected as an outlier, ascending, see
        `outliers.without_outliers`; they count as arrived.
      miscounted: ids of clients whose upload the server rejected for its counts, ascending, see
        `counts.without_miscounted`; they count as arrived.
      public_bytes: bytes of the public set for clients that the server reaches for the first time;
        in neither `uplink` nor `downlink`. None for methods without a public set.
      frozen_bytes: bytes of the frozen weights for such clients; None for models without any.
      stages: "train", "score", "serve", "host" -> seconds; None unless
        `SimulationOptions.time_stages`.
    """

    participants: np.ndarray
    arrived: int
    not_finite: tuple[int, ...]
    accuracy: dict[str, np.ndarray]
    metrics: dict[str, float]
    losses: np.ndarray
    server_metrics: dict[str, float]
    uplink: WireCost
    downlink: WireCost
    wasted_lane_steps: float
    server_finite: bool
    far_off: tuple[tuple[int, float], ...]
    absent: int | None = None
    seconds: float | None = None
    late: tuple[int, ...] = ()
    arrived_late: tuple[int, ...] | None = None
    epsilon: float | None = None
    refused: tuple[int, ...] = ()
    miscounted: tuple[int, ...] = ()
    public_bytes: int | None = None
    frozen_bytes: int | None = None
    stages: dict[str, float] | None = None


class Evaluation(NamedTuple):
    """Accuracy of every client.

    Attributes:
      accuracy: split -> rule -> accuracy, float64 [num_clients], NaN for clients without samples.
      counts: each split and "train" -> number of samples, int64 [num_clients]; for a split, 0 for
        clients that were not evaluated.
      global_accuracy: "head" -> accuracy of the server's model on all clients' test samples; empty
        without a model.
      by_class: int32 [num_clients, 3, C], counts on the test sets by the reported rule, see
        `core.prediction_counts.Scores`; None in a deployment, whose clients do not send them.
      auc: float64 [num_clients], see `core.prediction_counts.macro_auc`, on the test sets by
        the reported rule; NaN where undefined; None if not requested.
      global_by_class: int32 [3, C], counts as in `by_class` for the server's model; None without
        one.
      global_auc: the AUC of the server's model; None without one, or if not requested.
      measured: metrics of a task other than classification, which has no other fields above except
        `counts`; None for classification.
      new: the evaluation of the clients that never train; None without any.
      trained: the evaluation of the clients' trained states, without the server's model; None
        unless both states are scored.
    """

    accuracy: dict[str, dict[str, np.ndarray]]
    counts: dict[str, np.ndarray]
    global_accuracy: dict[str, float]
    by_class: np.ndarray | None = None
    auc: np.ndarray | None = None
    global_by_class: np.ndarray | None = None
    global_auc: float | None = None
    measured: "Measured | None" = None
    new: "Evaluation | None" = None
    trained: "Evaluation | None" = None


class Measured(NamedTuple):
    """The metrics of a task other than classification, see `core.task`.

    Attributes:
      score, better: the metric used as score, and whether a higher or a lower one is better.
      clients: split -> rule -> metric -> float64 [num_clients], NaN where undefined.
      pooled: split -> rule -> metric -> value on all these clients' samples together.
      server: rule -> metric -> value of the server's own model on all test samples.
    """

    score: str
    better: str
    clients: dict[str, dict[str, dict[str, np.ndarray]]]
    pooled: dict[str, dict[str, dict[str, float]]]
    server: dict[str, dict[str, float]]


def round_report(answers: dict[str, Answers], server: ServerResult) -> RoundReport:
    """Makes the report of a round; enabled features add to it.

    Args:
      answers: the participants' answers, as `serving.deliver` returns them.
      server: the server's result.
    """
    # The only transfer of a round to the host, except the one for simulated devices.
    results = {name: (part.results, part.scores) for name, part in answers.items()}
    results, server = fetch((results, server))
    idle, steps = np.sum([part.idle for part in answers.values()], axis=0)
    wasted = 0.0
    if steps:
        wasted = float(idle / steps)
    parts = []
    for name, part in answers.items():
        of_clients, scores = results[name]
        parts.append((part.ids, take(of_clients, part.rows), take(scores, part.score_rows)))
    joined = join_trees(np.concatenate, parts)
    # Also for means: the order of ids does not depend on the clients' devices.
    ids, result, scores = take(joined, np.argsort(joined[0]))
    test = scores.get("test", NOT_SCORED)
    finite, arrived = result.finite, result.arrived
    metrics = {}
    if finite.any():
        metrics = {name: float(np.mean(x[finite])) for name, x in result.metrics.items()}
    outlying = np.flatnonzero(server.sizes >= FAR_OFF)
    return RoundReport(
        participants=ids,
        arrived=int(arrived.sum()),
        not_finite=tuple(ids[~finite].tolist()),
        accuracy={rule: _share(c, test.count) for rule, c in test.correct.items()},
        metrics=metrics,
        losses=np.where(arrived, result.metrics.get("loss", np.nan), np.nan).astype(np.float64),
        server_metrics={name: float(value) for name, value in server.metrics.items()},
        uplink=_total(take(result.uplink_cost, arrived)),
        downlink=_total(result.downlink_cost),
        wasted_lane_steps=wasted,
        server_finite=bool(server.finite),
        far_off=tuple(zip(outlying.tolist(), server.sizes[outlying].tolist())),
        refused=tuple(np.flatnonzero(server.refused).tolist()),
        miscounted=tuple(np.flatnonzero(server.miscounted).tolist()),
    )


def without_attackers(
    attackers: np.ndarray,
    state: SimulationState,
    answers: dict[str, Answers],
    report: RoundReport,
) -> RoundReport:
    """Excludes attackers, bool [num_clients], from the participants' accuracies."""
    attacks = attackers[report.participants]
    accuracy = {rule: np.where(attacks, np.nan, x) for rule, x in report.accuracy.items()}
    return report._replace(accuracy=accuracy)


def evaluation(
    train_counts: np.ndarray,
    scored: list[tuple[np.ndarray, dict[str, Scores]]],
    pooled: Scores | None,
    task: Task = CLASSIFICATION,
) -> Evaluation:
    """Joins scored blocks of clients.

    Args:
      train_counts: int [num_clients], training samples.
      scored: blocks of (client ids [m], {split: Scores [m]}).
      pooled: scores of the server's own model on all test samples, or None.
      task: the task of the data.
    """
    num_clients, ids, splits = len(train_counts), np.zeros(0, np.int64), {}
    if scored:
        ids, splits = join_trees(np.concatenate, scored)

    def of_all(values: np.ndarray, unknown: float = np.nan) -> np.ndarray:
        every = np.full((num_clients, *values.shape[1:]), unknown, np.result_type(values, unknown))
        every[ids] = values
        return every

    counts = {"train": np.array(train_counts, np.int64)}
    counts |= {name: of_all(scores.count, 0).astype(np.int64) for name, scores in splits.items()}
    accuracy = {}
    for name, scores in splits.items():
        accuracy[name] = {r: of_all(_share(c, scores.count)) for r, c in scores.correct.items()}
    test = splits.get("test", NOT_SCORED)
    by_class = of_all(test.by_class, 0) if np.size(test.by_class) else None
    auc = of_all(test.auc.astype(np.float64)) if np.size(test.auc) else None
    of_clients = Evaluation(accuracy, counts, {}, by_class, auc=auc)
    if task.sums is not None and scored:
        return of_clients._replace(accuracy={}, measured=_measured(scored, pooled, counts, task))
    return of_clients if pooled is None else _with_global(of_clients, pooled)


def _measured(
    scored: list[tuple[np.ndarray, dict[str, Scores]]],
    of_server: Scores | None,
    counts: dict[str, np.ndarray],
    task: Task,
) -> Measured:
    """Computes a task's metrics from sums: per client, pooled, and of the server's own model."""
    assert task.metrics is not None  # a task with sums has metrics
    metrics = task.metrics

    def together(sums: PyTree, number: np.ndarray) -> dict[str, float]:
        return {name: float(value) for name, value in metrics(sums, number).items()}

    clients, pooled, server = {}, {}, {}
    if of_server is not None:
        number = np.asarray(of_server.count)
        server = {rule: together(sums, number) for rule, sums in dict(of_server.sums).items()}
    ids = np.concatenate([block for block, _ in scored])
    for split in scored[0][1]:
        sums = join_trees(np.concatenate, [splits[split].sums for _, splits in scored])
        number = counts[split]
        clients[split], pooled[split] = {}, {}
        for rule, of_rule in sums.items():
            pooled[split][rule] = together(jax.tree.map(lambda x: x.sum(0), of_rule), number.sum())
            clients[split][rule] = {}
            for name, values in metrics(of_rule, number[ids]).items():
                row = np.full(len(number), np.nan)
                row[ids] = np.where(number[ids] > 0, values, np.nan)
                clients[split][rule][name] = row
    return Measured(task.score, task.better, clients, pooled, server)


def _with_global(evaluation: Evaluation, pooled: Scores) -> Evaluation:
    """Adds the scores of the server's own model."""
    shares = {rule: float(c / max(1, pooled.count)) for rule, c in pooled.correct.items()}
    evaluation = evaluation._replace(global_accuracy=shares)
    if np.size(pooled.by_class):
        evaluation = evaluation._replace(global_by_class=np.asarray(pooled.by_class))
    if np.size(pooled.auc):
        evaluation = evaluation._replace(global_auc=float(np.asarray(pooled.auc)))
    return evaluation


def _share(correct: HostNumber, count: HostNumber) -> np.ndarray:
    return np.where(count > 0, correct / np.maximum(count, 1), np.nan)


def _total(cost: WireCost) -> WireCost:
    return WireCost(*(int(np.sum(x, dtype=np.int64)) for x in cost))
