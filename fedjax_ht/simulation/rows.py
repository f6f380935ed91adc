"""Plain rows of a history, made from reports; files, tables and plots use them directly."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_ht.metrics.accuracy import AccuracySummary, class_accuracy, macro_f1, summarise
from fedjax_ht.simulation.report import Evaluation, Measured, RoundReport

Row = dict[str, Any]
"""A dict of JSON values.

"round" counts completed rounds; row 0 is the untrained federation. "trial" is the index of the run
within its entry, from 0. Seconds are those of a round of all runs that run together.
"""

History = Sequence[Row]
"""The rows of a run, in the order of its rounds."""

Runs = Sequence[History]
"""The runs of an entry, one per seed, in the order of their seeds."""

TRAINED = "trained_"
"""Prefix of the columns of clients' trained states, if both states are scored."""

NEW = "new_"
"""Prefix of the columns of clients that never train, if there are any."""


def unprefixed(column: str) -> str:
    """Returns the name of a clients' column without `TRAINED` or `NEW`."""
    return column.removeprefix(TRAINED).removeprefix(NEW)


def evaluated(history: History) -> list[Row]:
    """Returns the rows of a run that have an evaluation."""
    return [row for row in history if score_of(row) in row]


def score_of(row: Row) -> str:
    """Returns the name of a row's score: "accuracy", or that of another task."""
    return row.get("score", "accuracy")


def merit(row: Row, score: str) -> float:
    """Returns a row's score, negated if lower scores are better."""
    return -row[score] if row.get("better") == "lower" else row[score]


def evaluation_row(
    evaluation: Evaluation, rules: Sequence[str], only: np.ndarray | None = None
) -> Row:
    """Flattens an evaluation; "accuracy" is the method's first rule on the clients' own test sets.

    Args:
      evaluation: the evaluation of a run.
      rules: the method's inference rules, the reported one first.
      only: ids of the clients that were evaluated; None for all.

    Returns:
      For classification: accuracy, accuracy_weighted (by test samples), accuracy_train_weighted (by
      training samples, DFRD's L.acc), accuracy_std, accuracy_worst10, val_accuracy (with a
      validation set), train_accuracy (if evaluated), and accuracy_<rule> for every rule.
      By the reported rule and not in a deployment: macro_f1 (mean over clients) and class_accuracy
      (over all test samples of each class; None without any).
      If requested: auc (mean over the clients for which it is defined; absent if there are none),
      auc_undefined (number of clients whose test samples have a single class) and client_auc (per
      client, None where undefined).
      With a global model: global_accuracy_head (DFRD's G.acc), global_macro_f1_head and, if
      requested, global_auc_head.
      Per client: clients (accuracies), accuracy_samples (test samples, of which `clients` are
      shares), client_class_counts (alongside macro_f1: {class: [test samples, correctly classified
      ones]} for classes with test samples) and, if only some clients were evaluated, client_ids.
      For other tasks: "score" (its name), "better" ("higher" or "lower"), each metric by the
      reported rule as the mean over the clients for which it is defined, METRIC_pooled over all
      samples together, both with a prefix for other sets; SCORE_<rule> for every rule, SCORE_std,
      SCORE_worst10, clients and client_samples, and global_METRIC_head with a global model.
      If both states are scored, the clients' columns also occur with the prefix `TRAINED`, for
      trained states. Those of clients that never train, which other columns exclude, have the
      prefix `NEW`.
    """
    row: Row = {}
    reported = rules[0]
    if evaluation.measured is not None:
        row |= _measured_columns(evaluation.measured, evaluation.counts["test"], rules, only)
    for split, by_rule in evaluation.accuracy.items():
        prefix = "" if split == "test" else f"{split}_"
        counts = np.where(np.isnan(by_rule[reported]), 0, evaluation.counts[split])
        if split != "test" and not counts.any():
            continue  # none of the evaluated clients has such samples
        summary = summarise(by_rule[reported], counts)
        row[f"{prefix}accuracy"] = summary.mean
        row[f"{prefix}accuracy_weighted"] = summary.weighted
        if split == "test":
            row |= _test_columns(evaluation, summary, rules, only)
    for prefix, part in ((TRAINED, evaluation.trained), (NEW, evaluation.new)):
        if part is not None:
            columns = evaluation_row(part, rules, only)
            row |= {f"{prefix}{name}": value for name, value in columns.items()}
    for rule, value in evaluation.global_accuracy.items():
        row[f"global_accuracy_{rule}"] = value
    if evaluation.global_by_class is not None:
        row["global_macro_f1_head"] = float(macro_f1(evaluation.global_by_class[None])[0])
    if evaluation.global_auc is not None:
        row["global_auc_head"] = evaluation.global_auc
    # NaN, where no evaluated client has such samples, is no JSON.
    return {name: value for name, value in row.items() if value == value}


def _test_columns(
    evaluation: Evaluation, summary: AccuracySummary, rules: Sequence[str], only: np.ndarray | None
) -> Row:
    """Returns the columns that only test sets have; `summary` is that of the reported rule."""
    by_rule, counts = evaluation.accuracy["test"], evaluation.counts["test"]
    reported = by_rule[rules[0]]
    train_weights = np.where(counts > 0, evaluation.counts["train"], 0)
    row: Row = {
        "accuracy_train_weighted": summarise(reported, train_weights).weighted,
        "accuracy_std": summary.std,
        "accuracy_worst10": summary.worst,
    }
    for rule in rules:
        row[f"accuracy_{rule}"] = summarise(by_rule[rule], counts).mean
    if evaluation.by_class is not None:
        row["macro_f1"] = summarise(macro_f1(evaluation.by_class), counts).mean
        row["class_accuracy"] = _or_none(class_accuracy(evaluation.by_class))
    if evaluation.auc is not None:
        row |= _auc_columns(evaluation.auc, counts, only)
    clients, samples = reported, counts
    if only is not None:
        clients, samples = reported[only], counts[only]
    row["clients"] = _or_none(clients)
    row["accuracy_samples"] = [int(count) for count in samples]
    if evaluation.by_class is not None:
        of_clients = evaluation.by_class if only is None else evaluation.by_class[only]
        row["client_class_counts"] = list(map(_counts_by_class, of_clients))
    if only is not None:
        row["client_ids"] = [int(i) for i in only]
    return row


def _measured_columns(
    measured: Measured, counts: np.ndarray, rules: Sequence[str], only: np.ndarray | None
) -> Row:
    """Returns the columns of a task other than classification; `counts` are test samples."""
    row: Row = {}
    for split, by_rule in measured.clients.items():
        prefix = "" if split == "test" else f"{split}_"
        for name, values in by_rule[rules[0]].items():
            row[f"{prefix}{name}"] = _mean_of(values)
            row[f"{prefix}{name}_pooled"] = measured.pooled[split][rules[0]][name]
    by_rule = measured.clients["test"]
    score = measured.score
    clients = by_rule[rules[0]][score]
    sign = -1 if measured.better == "lower" else 1
    summary = summarise(sign * clients, ~np.isnan(clients))
    row |= {"score": score, "better": measured.better}
    row |= {f"{score}_std": summary.std, f"{score}_worst10": sign * summary.worst}
    row |= {f"{score}_{rule}": _mean_of(by_rule[rule][score]) for rule in rules}
    for rule, metrics in measured.server.items():
        row |= {f"global_{name}_{rule}": value for name, value in metrics.items()}
    shown = slice(None) if only is None else only
    row |= {"clients": _or_none(clients[shown]), "client_samples": counts[shown].tolist()}
    return row if only is None else row | {"client_ids": [int(i) for i in only]}


def _mean_of(values: np.ndarray) -> float:
    """Returns the mean of the defined values; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _auc_columns(auc: np.ndarray, counts: np.ndarray, only: np.ndarray | None) -> Row:
    """Returns the columns of the clients' AUC.

    Args:
      auc: float64 [num_clients], NaN where undefined.
      counts: int [num_clients], test samples of evaluated clients, 0 for the others.
      only: ids of the clients that were evaluated; None for all.
    """
    scored = counts > 0
    defined = scored & ~np.isnan(auc)
    row: Row = {"auc_undefined": int(np.sum(scored & ~defined))}
    if defined.any():
        row["auc"] = summarise(auc, defined).mean
    return row | {"client_auc": _or_none(auc if only is None else auc[only])}


def _counts_by_class(counts: np.ndarray) -> dict[str, list[int]]:
    """Returns {class: [test samples, correctly classified ones]} of a client; counts int [3, C].

    Classes without test samples are skipped.
    """
    samples, _, correct = counts
    # most splits have few of many classes; JSON keys are strings
    owned = np.flatnonzero(samples)
    return {str(label): [int(samples[label]), int(correct[label])] for label in owned}


def _or_none(values: np.ndarray) -> list[float | None]:
    """Returns numbers as JSON values, with None for NaN."""
    return [None if np.isnan(value) else float(value) for value in values]


def round_row(report: RoundReport, rules: Sequence[str], client_flops: np.ndarray) -> Row:
    """Flattens a round's report: metrics, arrivals, FLOPs, and wire costs in elements and bytes.

    Args:
      report: the report of a round.
      rules: the method's inference rules, the reported one first.
      client_flops: float64 [num_clients], FLOPs of each client's round.

    Returns:
      The row. "accuracy_participants" is the mean over the round's participants, after training and
      before the next downlink, by the first rule; with several rules there are also
      accuracy_participants_<rule>. It is absent if no participant has test samples. "epsilon" is
      absent without privacy or without noise.
    """
    row: Row = dict(report.metrics) | report.server_metrics
    for rule in rules:
        values = report.accuracy.get(rule, np.full(1, np.nan))
        if np.isnan(values).all():
            continue
        if rule == rules[0]:
            row["accuracy_participants"] = float(np.nanmean(values))
        if len(rules) > 1:
            row[f"accuracy_participants_{rule}"] = float(np.nanmean(values))
    row["participants"] = len(report.participants)
    row["arrived"] = report.arrived
    row["not_finite"] = list(report.not_finite)
    row["server_finite"] = report.server_finite
    row["far_off"] = [list(outlier) for outlier in report.far_off]
    row |= _optional_columns(report)
    row["flops"] = float(client_flops[report.participants].sum())
    row["wasted_lane_steps"] = report.wasted_lane_steps
    for way, cost in (("uplink", report.uplink), ("downlink", report.downlink)):
        for field, value in cost._asdict().items():
            row[f"{way}_{field}"] = value
    return row


def _optional_columns(report: RoundReport) -> Row:
    """Returns the columns that only some runs have."""
    row: Row = {}
    if report.refused:
        row["refused"] = list(report.refused)
    if report.miscounted:
        row["miscounted"] = list(report.miscounted)
    if report.absent is not None:
        row["absent"] = report.absent
    if report.seconds is not None:
        row["simulated_seconds"] = report.seconds
        row["late"] = list(report.late)
    if report.arrived_late is not None:
        row["arrived_late"] = list(report.arrived_late)
    for name in ("public_bytes", "frozen_bytes"):
        if getattr(report, name) is not None:
            row[name] = getattr(report, name)
    if report.epsilon is not None and np.isfinite(report.epsilon):
        row["epsilon"] = report.epsilon
    for name, seconds in (report.stages or {}).items():
        row[f"seconds_{name}"] = seconds
    return row
