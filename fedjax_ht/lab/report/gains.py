"""Gains of single clients over local training of the same seed and split: whom an entry helps, and
whom it hurts."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedjax_ht.lab.config.entries import BASELINE, baseline_of, method_of
from fedjax_ht.lab.report.document import Document, Paragraph, Table
from fedjax_ht.simulation.history import best
from fedjax_ht.simulation.rows import Row, Runs, evaluated

ERRORS = 2
"""Standard errors that a gain or a loss must have to be more than noise."""
NOTE = (
    "Gains of single clients are an entry's accuracy minus local training's on the same test "
    "samples, of the same seed and split, each in its best round; of several trials means. A "
    f"client gains or loses where the difference is beyond {ERRORS} standard errors of a "
    "difference of two shares of its test samples, each share with one sample more that is right "
    "and one that is wrong (Agresti and Caffo, 2000). The worst tenth are the clients that lose "
    "most."
)
NO_BASELINE = (
    f"Whom an entry helps or hurts is not shown: no entry is {BASELINE!r}, whose clients train "
    "alone."
)


class Gains(NamedTuple):
    """Clients' gains over local training, means over trials.

    Attributes:
      median: the median gain, in [-1, 1].
      gaining, losing: shares of the clients that gain and that lose beyond noise; NaN where the
        rows do not say how many test samples a client has, as those of an earlier version.
      worst_tenth: mean over the tenth of the clients that lose most, at least one.
    """

    median: float
    gaining: float
    losing: float
    worst_tenth: float


def beyond_noise(accuracy: np.ndarray, baseline: np.ndarray, num_samples: np.ndarray) -> np.ndarray:
    """Tells which clients' accuracies differ by more than the noise of their test samples.

    One right and one wrong sample are added to each share, so that a client with few test samples,
    or with all of them right, has a standard error, too. Two models are right on mostly the same
    samples, so that the error of independent shares, which is taken here, is rather too large.

    Args:
      accuracy, baseline: float [clients], shares of the same test samples.
      num_samples: int [clients], each client's test samples.

    Returns:
      int [clients], 1 where `accuracy` is higher beyond noise, -1 where it is lower, else 0.
    """
    shares = (np.stack([accuracy, baseline]) * num_samples + 1) / (num_samples + 2)
    errors = np.sqrt(np.sum(shares * (1 - shares), 0) / (num_samples + 2))
    differences = shares[0] - shares[1]
    return np.where(np.abs(differences) > ERRORS * errors, np.sign(differences), 0).astype(int)


def gains_of_run(
    accuracy: np.ndarray, baseline: np.ndarray, num_samples: np.ndarray | None
) -> Gains:
    """Summarises the gains of a run's clients; arguments as of `beyond_noise`, without NaN, and
    `num_samples` None where it is not known."""
    gains = np.sort(accuracy - baseline)
    gaining = losing = math.nan
    if num_samples is not None:
        signs = beyond_noise(accuracy, baseline, num_samples)
        gaining, losing = float(np.mean(signs > 0)), float(np.mean(signs < 0))
    return Gains(
        median=float(np.median(gains)),
        gaining=gaining,
        losing=losing,
        worst_tenth=float(gains[: max(1, len(gains) // 10)].mean()),
    )


def client_gains(histories: Mapping[str, Runs]) -> dict[str, Gains]:
    """Computes every entry's gains over the first entry of local training.

    Args:
      histories: label of an entry -> its runs.

    Returns:
      Label -> gains, of the entries that have the baseline's trials and evaluated clients; none
      without an entry of local training.
    """
    baseline = baseline_label(histories)
    if baseline is None:
        return {}
    references = _best_rows(histories[baseline])
    gains = {}
    for label, runs in histories.items():
        rows = _best_rows(runs)
        if label == baseline or len(rows) != len(references):
            continue
        pairs = [_paired(row, reference) for row, reference in zip(rows, references)]
        of_runs = [gains_of_run(*pair) for pair in pairs if pair is not None]
        if of_runs and len(of_runs) == len(pairs):
            gains[label] = Gains(*np.mean(of_runs, axis=0).tolist())
    return gains


def baseline_label(labels: Mapping[str, Runs]) -> str | None:
    """Returns the label of the first entry of local training; None without one."""
    label = baseline_of(labels) if labels else None
    return label if label is not None and method_of(label) == BASELINE else None


def _best_rows(runs: Runs) -> list[Row]:
    """Returns each run's best round; runs without an evaluation of single clients have none."""
    rows = [best(history).on_test for history in runs if evaluated(history)]
    return [row for row in rows if "clients" in row]


def _paired(row: Row, reference: Row) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """Returns the arguments of `gains_of_run` for the clients that both rows have scored; None
    where the rows are of different clients, or have no client in common."""
    clients = [np.array(r["clients"], np.float64) for r in (row, reference)]  # None becomes NaN
    if row.get("client_ids") != reference.get("client_ids") or clients[0].shape != clients[1].shape:
        return None
    scored = ~np.isnan(clients).any(0)
    if not scored.any():
        return None
    num_samples = None
    if "accuracy_samples" in row:
        num_samples = np.array(row["accuracy_samples"])[scored]
    return clients[0][scored], clients[1][scored], num_samples


def gain_table(histories: Mapping[str, Runs]) -> Document:
    """Makes the table of `client_gains` with the meaning of its columns; without an entry of local
    training a line that says so, and of one entry alone an empty document."""
    if len(histories) < 2:
        return Document()
    baseline = baseline_label(histories)
    if baseline is None:
        return Document([Paragraph(NO_BASELINE)])
    gains = client_gains(histories)
    if not gains:
        return Document()
    head = [
        "entry",
        f"median gain over {baseline}, points",
        "clients that gain %",
        "clients that lose %",
        "worst tenth, points",
    ]
    rows = []
    for label, of_entry in gains.items():
        shares = [_share(of_entry.gaining), _share(of_entry.losing)]
        rows.append([label, _points(of_entry.median), *shares, _points(of_entry.worst_tenth)])
    return Document([Table(head, rows), Paragraph(NOTE)])


def _points(value: float) -> str:
    return f"{round(100 * value, 2) + 0.0:+.2f}"  # + 0.0 turns -0.0 into 0.0


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.0f}"
