r"""Prints the choices of searches, or the best form in a comparison, as entries to compare next.

    fedjax-ht compare ... --methods="$(python -m experiments.chosen --runs=RUNS local fedssa)"
    fedjax-ht compare ... --methods="$(python -m experiments.chosen --runs=RUNS \
        --method=fedavg+dfrd --score=global_accuracy_head --with=alpha=0.0,b_div=0.0 forms)"

The words are folders below --runs. For a search (`fedjax-ht sweep`), the entry is the point that
validation chose. For a comparison, it is the entry of --method with the highest --score in the
round that --by selects, mean over trials. That is by test accuracy: it may choose what to ablate,
and is not a result. --with prints the entry with each of these settings instead. Unfinished folders
are rejected.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import app, flags

from experiments.rows import column
from experiments.run_folders import require_score, trial_scores, unfinished
from experiments.searches import RECORD, choice, read_search
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.report.statistics import SCORES
from fedjax_ht.lab.runs.folder import Folder, read_folder

# allow_override: other programs have flags of these names, and one process may import several
_RUNS = flags.DEFINE_string("runs", ".", "The folder of the words.", allow_override=True)
_METHOD = flags.DEFINE_string(
    "method", None, "Of a comparison, the method whose entries count.", allow_override=True
)
_SCORE = flags.DEFINE_string(
    "score", "accuracy", "Of a comparison, a key of metrics.jsonl.", allow_override=True
)
_BY = flags.DEFINE_enum(
    "by", "best", SCORES, "Of a comparison, the round whose accuracy counts.", allow_override=True
)
_WITH = flags.DEFINE_list("with", [], "Settings, each of which makes an entry of the chosen one.")


def winner(folder: Folder, method: str | None, *, score: str, by: str) -> str:
    """Returns the entry of a comparison whose score is highest.

    Args:
      folder: folder of the comparison.
      method: method whose entries count; None for all.
      score, by: as for `run_folders.trial_scores`.

    Raises:
      ValueError: it is unfinished, or has no such score or no entry of the method. One line.
    """
    if lines := unfinished(folder):
        raise ValueError(f"{lines[0]}; give the same comparison again, which goes on")
    require_score(folder, score)
    means = {}
    for label, entry in folder.entries.items():
        trials = trial_scores(folder, label, score, by)
        if trials and method in (None, entry["method"]):
            means[label] = np.mean(column(trials, "score"))
    if not means:
        raise ValueError(f"{folder.path} has no entry of {method} with {score} {by}")
    return max(means, key=means.__getitem__)


def chosen(path: Path, method: str | None, *, score: str, by: str) -> str:
    """Returns the choice of the search or comparison in a folder; arguments as for `winner`.

    Raises:
      ValueError, OSError: there is none, or it is unfinished. One line.
    """
    if (path / RECORD).exists():
        return choice(read_search(path))
    return winner(read_folder(path), method, score=score, by=by)


def entries_with(entry: str, settings: Sequence[str]) -> list[str]:
    """Returns the entry with each of the settings, or by itself if there are none."""
    return [f"{entry}:{setting}" for setting in settings] or [entry]


@orderly_main
def main(arguments: Sequence[str]) -> None:
    entries: list[str] = []
    if len(arguments) < 2:
        raise ValueError("name folders of searches or of a comparison below --runs; see --help")
    for name in arguments[1:]:
        path = Path(_RUNS.value) / name
        entry = chosen(path, _METHOD.value, score=_SCORE.value, by=_BY.value)
        entries += entries_with(entry, _WITH.value)
    print(",".join(entries))


def parse_words(arguments: list[str]) -> list[str]:
    """Parses a command line with flags and words."""
    return parse_flags(arguments, takes_words=True)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_words)
