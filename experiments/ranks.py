"""Ranks entries over settings: python -m experiments.ranks --of=a.csv,b.csv [--by=by_validation]
[--table=FILE.md].

The files are trials.csv of comparisons (`fedjax-ht compare`), one a setting, and name it. Ranks are
taken within a trial, where all entries have one seed and one split, and averaged: first over
trials, then over settings. 1 is the best, equal ones share the mean of their ranks. Entries are
ranked only where the folder of a comparison says that they were trained alike; of a file outside of
its folder nothing tells, which a line says.
"""

from collections.abc import Collection
from pathlib import Path

from absl import app, flags

from experiments.run_folders import unequal_rows
from fedjax_ht.core.files import atomic_open
from fedjax_ht.experiment.identity import some
from fedjax_ht.report.statistics import SCORES, ranked, read_trials
from fedjax_ht.runner.cli import fail, parse_flags

_OF = flags.DEFINE_list("of", None, "trials.csv of comparisons, one a setting.")
_BY = flags.DEFINE_enum(
    "by", "best", SCORES, "The round whose accuracy counts: best on test, on validation, or last."
)
_TABLE = flags.DEFINE_string("table", None, "Where to write the table; it is printed, too.")


def require_equal_rows(path: Path, labels: Collection[str]) -> str:
    """Refuses a comparison whose entries are no equal ones.

    Args:
      path: of its trials.csv.
      labels: of the entries in it.

    Returns:
      A line where nothing tells whether they are equal, since the file is outside of its folder;
      else "".

    Raises:
      ValueError: an entry is unfinished, or of another run. One line.
    """
    if not (path.parent / "config.json").exists():
        return f"{path} lies outside of its run's folder: nothing tells that its rows are equal"
    if reasons := unequal_rows(path.parent, labels):
        raise ValueError(
            f"{path} has unequal rows, which cannot be ranked: {some(reasons)}; run the comparison "
            "again"
        )
    return ""


def main(_) -> None:
    try:
        if not _OF.value:
            raise ValueError(
                "no --of; for example --of=few_samples/trials.csv,quickstart/trials.csv"
            )
        settings, lines = {}, []
        for path in map(Path, _OF.value):
            name = path.parent.name if path.stem == "trials" else path.stem
            settings[name] = read_trials(path, _BY.value)
            lines.append(require_equal_rows(path, settings[name]))
        text = ranked(settings).markdown()
    except (ValueError, OSError) as error:
        fail(error)
    for line in filter(None, lines):
        print(line)
    print(text)
    if _TABLE.value:
        with atomic_open(Path(_TABLE.value)) as file:
            file.write(text + "\n")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
