"""Compares methods: fedjax-ht compare --config=quickstart --methods=local,fedtgp.

One split (or one a trial, by the config's partition.per_trial), --trials seeds, the same for every
method. A name is the method as its paper has it; "fedproto:weight=3.0:training.learning_rate=0.05"
has settings of its own, and "fedtgp@tuned" those that somebody has chosen for the config
(entries.py). The report says which had what. --methods and --trials are the config's unless given.
--fair=9 first searches nine settings of each method, by validation (fair.py), and compares the
best. --target=0.8 asks what reaching that accuracy takes, --target_share=0.9 what nine tenths of
the best accuracy do; --target_score=accuracy_participants asks it of that score. The same command
again goes on where the run stopped.
"""

from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict

from fedjax_ht.core.files import atomic_open
from fedjax_ht.experiment.entries import entries_of
from fedjax_ht.report.costs import Aim, costs, write_csv
from fedjax_ht.report.curves import accuracy_and_bytes
from fedjax_ht.report.figures import VECTOR, save
from fedjax_ht.report.results import PARTICIPANTS
from fedjax_ht.report.statistics import write_trials
from fedjax_ht.runner.cli import fail
from fedjax_ht.runner.fair import fairly_tuned
from fedjax_ht.runner.main import chosen_workdir, configured, execute, orderly, print_files, tell
from fedjax_ht.runner.train import is_primary

_METHODS = flags.DEFINE_list(
    "methods",
    None,
    "What to compare, such as local,fedproto:weight=3.0,fedtgp@tuned; by default the config's.",
)
_TRIALS = flags.DEFINE_integer(
    "trials", None, "How many seeds each runs with; by default the config's."
)
_FAIR = flags.DEFINE_integer(
    "fair", None, "How many settings of each method to search first, by validation."
)
_TARGET = flags.DEFINE_float(
    "target", None, "An accuracy in (0, 1]; by default the lowest best accuracy."
)
_SHARE = flags.DEFINE_float(
    "target_share", None, "Instead: a share, in (0, 1], of the highest best accuracy."
)
_OF = flags.DEFINE_string(
    "target_score", "accuracy", "The score that the target is of, as in metrics.jsonl."
)


def comparison(config: ConfigDict, methods: Sequence[str] | None, trials: int | None) -> ConfigDict:
    """A config that runs these entries, or without any the config's.

    Raises:
      ValueError: no entry, one given twice, or one that is wrong.
    """
    config = config.copy_and_resolve_references()
    if trials is not None:
        config.trials = trials
    if methods is None:
        return config
    if not methods or len(set(methods)) < len(methods):
        raise ValueError(
            f"--methods is {','.join(methods)!r}; it must name at least one method, and each once"
        )
    config.entries = tuple(methods)
    entries_of(config)
    return config


def main(_) -> None:
    config, name = configured()
    try:
        config, score = comparison(config, _METHODS.value, _TRIALS.value), _OF.value
        for flag, value in (("target", _TARGET.value), ("target_share", _SHARE.value)):
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"--{flag} is {value}; it must be above 0 and at most 1")
        if _TARGET.value is not None and _SHARE.value is not None:
            raise ValueError(
                "--target and --target_share are both given; one of them sets the target"
            )
        if score not in ("accuracy", PARTICIPANTS):
            raise ValueError(f"--target_score is {score!r}; it must be accuracy or {PARTICIPANTS}")
    except ValueError as error:
        fail(error)
    workdir = chosen_workdir(
        f"{name}-compare" if _FAIR.value is None else f"{name}-fair{_FAIR.value}", config
    )
    aim = Aim(score, _TARGET.value, _SHARE.value)
    with orderly(workdir):
        if _FAIR.value is not None:
            config = fairly_tuned(
                config, [entry.label for entry in entries_of(config)], _FAIR.value, workdir, tell
            )
        result = execute(config, workdir, aim)
    if not is_primary() or not result.files:  # the folder is read-only
        return
    lines, target, _ = costs(result.histories, *aim)
    try:
        with atomic_open(workdir / "compare.md") as file:
            file.write(result.summary + "\n")
        sheet = write_csv(lines, target, workdir / "compare.csv")
        step = int(config.partition.per_trial)
        splits = [config.partition.seed + step * trial for trial in range(config.trials)]
        trials = write_trials(result.histories, config.seed, splits, workdir / "trials.csv")
        picture = workdir / "plots" / "compare.png"
        save(accuracy_and_bytes(result.histories, target), picture, VECTOR)
    except OSError as error:
        fail(error, code=1)
    print_files([workdir / "compare.md", sheet, trials, picture, workdir / "report.html"])
