"""Metrics of tasks other than classification, sample by sample in float64."""

import numpy as np


def regression(predictions, targets):
    """Returns rmse, mae and r2, each a mean over the columns; r2 is NaN where it is not defined."""
    predictions, targets = np.asarray(predictions, np.float64), np.asarray(targets, np.float64)
    rmse, mae, r2 = [], [], []
    for said, true in zip(predictions.T, targets.T):
        squares = sum((s - t) ** 2 for s, t in zip(said, true))
        rmse.append((squares / len(true)) ** 0.5)
        mae.append(sum(abs(s - t) for s, t in zip(said, true)) / len(true))
        mean = sum(true) / len(true)
        spread = sum((t - mean) ** 2 for t in true)
        r2.append(1 - squares / spread if len(true) > 1 and spread > 0 else np.nan)
    return {"rmse": np.mean(rmse), "mae": np.mean(mae), "r2": np.mean(r2)}


def multi_label(predictions, targets):
    """Returns micro_f1, macro_f1 and exact; a label that is neither true nor predicted counts 0."""
    both, either, f1 = 0, 0, []
    for said, true in zip(np.transpose(predictions), np.transpose(targets)):
        hits = sum(bool(s) and bool(t) for s, t in zip(said, true))
        total = sum(map(bool, said)) + sum(map(bool, true))
        both, either = both + hits, either + total
        f1.append(2 * hits / total if total else 0.0)
    exact = np.mean([all(s == t) for s, t in zip(np.asarray(predictions), np.asarray(targets))])
    return {"micro_f1": 2 * both / either, "macro_f1": np.mean(f1), "exact": exact}


def average_precision(scores, targets):
    """Returns the mean over labels that some sample has of sum_n (R_n - R_{n-1}) P_n, where samples
    of one score are one step."""
    found = []
    for score, true in zip(np.transpose(scores), np.transpose(targets)):
        area = recall = 0.0
        for least in sorted(set(score), reverse=True):
            said = score >= least
            hits = sum(said & (true > 0))
            area += (hits / sum(true > 0) - recall) * hits / sum(said) if sum(true) else 0
            recall = hits / sum(true > 0) if sum(true) else 0
        found += [area] if sum(true) else []
    return np.mean(found)


def per_pixel(predictions, targets, ignored=255):
    """Returns miou, of classes that are true or predicted somewhere, and pixel_accuracy."""
    pairs = [
        (int(s), int(t)) for s, t in zip(np.ravel(predictions), np.ravel(targets)) if t != ignored
    ]
    shares = []
    for c in sorted({x for pair in pairs for x in pair}):
        both = sum(s == c and t == c for s, t in pairs)
        either = sum(c in pair for pair in pairs)
        shares.append(both / either)
    return {"miou": np.mean(shares), "pixel_accuracy": np.mean([s == t for s, t in pairs])}
