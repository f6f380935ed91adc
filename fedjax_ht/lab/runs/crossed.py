"""Crossed seeds: a comparison on several splits with several model seeds each, and how much of the
spread of accuracies is that of splits and that of seeds.

The accuracies of a method, or differences of two, are y[s, k] of S splits and K model seeds; a dot
is a mean over the index. Their variances are those with which mean squares have these expectations
(S. R. Searle, G. Casella and C. E. McCulloch, Variance Components, 1992, chapter 4); a negative
one is 0:

    MS_split = K sum_s (y[s, .] - y[., .])^2 / (S - 1)        expected: K var_split + var_rest
    MS_model = S sum_k (y[., k] - y[., .])^2 / (K - 1)        expected: S var_model + var_rest
    MS_rest = sum_sk (y[s, k] - y[s, .] - y[., k] + y[., .])^2 / ((S - 1) (K - 1)):  var_rest
    variance of y[., .] = var_split / S + var_model / K + var_rest / (S K)
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.lab.config.entries import baseline_of
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.document import Document, Paragraph, Table
from fedjax_ht.lab.report.statistics import best_scores
from fedjax_ht.lab.runs.train import Result

NOTE = (
    "Accuracies are percent of the best round, differences points. ± split and ± model are "
    "standard deviations between splits and between model seeds; ± rest is what neither explains "
    "alone. The standard error is that of the mean for other splits and seeds; of few it is rough."
)


def chosen_seeds(
    splits: int | None, models: int | None, trials: int | None
) -> tuple[int, int] | None:
    """Returns the numbers of splits and of model seeds that the flags set; None without them.

    Raises:
      ValueError: one of them is missing or below 2, or --trials is given, too. One line.
    """
    if splits is None and models is None:
        return None
    if min(splits or 0, models or 0) < 2:
        raise ValueError(
            f"--split_seeds is {splits} and --model_seeds {models}; give both, each at least 2"
        )
    if trials is not None:
        raise ValueError("--trials is given beside --model_seeds; leave it out")
    return splits or 0, models or 0


def run_crossed(
    config: Config,
    seeds: tuple[int, int],
    workdir: Path,
    run_split: Callable[[Config, Path], Result],
    *,
    show_result: Callable[[Document], None] = lambda text: None,
) -> list[Path]:
    """Runs a comparison on each split in workdir/split_SEED, and writes seeds.csv and seeds.md.

    Args:
      config: the config of the comparison.
      seeds: numbers of splits and model seeds.
      workdir: the folder to write to.
      run_split: runs the comparison of a config in a folder.
      show_result: called with the tables of all splits.

    Returns:
      The two files; none where the folders are read-only or another process writes.
    """
    first, (splits, models) = config.partition.seed, seeds
    scores, is_written = [], True
    for seed in range(first, first + splits):
        partition = dataclasses.replace(config.partition, seed=seed, per_trial=False)
        of_split = dataclasses.replace(config, trials=models, partition=partition)
        result = run_split(of_split, workdir / f"split_{seed}")
        scores.append(best_scores(result.histories))
        is_written = is_written and bool(result.files)
    labels = list(scores[0])
    accuracies = np.array([[of_split[label] for of_split in scores] for label in labels])
    text = sensitivity(labels, accuracies)
    show_result(text)
    if not is_written:
        return []
    rows = []
    for (entry, split, model), accuracy in np.ndenumerate(accuracies):
        seeds_of_run = [str(first + split), str(config.seed + model)]
        rows.append([labels[entry], *seeds_of_run, str(accuracy / 100)])
    cells = Table(["entry", "split_seed", "model_seed", "best"], rows)
    files = {"seeds.csv": cells.csv(), "seeds.md": f"{text.markdown()}\n"}
    for name, content in files.items():
        with atomic_open(workdir / name) as file:
            file.write(content)
    return [workdir / name for name in files]


def sensitivity(labels: Sequence[str], accuracies: np.ndarray) -> Document:
    """Makes a table of the spread of each entry and of its difference to the baseline.

    Args:
      labels: the entries.
      accuracies: percent [methods, splits, models], the entries in order.
    """
    spreads, baseline = dict(zip(labels, accuracies)), baseline_of(labels)
    for label in labels:
        if label != baseline:
            spreads[f"{label} minus {baseline}"] = spreads[label] - spreads[baseline]
    rows = [[label, *(f"{x:.2f}" for x in components(spreads[label]))] for label in spreads]
    head = ["", "mean", "± split", "± model", "± rest", "standard error"]
    return Document([Table(head, rows), Paragraph(NOTE)])


def components(cells: np.ndarray) -> tuple[float, ...]:
    """Returns the mean of accuracies [splits, models], the standard deviations between splits,
    between model seeds and of the rest, and the standard error of the mean."""
    splits, models = cells.shape
    mean, of_split, of_model = cells.mean(), cells.mean(1), cells.mean(0)
    squares = (cells - of_split[:, None] - of_model + mean) ** 2
    rest = squares.sum() / ((splits - 1) * (models - 1))
    split = max(0.0, of_split.var(ddof=1) - rest / models)
    model = max(0.0, of_model.var(ddof=1) - rest / splits)
    error = split / splits + model / models + rest / (splits * models)
    return float(mean), *np.sqrt([split, model, rest, error]).tolist()
