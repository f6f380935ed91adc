"""Decomposes the spread of a comparison into that of splits, of model seeds and of methods.

Every method runs once with every pair of a split and a model seed. Two decompositions are made of
the accuracies y[m, s, k], in which a dot is a mean over the index.

**Shares.** A deviation from the grand mean is a sum of main effects and interactions. The design is
balanced, so that these are orthogonal and their sums of squares add up to the total (eta squared of
the analysis of variance; R. A. Fisher, Statistical Methods for Research Workers, 1925). Of two
factors:

    y[s, k] - y[., .] = (y[s, .] - y[., .]) + (y[., k] - y[., .]) + rest[s, k]
    rest[s, k] = y[s, k] - y[s, .] - y[., k] + y[., .]

and a third factor adds its main effect and its interactions likewise.

**Components.** The S splits and K model seeds of one method, or of a difference of two methods, are
random. Their variances are those with which mean squares have these expectations (analysis of
variance estimators; S. R. Searle, G. Casella and C. E. McCulloch, Variance Components, 1992,
chapter 4), a negative one being taken for 0:

    MS_split = K sum_s (y[s, .] - y[., .])^2 / (S - 1)        expected: K var_split + var_rest
    MS_model = S sum_k (y[., k] - y[., .])^2 / (K - 1)        expected: S var_model + var_rest
    MS_rest = sum_sk rest[s, k]^2 / ((S - 1) (K - 1))         expected: var_rest
    variance of y[., .] = var_split / S + var_model / K + var_rest / (S K)

The S K runs are not independent: the standard error of as many independent trials is too small.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report import html_page
from fedjax_ht.lab.report.document import Block, Document, Paragraph
from fedjax_ht.lab.report.statistics import listed
from fedjax_ht.lab.report.table import Table

SOURCES = ("method", "split", "model", "method x split", "method x model", "rest")


class Components(NamedTuple):
    """The spread of one method's accuracies, or of a difference's, over splits and model seeds.

    Attributes:
      mean: the mean of all cells.
      split, model: standard deviations between splits and between model seeds.
      rest: standard deviation of what neither explains alone: a model seed that is lucky on one
        split only.
      error: standard error of the mean, over other splits and other model seeds.
    """

    mean: float
    split: float
    model: float
    rest: float
    error: float


def components(cells: np.ndarray) -> Components:
    """Estimates variance components of accuracies [splits, models], at least 2 by 2.

    Raises:
      ValueError: there are fewer splits or models. One line.
    """
    if cells.ndim != 2 or min(cells.shape) < 2:
        raise ValueError(
            f"accuracies have shape {cells.shape}; it must be [splits, models], 2 of each at least"
        )
    splits, models = cells.shape
    squares = _sums_of_squares(cells)
    rest = squares[0, 1] / ((splits - 1) * (models - 1))
    of_split = max(0.0, squares[0,] / (splits - 1) - rest) / models
    of_model = max(0.0, squares[1,] / (models - 1) - rest) / splits
    error = of_split / splits + of_model / models + rest / (splits * models)
    return Components(
        mean=float(cells.mean()),
        split=float(np.sqrt(of_split)),
        model=float(np.sqrt(of_model)),
        rest=float(np.sqrt(rest)),
        error=float(np.sqrt(error)),
    )


def shares(accuracies: np.ndarray) -> dict[str, float]:
    """Returns the share of each of `SOURCES` in the sum of squares of accuracies
    [methods, splits, models]; they add up to 1. NaN where all accuracies are equal.

    "rest" is the interaction of split and model, and of all three, which one run a cell does not
    tell apart from chance.
    """
    squares = _sums_of_squares(accuracies)
    named = {
        "method": squares[0,],
        "split": squares[1,],
        "model": squares[2,],
        "method x split": squares[0, 1],
        "method x model": squares[0, 2],
        "rest": squares[1, 2] + squares[0, 1, 2],
    }
    total = sum(named.values())
    if total == 0:
        return dict.fromkeys(SOURCES, float("nan"))
    return {name: float(named[name] / total) for name in SOURCES}


def _sums_of_squares(values: np.ndarray) -> dict[tuple[int, ...], float]:
    """Returns the sum of squares of each effect of a balanced design with a value a cell, by the
    axes that it is of: (0,) is the first axis' own, (0, 1) its interaction with the second."""
    squares = {}
    for number in range(1, 2**values.ndim):
        axes = tuple(axis for axis in range(values.ndim) if number >> axis & 1)
        effect = values
        for axis in range(values.ndim):
            mean = effect.mean(axis, keepdims=True)
            effect = effect - mean if axis in axes else np.broadcast_to(mean, effect.shape)
        squares[axes] = float(np.sum(effect**2))
    return squares


def sensitivity(labels: Sequence[str], accuracies: np.ndarray, baseline: str) -> Document:
    """Makes two tables: the spread of each entry and of its difference to the baseline, and the
    share of each source.

    Args:
      labels: the entries.
      accuracies: percent [methods, splits, models], the entries in order.
      baseline: the entry of `labels` that others are compared with.
    """
    head = ["", "mean", "± split", "± model", "± rest", "standard error"]
    of_baseline = accuracies[labels.index(baseline)]
    rows = [_cells(label, values) for label, values in zip(labels, accuracies)]
    for label, values in zip(labels, accuracies):
        if label != baseline:
            rows.append(_cells(f"{label} minus {baseline}", values - of_baseline))
    _, splits, models = accuracies.shape
    of_splits = f"{splits} splits and {models} model seeds, every pair of them"
    explained = Paragraph(
        f"Accuracies are percent of the best round, differences points, over {of_splits}. ± split "
        "and ± model are standard deviations from one split, or from one model seed, to another; "
        "± rest is of what neither explains alone. The standard error is that of the mean for "
        "other splits and other seeds; of so few it is itself rough."
    )
    blocks: list[Block] = [Table(head, rows), explained]
    if len(labels) > 1:
        blocks += [
            Table(["source of the spread", "share %"], _share_rows(accuracies)),
            Paragraph(
                "Shares of the sum of squared deviations of all accuracies from their mean. "
                "method x split is how far the methods' differences change with the split, "
                "method x model with the model seed."
            ),
        ]
    return Document(blocks)


def _cells(label: str, values: np.ndarray) -> list[str]:
    return [label, *(f"{value:.2f}" for value in components(values))]


def _share_rows(accuracies: np.ndarray) -> list[list[str]]:
    return [[name, f"{100 * share:.1f}"] for name, share in shares(accuracies).items()]


def write_cells(
    accuracies: Mapping[str, np.ndarray], splits: Sequence[int], models: Sequence[int], path: Path
) -> Path:
    """Writes a row for each entry, split and model seed.

    Args:
      accuracies: entry -> accuracies in [0, 1], [splits, models].
      splits: the seeds of the splits.
      models: the seeds of training and initial weights.
      path: path of the CSV.
    """
    rows = []
    for label, values in accuracies.items():
        for split, of_split in zip(splits, values):
            for model, value in zip(models, of_split):
                rows.append([label, str(split), str(model), str(value)])
    with atomic_open(path) as file:
        file.write(Table(["entry", "split_seed", "model_seed", "best"], rows).csv())
    return path


def write_page(text: Document, labels: Sequence[str], splits: Sequence[int], path: Path) -> Path:
    """Writes a page with the tables of `sensitivity`, and links to the page of each split's
    comparison, split_SEED/report.html beside it."""
    links = "".join(
        f'<li><a href="split_{seed}/report.html">split {seed}</a></li>' for seed in splits
    )
    sections = {"Spread": text.html(), "Each split": f"<ul>{links}</ul>"}
    title = f"{listed(labels)}: {len(splits)} splits"
    with atomic_open(path) as file:
        file.write(html_page.page(title, title, (), sections))
    return path
