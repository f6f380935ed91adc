"""What a round and an evaluation say, on the host."""

from typing import NamedTuple

import numpy as np

from fedjax_ht.core.round import ClientResult, Scores
from fedjax_ht.core.wire import WireCost


class RoundReport(NamedTuple):
    """One round.

    Attributes:
      participants: int64 [m], ids ascending.
      arrived: how many uplinks the server got.
      not_finite: ids of clients whose result was not finite; they kept their old state and were left out.
      metrics: means over the participants whose result was finite.
      server_metrics: as the method's server reports them.
      uplink, downlink: sums over clients; dropped clients sent nothing that counts.
    """

    participants: np.ndarray
    arrived: int
    not_finite: tuple[int, ...]
    metrics: dict[str, float]
    server_metrics: dict[str, float]
    uplink: WireCost
    downlink: WireCost


class Evaluation(NamedTuple):
    """Accuracy of every client.

    Attributes:
      accuracy: split -> rule -> float64 [num_clients], NaN where a client has no sample.
      counts: split -> int64 [num_clients], samples.
      global_accuracy: rule -> accuracy of the server's model on all clients' test samples; empty without such a model.
    """

    accuracy: dict[str, dict[str, np.ndarray]]
    counts: dict[str, np.ndarray]
    global_accuracy: dict[str, float]


def round_report(
    order: list[np.ndarray], results: list[ClientResult], server_metrics: dict, downlink_of_all: WireCost | None
) -> RoundReport:
    """Joins the buckets' results.

    Args:
      order: per bucket the ids of its participants in running order; rows beyond them are padding.
      results: per bucket, NumPy, leading axis [P].
      server_metrics: name -> scalar.
      downlink_of_all: arrays [num_clients], where a downlink goes to everyone; None counts the participants'.
    """
    rows = [_take(result, len(ids)) for ids, result in zip(order, results)]
    ids = np.concatenate(order)
    join = lambda *path: np.concatenate([_get(r, path) for r in rows])  # noqa: E731
    finite, arrived = join("finite"), join("arrived")
    names = rows[0].metrics if rows else {}
    return RoundReport(
        participants=np.sort(ids),
        arrived=int(arrived.sum()),
        not_finite=tuple(sorted(int(i) for i in ids[~finite])),
        metrics={k: float(np.mean(join("metrics", k)[finite])) if finite.any() else float("nan") for k in names},
        server_metrics={k: float(v) for k, v in server_metrics.items()},
        uplink=_total([join("uplink_cost", f)[arrived] for f in WireCost._fields]),
        downlink=_total(downlink_of_all or [join("downlink_cost", f) for f in WireCost._fields]),
    )


def evaluation(
    num_clients: int, scored: list[tuple[np.ndarray, dict[str, Scores]]], pooled: Scores | None
) -> Evaluation:
    """Joins blocks of (client ids, {split: Scores [P]}); rows beyond the ids are padding."""
    accuracy: dict[str, dict[str, np.ndarray]] = {}
    counts: dict[str, np.ndarray] = {}
    for ids, splits in scored:
        for split, scores in splits.items():
            count = scores.count[: len(ids)].astype(np.int64)
            counts.setdefault(split, np.zeros(num_clients, np.int64))[ids] = count
            for rule, correct in scores.correct.items():
                row = accuracy.setdefault(split, {}).setdefault(rule, np.full(num_clients, np.nan))
                row[ids] = np.where(count > 0, correct[: len(ids)] / np.maximum(count, 1), np.nan)
    pooled_accuracy = {} if pooled is None else {r: float(c / max(1, pooled.count)) for r, c in pooled.correct.items()}
    return Evaluation(accuracy, counts, pooled_accuracy)


def _take(result: ClientResult, count: int) -> ClientResult:
    cut = lambda tree: type(tree)(*(x[:count] for x in tree))  # noqa: E731
    return ClientResult(
        (),
        result.arrived[:count],
        result.finite[:count],
        {k: v[:count] for k, v in result.metrics.items()},
        cut(result.uplink_cost),
        cut(result.downlink_cost),
    )


def _get(result: ClientResult, path: tuple[str, ...]):
    value = getattr(result, path[0])
    return value if len(path) == 1 else value[path[1]] if isinstance(value, dict) else getattr(value, path[1])


def _total(columns) -> WireCost:
    return WireCost(*(int(np.sum(c, dtype=np.int64)) for c in columns))
