"""Runs a comparison on several splits with several model seeds each, every pair of them, and says
how much of the spread each makes."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ht.data.dataset import Partition
from fedjax_ht.lab.config.entries import baseline_of
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.report.document import Document
from fedjax_ht.lab.report.seed_sensitivity import sensitivity, write_cells, write_page
from fedjax_ht.lab.report.statistics import best_scores
from fedjax_ht.lab.runs.build import make_dataset, make_partitions
from fedjax_ht.lab.runs.train import Result


class Seeds(NamedTuple):
    """Numbers of splits and of model seeds, at least 2 each."""

    splits: int
    models: int


def chosen_seeds(splits: int | None, models: int | None, trials: int | None) -> Seeds | None:
    """Returns the seeds that the flags --split_seeds and --model_seeds set; None without them.

    Raises:
      ValueError: one of them is missing or below 2, or --trials is given, too. One line.
    """
    if splits is None and models is None:
        return None
    for flag, value in (("split_seeds", splits), ("model_seeds", models)):
        if value is None or value < 2:
            raise ValueError(
                f"--{flag} is {value}; crossed seeds need --split_seeds and --model_seeds, each of "
                "at least 2"
            )
    if trials is not None:
        raise ValueError(
            "--trials is given beside --model_seeds, which is the number of trials on each split"
        )
    return Seeds(splits or 0, models or 0)


def split_configs(config: Config, seeds: Seeds) -> list[Config]:
    """Returns the config of the comparison on each split: all of its trials have this split."""
    configs = []
    for number in range(seeds.splits):
        seed = config.partition.seed + number
        partition = dataclasses.replace(config.partition, seed=seed, per_trial=False)
        configs.append(dataclasses.replace(config, trials=seeds.models, partition=partition))
    return configs


def run_crossed(
    config: Config,
    seeds: Seeds,
    workdir: Path,
    run_split: Callable[[Config, Path], Result],
    *,
    show_result: Callable[[Document], None] = lambda text: None,
) -> list[Path]:
    """Runs the comparison on each split in a folder of its own, workdir/split_SEED, and writes
    seeds.csv, seeds.md and report.html.

    Args:
      config: the config of the comparison.
      seeds: numbers of splits and model seeds.
      workdir: the folder to write to.
      run_split: runs the comparison of a config in a folder.
      show_result: called with the tables of all splits.

    Returns:
      The files of all splits together; none where the folders are read-only or another process
      writes.

    Raises:
      ValueError: two seeds make the same split, or as `run_split`. One line.
    """
    configs = split_configs(config, seeds)
    _check_splits(config, seeds)
    scores: list[dict[str, list[float]]] = []
    is_written = True
    for of_split in configs:
        result = run_split(of_split, workdir / f"split_{of_split.partition.seed}")
        scores.append(best_scores(result.histories))
        is_written = is_written and bool(result.files)
    labels = list(scores[0])
    accuracies = np.array([[of_split[label] for of_split in scores] for label in labels])
    text = sensitivity(labels, accuracies, baseline_of(labels))
    show_result(text)
    if not is_written:
        return []
    splits = [of_split.partition.seed for of_split in configs]
    models = list(range(config.seed, config.seed + seeds.models))
    cells = dict(zip(labels, accuracies / 100))
    with atomic_open(workdir / "seeds.md") as file:
        file.write(text.markdown() + "\n")
    return [
        write_cells(cells, splits, models, workdir / "seeds.csv"),
        workdir / "seeds.md",
        write_page(text, labels, splits, workdir / "report.html"),
    ]


def _check_splits(config: Config, seeds: Seeds) -> None:
    """Refuses a partition that is the same for two seeds, whose spread would be 0."""
    partition = dataclasses.replace(config.partition, per_trial=True)
    several = dataclasses.replace(config, trials=seeds.splits, partition=partition)
    dataset = make_dataset(config.dataset, config.partition, [config.training])
    made = make_partitions(several, dataset)
    for first, second in itertools.combinations(made, 2):
        if _are_equal(first, second):
            raise ValueError(
                f"--split_seeds is {seeds.splits}; partition.kind={config.partition.kind} makes "
                "the same split by two of these seeds. Compare with --trials=3 instead"
            )


def _are_equal(first: Partition, second: Partition) -> bool:
    for client, other in zip(first, second):
        if not all(map(np.array_equal, client, other)):
            return False
    return len(first) == len(second)
