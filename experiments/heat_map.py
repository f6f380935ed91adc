r"""Plots a heat map over two options, for a search or a comparison (DFRD, Figures 4 and 5).

    fedjax-ht sweep --config=few_samples --entry=fedtgp --over=weight=0.1,1,10 \
        --over=training.learning_rate=0.01,0.03,0.1 --workdir=SEARCH
    python -m experiments.heat_map --of=SEARCH --x=training.learning_rate --y=weight \
        --csv=map.csv --picture=map.png
    python -m experiments.heat_map --of=COMPARISON --x=b_tran --y=b_div \
        --score=global_accuracy_head --csv=map.csv --picture=map.png
    python -m experiments.heat_map --csv=map.csv --picture=map.png

For a search, a cell is a point's validation accuracy after the most rounds for which all points
have trained. For a comparison, it is --score in the round that --by selects, mean over trials;
DFRD's figures show the server's model, which no search scores. Entries that differ in a third
setting are rejected, and those without the two options are skipped. Writes a row per cell to --csv,
and prints the map. Without --of, the file is read and plotted again.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments.rows import column, read_rows, write_rows
from experiments.run_folders import (
    BY,
    require_score,
    settings_of,
    trial_scores,
    unfinished,
)
from experiments.searches import GO_ON, RECORD, Search, read_search
from experiments.setting_points import ROUNDS, ordered, shown
from fedjax_ht.check.names import unknown
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.report.document import Table
from fedjax_ht.lab.report.plots import save, subplots
from fedjax_ht.lab.runs.folder import Folder, differing, read_folder

# allow_override: other programs have flags of these names, and one process may import several
_OF = flags.DEFINE_string(
    "of", None, "The folder of a sweep or of a comparison.", allow_override=True
)
_X = flags.DEFINE_string("x", None, "The option on the horizontal axis, as entries set it.")
_Y = flags.DEFINE_string("y", None, "The option on the vertical axis.")
_SCORE = flags.DEFINE_string(
    "score", "accuracy", "Of a comparison, a key of metrics.jsonl.", allow_override=True
)
_BY = flags.DEFINE_enum(
    "by", "best", BY, "Of a comparison, the round whose accuracy counts.", allow_override=True
)
_CSV = flags.DEFINE_string(
    "csv", None, "File to write, or without --of to read.", allow_override=True
)
_PICTURE = flags.DEFINE_string("picture", None, "PNG to write.", allow_override=True)


class Cell(NamedTuple):
    """The accuracy of an entry, by its values of two options.

    Attributes:
      x, x_value, y, y_value: the options, and their values as text.
      entry: label of the entry.
      score: name of the accuracy.
      trials: number of trials over which it is the mean.
      accuracy: in [0, 1]; NaN if a client or the server did not stay finite.
    """

    x: str
    x_value: str
    y: str
    y_value: str
    entry: str
    score: str
    trials: int
    accuracy: float


def cells_of_search(search: Search, x: str, y: str) -> list[Cell]:
    """Makes a cell for each point of a search, after the most rounds for which all have trained.

    Later, points that ended are missing, and the others have had more training.

    Raises:
      ValueError: the points differ in another setting, or not all are scored. One line.
    """
    labels = labels_of_map(search.folder, x, y)
    common = [rounds for rounds, scores in search.scores.items() if set(labels) <= scores.keys()]
    if not common:
        raise ValueError(
            f"the search in {search.folder.path} has not scored all of its {len(labels)} points; "
            f"{GO_ON}"
        )
    score = f"validation accuracy after {max(common)} rounds"
    accuracies = {label: search.scores[max(common)][label] for label in labels}
    return cells_of(search.folder, x, y, score=score, accuracies=accuracies)


def cells_of_comparison(folder: Folder, x: str, y: str, *, score: str, by: str) -> list[Cell]:
    """Makes a cell for each entry of a comparison that has both options.

    Args:
      folder: folder of the comparison.
      x, y: the options.
      score, by: as for `run_folders.trial_scores`.

    Raises:
      ValueError: the entries differ in another setting, or have no such score. One line.
    """
    require_score(folder, score)
    accuracies = {}
    for label in labels_of_map(folder, x, y):
        trials = trial_scores(folder, label, score, by)
        if trials:
            accuracies[label] = float(np.mean(column(trials, "score")))
    return cells_of(folder, x, y, score=f"{score}, {ROUNDS[by]}", accuracies=accuracies)


def labels_of_map(folder: Folder, x: str, y: str) -> list[str]:
    """Returns the entries that have both options.

    Raises:
      ValueError: none has both, or they differ in another setting, which the message names.
    """
    settings = {label: settings_of(folder, label) for label in folder.entries}
    for option in (x, y):
        known = {name for values in settings.values() for name in values}
        if option not in known:
            raise ValueError(f"{folder.path}: {unknown('option', option, sorted(known))}")
    labels = [label for label, values in settings.items() if x in values and y in values]
    if not labels:
        raise ValueError(f"{folder.path}: no entry has both {x} and {y}")
    first = labels[0]
    for label in labels[1:]:
        for option in differing(settings[first], settings[label]):
            before, now = settings[first].get(option), settings[label].get(option)
            if option not in (x, y):
                raise ValueError(
                    f"{folder.path}: {first} and {label} differ in {option}, {shown(before)} and "
                    f"{shown(now)}, and not in {x} and {y} alone"
                )
    return labels


def cells_of(
    folder: Folder, x: str, y: str, *, score: str, accuracies: Mapping[str, float]
) -> list[Cell]:
    """Makes a cell for each entry that has an accuracy.

    Args:
      folder: folder of the entries.
      x, y: the options.
      score: name of the accuracies.
      accuracies: label -> accuracy.

    Raises:
      ValueError: two entries have the same values, or none has an accuracy. One line.
    """
    cells: dict[tuple[str, str], Cell] = {}
    for label, accuracy in accuracies.items():
        settings = settings_of(folder, label)
        at = shown(settings[x]), shown(settings[y])
        if at in cells:
            raise ValueError(
                f"{folder.path}: {cells[at].entry} and {label} both have {x} {at[0]} and "
                f"{y} {at[1]}"
            )
        cells[at] = Cell(
            x=x,
            x_value=at[0],
            y=y,
            y_value=at[1],
            entry=label,
            score=score,
            trials=folder.fields["trials"],
            accuracy=accuracy,
        )
    if not cells:
        raise ValueError(f"{folder.path}: no entry has {score}; choose another --by")
    return list(cells.values())


def map_of(cells: Sequence[Cell]) -> tuple[list[str], list[str], np.ndarray]:
    """Returns the values of x and y in order, and percentages, float [len(y), len(x)].

    They are infinite without an entry, and NaN if one did not stay finite.
    """
    xs, ys = ordered(column(cells, "x_value")), ordered(column(cells, "y_value"))
    percents = np.full((len(ys), len(xs)), np.inf)
    for cell in cells:
        percents[ys.index(cell.y_value), xs.index(cell.x_value)] = 100 * cell.accuracy
    return xs, ys, percents


def text_of(percent: float) -> str:
    """Formats a cell."""
    if np.isinf(percent):
        return "-"
    return "not finite" if np.isnan(percent) else f"{percent:.2f}"


def table_of(cells: Sequence[Cell]) -> Table:
    """Makes a table of the map, one row per value of y."""
    xs, ys, percents = map_of(cells)
    rows = [[y, *map(text_of, row)] for y, row in zip(ys, percents)]
    return Table([f"{cells[0].y} \\ {cells[0].x}", *xs], rows)


def picture(cells: Sequence[Cell]) -> Figure:
    """Plots the map with the number in each cell, the best one bold."""
    xs, ys, percents = map_of(cells)
    figure, axes = subplots(figsize=(max(4.2, 1.0 * len(xs) + 2), max(2.6, 0.6 * len(ys) + 1.4)))
    known = np.ma.masked_invalid(percents)
    image = axes.imshow(known, cmap="Blues", aspect="auto", origin="lower")
    figure.colorbar(image, ax=axes, label="%")
    middle = (known.min() + known.max()) / 2  # darker cells have white numbers
    for (row, place), percent in np.ndenumerate(percents):
        look = {"ha": "center", "va": "center", "fontsize": 9}
        look["color"] = "white" if np.isfinite(percent) and percent > middle else "black"
        look["weight"] = "bold" if percent == known.max() else "normal"
        axes.text(place, row, text_of(percent), **look)
    axes.set_xticks(range(len(xs)), xs)
    axes.set_yticks(range(len(ys)), ys)
    axes.set(xlabel=cells[0].x, ylabel=cells[0].y)
    axes.set_title(cells[0].score, fontsize=10)
    return figure


def cells_in(path: Path, x: str | None, y: str | None, *, score: str, by: str) -> list[Cell]:
    """Reads a folder, as --of names it; reports skipped and unfinished entries.

    Raises:
      ValueError, OSError: the folder or an option is wrong. One line.
    """
    if not x or not y or x == y:
        raise ValueError("give --x and --y, two options of the entries, such as training.epochs")
    if (path / RECORD).exists():
        return cells_of_search(read_search(path), x, y)
    folder = read_folder(path)
    cells = cells_of_comparison(folder, x, y, score=score, by=by)
    for label in folder.entries.keys() - set(column(cells, "entry")):
        print(f"left out, without {x}, {y} or a score: {label}", file=sys.stderr)
    for line in unfinished(folder):
        print(line, file=sys.stderr)
    return cells


@orderly_main
def main(_) -> None:
    if not _CSV.value:
        raise ValueError("give --csv; see --help")
    if _OF.value:
        path = Path(_OF.value)
        cells = cells_in(path, _X.value, _Y.value, score=_SCORE.value, by=_BY.value)
    else:
        cells = read_rows(Path(_CSV.value), Cell)
    if _OF.value:
        write_rows(Path(_CSV.value), Cell._fields, cells)
    if _PICTURE.value:
        save(picture(cells), Path(_PICTURE.value))
    print(f"{cells[0].score}, %\n\n{table_of(cells).markdown()}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
