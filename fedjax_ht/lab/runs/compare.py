"""Compares methods: fedjax-ht compare --config=quickstart --methods=local,fedtgp.

All methods train on the same split (or one per trial, by the config's partition.per_trial) with
--trials seeds. A plain name is a method with its paper's settings.
"fedproto:weight=3.0:training.learning_rate=0.05" has its own settings, and "fedtgp@tuned" those
tuned for the config (lab/config/entries.py). The report lists each entry's changes to the defaults.
--methods and --trials default to the config's. --fair=9 first searches nine settings of each
method, by validation, and compares the best. --over=training.batch_size=64,512 also searches that
field of the recipe, with the same draws for all methods. --target=0.8 reports the cost of reaching
that accuracy, and --target_share=0.9 the cost of nine tenths of the best accuracy;
--target_score=accuracy_participants uses that score instead. --methods=all --skip_unfit compares
all methods that can run in the federation. --split_seeds=3 runs the comparison on three splits,
with the trials on each. --entries=2/8 trains only the second of eight shares of the entries, in a
separate folder; `fedjax-ht merge` combines the folders. The same command resumes a stopped run.

With --split_seeds, the accuracies of a method, or the differences between two, are y[s, k] for S
splits and K seeds; a dot is a mean over the index. Their variance components solve the expected
mean squares below (S. R. Searle, G. Casella and C. E. McCulloch, Variance Components, 1992,
chapter 4); negative ones are set to 0:

    MS_split = K sum_s (y[s, .] - y[., .])^2 / (S - 1)        expected: K var_split + var_rest
    MS_model = S sum_k (y[., k] - y[., .])^2 / (K - 1)        expected: S var_model + var_rest
    MS_rest = sum_sk (y[s, k] - y[s, .] - y[., k] + y[., .])^2 / ((S - 1) (K - 1)):  var_rest
    variance of y[., .] = var_split / S + var_model / K + var_rest / (S K)
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import flags

from fedjax_ht.lab.cli import fail
from fedjax_ht.lab.config.config_files import WordsParser
from fedjax_ht.lab.config.entries import baseline_of, entries_of, keeping, only
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.report.document import Document, Paragraph, Table
from fedjax_ht.lab.report.results import Aim, check_aim, costs, write_csv
from fedjax_ht.lab.report.rows import ACCURACY, PARTICIPANTS, Score, score_in, score_of_task
from fedjax_ht.lab.report.statistics import best_scores, client_gains, write_trials
from fedjax_ht.lab.runs.folder import is_primary
from fedjax_ht.lab.runs.plan import fitting, make_dataset
from fedjax_ht.lab.runs.progress import print_files, print_result, tell
from fedjax_ht.lab.runs.run import chosen_workdir, configured, execute, orderly, refuse_method_flags
from fedjax_ht.lab.runs.search import fairly_tuned
from fedjax_ht.lab.runs.spaces import parse_space
from fedjax_ht.lab.runs.train import GaveUp, Result
from fedjax_ht.methods import METHODS

_METHODS = flags.DEFINE(
    WordsParser(),
    "methods",
    None,
    "Entries, such as local,fedproto:weight=3.0,fedtgp@tuned, or all for every method; by default "
    "the config's.",
)
_SKIP = flags.DEFINE_bool(
    "skip_unfit", False, "Skip entries that cannot run in this federation, and report each."
)
_TRIALS = flags.DEFINE_integer(
    "trials", None, "Number of seeds per entry; by default the config's."
)
_SPLITS = flags.DEFINE_integer(
    "split_seeds", None, "Number of splits to run the comparison on.", lower_bound=2
)
_FAIR = flags.DEFINE_integer(
    "fair", None, "Number of settings to search first for each method, by validation."
)
_OVER = flags.DEFINE_multi_string(
    "over",
    [],
    "With --fair: also search training.FIELD=VALUE,VALUE,... or training.FIELD=log:LOW:HIGH.",
    allow_override=True,
)
_TARGET = flags.DEFINE_float(
    "target",
    None,
    "An accuracy in (0, 1], or the score of another task; by default the worst entry's best.",
)
_SHARE = flags.DEFINE_float(
    "target_share", None, "Instead of --target: a share, in (0, 1], of the highest best accuracy."
)
_ENTRIES = flags.DEFINE_string(
    "entries", None, "A share of the entries, such as 2/8: the second, tenth, ... of them."
)
_OF = flags.DEFINE_enum(
    "target_score",
    "accuracy",
    ["accuracy", PARTICIPANTS],
    "The target's score, as named in metrics.jsonl.",
)


ALL = "all"  # of --methods


def comparison(config: Config, methods: Sequence[str] | None, trials: int | None) -> Config:
    """Returns a config with these entries and number of trials; None keeps the config's.

    Raises:
      ValueError: there is no entry, a repeated one, or an invalid one.
    """
    if trials is not None:
        config = dataclasses.replace(config, trials=trials)
    if methods is None:
        return config
    if list(methods) == [ALL]:
        methods = list(METHODS)
    if not methods or len(set(methods)) < len(methods):
        raise ValueError(
            f"--methods is {','.join(methods)!r}; it must name at least one method, and each once"
        )
    config = only(config, methods)
    entries_of(config)
    return config


def share_of(config: Config, share: str | None) -> Config:
    """Returns a config with a share of its entries, "2/8"; None leaves all.

    Raises:
      ValueError: it is not such a share, or the share is empty. One line.
    """
    if share is None:
        return config
    number, _, shares = share.partition("/")
    if not (number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares)):
        raise ValueError(f"--entries is {share!r}; it must be a share such as 1/8, of 1/8 to 8/8")
    labels = [entry.label for entry in entries_of(config)]
    taken = labels[int(number) - 1 :: int(shares)]
    if not taken:
        raise ValueError(f"--entries is {share!r}, but there are only {len(labels)} entries")
    return keeping(config, taken)


def write_comparison(config: Config, result: Result, aim: Aim, workdir: Path) -> list[Path]:
    """Writes the additional files of a comparison; returns them and the page."""
    lines, target, _ = costs(result.histories, aim)
    write_whole(workdir / "compare.md", result.summary + "\n")
    gains = client_gains(result.histories)
    score = score_in(result.histories)
    sheet = write_csv(lines, target, workdir / "compare.csv", gains=gains, score=score)
    step = int(config.partition.per_trial)
    splits = [config.partition.seed + step * trial for trial in range(config.trials)]
    trials = write_trials(result.histories, config.seed, splits, workdir / "trials.csv")
    return [workdir / "compare.md", sheet, trials, workdir / "report.html"]


NOTE = (
    "{} ± split and ± model are standard deviations between splits and between model seeds; "
    "± rest is what neither explains alone. The standard error is that of the mean for other "
    "splits and seeds; of few it is rough."
)


def run_splits(
    config: Config, splits: int, workdir: Path, run_split: Callable[[Config, Path], Result]
) -> tuple[Document, GaveUp | None]:
    """Runs a comparison on each split in workdir/split_SEED.

    Args:
      config: the config of the comparison.
      splits: number of splits.
      workdir: the folder to write to.
      run_split: runs the comparison of a config in a folder.

    Returns:
      The table of their spread; and the first split's `GaveUp`, or None. Later splits run
      nevertheless.
    """
    first, scores, score, silence = config.partition.seed, [], ACCURACY, None
    for seed in range(first, first + splits):
        partition = dataclasses.replace(config.partition, seed=seed, per_trial=False)
        of_split = dataclasses.replace(config, partition=partition)
        try:
            histories = run_split(of_split, workdir / f"split_{seed}").histories
        except GaveUp as error:
            silence, histories = silence or error, error.result.histories
        scores.append(best_scores(histories))
        score = score_in(histories)
    cells = {label: np.array([each[label] for each in scores]) for label in scores[0]}
    return sensitivity(cells, score), silence


def sensitivity(scores: Mapping[str, np.ndarray], score: Score = ACCURACY) -> Document:
    """Makes a table of the spread of each entry, and of its difference to the baseline.

    Scores have shape [splits, models].
    """
    spreads, baseline = dict(scores), baseline_of(scores)
    for label in scores:
        if label != baseline:
            spreads[f"{label} minus {baseline}"] = scores[label] - scores[baseline]
    rows = [
        [label, *(f"{x:{score.form}}" for x in components(spreads[label]))] for label in spreads
    ]
    head = ["", "mean", "± split", "± model", "± rest", "standard error"]
    unit = f"Values are the {score.name}{score.unit} of the best round."
    if score == ACCURACY:
        unit = "Accuracies are percent of the best round, differences points."
    return Document([Table(head, rows), Paragraph(NOTE.format(unit))])


def components(cells: np.ndarray) -> tuple[float, ...]:
    """Returns the mean of accuracies [splits, models], and its variance components.

    These are the standard deviations between splits, between model seeds and of the rest, and the
    standard error of the mean.
    """
    splits, models = cells.shape
    mean, of_split, of_model = cells.mean(), cells.mean(1), cells.mean(0)
    squares = (cells - of_split[:, None] - of_model + mean) ** 2
    rest = squares.sum() / ((splits - 1) * (models - 1))
    split = max(0.0, of_split.var(ddof=1) - rest / models)
    model = max(0.0, of_model.var(ddof=1) - rest / splits)
    error = split / splits + model / models + rest / (splits * models)
    return float(mean), *np.sqrt([split, model, rest, error]).tolist()


def main(_) -> None:
    config, name = configured()
    for flag, value in (("methods", _METHODS.value), ("fair", _FAIR.value)):
        if value is not None:
            refuse_method_flags(flag, "methods")
    config = share_of(comparison(config, _METHODS.value, _TRIALS.value), _ENTRIES.value)
    aim = Aim(_OF.value, _TARGET.value, _SHARE.value)
    splits, recipe = _SPLITS.value, parse_space(_OVER.value)
    if splits is not None and config.trials < 2:
        raise ValueError(f"--trials is {config.trials}; with --split_seeds it must be at least 2")
    if recipe and _FAIR.value is None:
        raise ValueError("--over is given without --fair; a search needs --fair=9 or the like")
    kind = "compare" if _FAIR.value is None else f"fair{_FAIR.value}"
    kind += "" if _ENTRIES.value is None else f"-{_ENTRIES.value.replace('/', 'of')}"
    kind += "" if splits is None else f"-{splits}splits"
    workdir = chosen_workdir(f"{name}-{kind}", config)
    with orderly(workdir) as tasks:
        if _SKIP.value:
            config = fitting(config, tell)
        if _FAIR.value is not None:
            if aim != Aim():  # before the search
                dataset = make_dataset(config.dataset, config.partition, [config.training])
                check_aim(aim, score_of_task(dataset.task))
            labels = [entry.label for entry in entries_of(config)]
            config = fairly_tuned(
                config, labels, workdir, points=_FAIR.value, tell=tell, recipe=recipe, tasks=tasks
            )

        def run(config: Config, folder: Path) -> Result:
            silence = None
            try:
                result = execute(config, folder, aim, tasks=tasks)
            except GaveUp as error:
                silence, result = error, error.result
            if is_primary() and result.files:
                try:
                    print_files(write_comparison(config, result, aim, folder))
                except OSError as error:
                    fail(error, code=1)
            if silence is not None:
                raise silence
            return result

        if splits is None:
            run(config, workdir)
        else:
            text, silence = run_splits(config, splits, workdir, run)
            if is_primary():
                print_result(text)
            if silence is not None:
                raise silence
