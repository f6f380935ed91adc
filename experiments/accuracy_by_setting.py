r"""Plots accuracy against one setting, one line per entry, with the spread over seeds.

Figures 6 and 7 of FedSSA and of FedRAL.

    python -m experiments.accuracy_by_setting --setting=partition.options.classes_per_client \
        --of=RUNS/two,RUNS/four,RUNS/six --csv=classes.csv --picture=classes.png \
        [--score=accuracy_participants] [--by=late]
    python -m experiments.accuracy_by_setting --setting=shots --of=2=two.csv,9=nine.csv \
        --csv=shots.csv --picture=shots.png
    python -m experiments.accuracy_by_setting --csv=shots.csv --picture=shots.png

Takes folders of `fedjax-ht compare` (or run) whose configs differ in one field, or VALUE=FILE.csv:
a comparison's trials.csv, or the evaluations that `experiments.paper_table` writes. Folders that
differ in another field are rejected. Fields that belong together, such as
partition.num_clients,participation, are named together; the first of them is the axis. Seeds may
differ: those of one value are pooled. Writes a row for each value, entry and trial to --csv, and
prints means and deviations. Without --of, the file is read and plotted again.
"""

import operator
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments.rows import column, grouped, read_rows, write_rows
from experiments.run_folders import BY, unfinished
from experiments.setting_points import (
    ROUNDS,
    Point,
    ordered,
    points_of_file,
    points_of_folders,
    refuse_repeated,
)
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.report.document import Table
from fedjax_ht.lab.report.plots import FEW, legend, save, styles, subplots
from fedjax_ht.lab.runs.folder import read_folder

# allow_override: other programs have flags of these names, and one process may import several
_SETTING = flags.DEFINE_list(
    "setting", [], "The field of the config on the axis, and fields that change with it."
)
_OF = flags.DEFINE_list(
    "of", None, "Folders of comparisons, or VALUE=FILE.csv.", allow_override=True
)
_SCORE = flags.DEFINE_string(
    "score", "accuracy", "The accuracy, a key of metrics.jsonl.", allow_override=True
)
_BY = flags.DEFINE_enum("by", "best", BY, "The round whose accuracy counts.", allow_override=True)
_CSV = flags.DEFINE_string(
    "csv", None, "File to write, or without --of to read.", allow_override=True
)
_PICTURE = flags.DEFINE_string("picture", None, "PNG to write.", allow_override=True)

NO_TRIALS = np.zeros(0)
APART = 0.02  # between entries at one value; neighbouring values are 1 apart


def by_entry(points: Sequence[Point]) -> dict[str, dict[str, np.ndarray]]:
    """Returns entry -> value -> the trials' accuracies in percent, values in order."""
    values, entries = ordered(column(points, "value")), {}
    for entry, of_entry in grouped(points, operator.attrgetter("entry")).items():
        trials, entries[entry] = grouped(of_entry, operator.attrgetter("value")), {}
        for value in filter(trials.__contains__, values):
            entries[entry][value] = 100 * np.array(column(trials[value], "accuracy"))
    return entries


def table_of(points: Sequence[Point]) -> Table:
    """Makes a table of entries by values: means and deviations over trials in percent.

    The number of trials is shown if it is not the same everywhere.
    """
    values, entries = ordered(column(points, "value")), by_entry(points)
    counts: set[int] = set()
    for by_value in entries.values():
        counts |= set(map(len, by_value.values()))
    rows = []
    for entry, by_value in entries.items():
        cells = [cell(by_value.get(value, NO_TRIALS), counted=len(counts) > 1) for value in values]
        rows.append([entry, *cells])
    return Table([points[0].setting, *values], rows)


def cell(accuracies: np.ndarray, counted: bool) -> str:
    """Formats trials as "80.44 ± 0.60", one as "80.44", none as "-"; `counted` adds how many."""
    if not len(accuracies):
        return "-"
    text = f"{accuracies.mean():.2f}"
    if len(accuracies) > 1:
        text += f" ± {accuracies.std():.2f}"
    return f"{text} ({len(accuracies)})" if counted else text


def picture(points: Sequence[Point]) -> Figure:
    """Plots a line per entry: means over trials, with bars from the lowest to the highest trial.

    Values are equally far apart.
    """
    values, entries = ordered(column(points, "value")), by_entry(points)
    figure, axes = subplots(figsize=(6.4 if len(entries) <= FEW else 8.4, 4))
    looks = styles(entries)
    for number, (entry, by_value) in enumerate(entries.items()):
        trials = list(by_value.values())
        means = np.array([accuracies.mean() for accuracies in trials])
        ends = [means - [min(x) for x in trials], [max(x) for x in trials] - means]
        # Entries are slightly apart, so that bars of neighbours can be distinguished.
        apart = APART * (number - (len(entries) - 1) / 2)
        places = [values.index(value) + apart for value in by_value]
        look = {"ms": 4, "lw": 1.5, "elinewidth": 1, "capsize": 2} | looks[entry]
        axes.errorbar(places, means, ends, label=entry, **look)
    axes.set_xticks(range(len(values)), values)
    first = points[0]
    axes.set(xlabel=first.setting, ylabel=f"{first.score}, {ROUNDS[first.by]} (%)")
    axes.grid(alpha=0.3)
    legend(axes, len(entries))
    return figure


def points_of(of: Sequence[str], settings: Sequence[str], score: str, by: str) -> list[Point]:
    """Reads folders of comparisons or files, as --of names them; reports unfinished runs.

    Raises:
      ValueError, OSError: a folder or file is wrong. One line.
    """
    if not settings:
        raise ValueError("give --setting, such as partition.options.alpha; see --help")
    files = [text.partition("=") for text in of if text.endswith(".csv")]
    points = []
    if not files:
        folders = [read_folder(Path(text)) for text in of]
        points = points_of_folders(folders, settings, score, by)
        for folder in folders:
            for line in unfinished(folder):
                print(line, file=sys.stderr)
    elif len(files) < len(of) or not all(equals for _, equals, _ in files):
        raise ValueError(
            f"--of is {','.join(of)!r}; it must be folders alone, or files alone as VALUE=FILE.csv"
        )
    for value, _, path in files:
        points += points_of_file(Path(path), settings[0], value, score=score, by=by)
    if not points:
        raise ValueError(f"no run of --of has {score} {ROUNDS[by]}; choose another --by")
    return points


@orderly_main
def main(_) -> None:
    if not _CSV.value:
        raise ValueError("give --csv; see --help")
    if _OF.value:
        points = points_of(_OF.value, _SETTING.value, _SCORE.value, _BY.value)
    else:
        points = read_rows(Path(_CSV.value), Point)
    refuse_repeated(points)
    if _OF.value:
        write_rows(Path(_CSV.value), Point._fields, points)
    if _PICTURE.value:
        save(picture(points), Path(_PICTURE.value))
    print(table_of(points).markdown())


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
