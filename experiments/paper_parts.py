"""Makes the table for a part of a paper's table: our runs and the published numbers."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.evaluations import (
    SHOWN,
    SHOWN_BESIDE_GLOBAL,
    Run,
    by_method,
    read_evaluations,
    read_published,
    tops,
)
from experiments.paper_manifest import Part, Selection
from fedjax_ht.lab.report.document import Table, table_of
from fedjax_ht.lab.report.rows import ACCURACY, PARTICIPANTS, values
from fedjax_ht.simulation.rows import evaluated

WIDTH = 128  # characters of a line of the page
SCORES = (
    SHOWN
    | SHOWN_BESIDE_GLOBAL
    | {"accuracy": "all clients", "accuracy_weighted": "clients by test samples"}
)


def selected(selection: Selection, results: Path) -> list[Run]:
    """Reads the runs of a selection.

    Args:
      selection: the runs' file, dataset, methods, seeds and rounds.
      results: folder of the file.

    Raises:
      ValueError: there are no runs, or none of a named method.
    """
    runs = []
    for run in read_evaluations(results / selection.csv):
        right_method = not selection.methods or run.method in selection.methods
        right_seed = not selection.seeds or run.seed in selection.seeds
        if run.dataset == selection.dataset and right_method and right_seed:
            runs.append(run)
    absent = sorted(set(selection.methods) - {run.method for run in runs})
    if absent or not runs:
        raise ValueError(
            f"{selection.csv} has no {', '.join(absent) or 'runs'} on {selection.dataset}"
        )
    if not selection.rounds:
        return runs
    return [up_to(run, selection.rounds) for run in runs]


def up_to(run: Run, last: int) -> Run:
    """Cuts off a run's history after a round."""
    return run._replace(history=[row for row in run.history if row["round"] <= last])


def part_markdown(part: Part, results: Path) -> str:
    """Makes a part's table, methods by falling score, and names the paper's rows that were not run.

    Differences are shown only if both sides have the same score and dataset.

    Raises:
      ValueError: there is no such score, or no published number.
    """
    check_scores(part)
    runs, dataset = selected(part.runs, results), part.published_dataset or part.runs.dataset
    published = published_rows(part, dataset, results)
    differing = differing_measures(part, dataset)
    groups = by_method(runs, part.score)
    text = [part_table(part, groups, published, dataset, not differing).markdown()]
    if published and differing:
        reasons = " and of ".join(differing)
        text.append(wrapped(f"No difference is given: the paper's numbers are of {reasons}."))
    run_as = {part.published_as.get(method, method) for method in groups}
    not_run = [
        f"{name} {paper_number(published[name])}" for name in published if name not in run_as
    ]
    if not_run:
        rows = ", ".join(not_run)
        text.append(wrapped(f"Rows of the paper that were not run in this form: {rows}."))
    return "\n\n".join(text)


def part_table(
    part: Part,
    groups: Mapping[str, Sequence[Run]],
    published: Mapping[str, Mapping[str, str]],
    dataset: str,
    comparable: bool,
) -> Table:
    """Makes the table of a part, methods by falling score.

    Args:
      part: the part.
      groups: method -> its runs.
      published: method -> its row in the paper; empty without published numbers.
      dataset: dataset of the published numbers.
      comparable: True if ours can be compared with them.
    """
    paper_title = "paper %" if dataset == part.runs.dataset else f"paper % ({dataset})"
    means = {method: mean_of(part, method, runs) for method, runs in groups.items()}
    rows = []
    for method in sorted(groups, key=means.__getitem__, reverse=True):
        row = our_cells(part, method, groups[method])
        paper = published.get(part.published_as.get(method, method))
        if published:
            row[paper_title] = paper_number(paper) if paper else "-"
        if published and comparable:
            row["ours - paper"] = ""
            if paper and paper["accuracy"]:
                row["ours - paper"] = f"{means[method] - float(paper['accuracy']):+.2f}"
        rows.append(row)
    return table_of(rows, [*our_titles(part), paper_title, "ours - paper"])


def check_scores(part: Part) -> None:
    """Raises ValueError if a part names an unknown score."""
    for key in (part.score, *part.also, part.published_score):
        if key and key not in SCORES:
            raise ValueError(f"{part.title}: {key} is no score; there are {', '.join(SCORES)}")


def differing_measures(part: Part, dataset: str) -> list[str]:
    """Returns how the published numbers differ, so that ours cannot be compared with them."""
    reasons = []
    if dataset != part.runs.dataset:
        reasons.append(f"another dataset ({dataset})")
    if part.published_score and part.published_score != part.score:
        reasons.append(f"another score ({SCORES[part.published_score]})")
    return reasons


def published_rows(part: Part, dataset: str, results: Path) -> dict[str, dict[str, str]]:
    """Reads the paper's rows for a dataset by method; {} for a part without published numbers."""
    if not part.published:
        return {}
    rows = {}
    for (row_dataset, method), sources in read_published(str(results / part.published)).items():
        if row_dataset == dataset:
            rows[method] = sources[0]
    if not rows:
        raise ValueError(f"{part.title}: {part.published} has no rows of {dataset}")
    return rows


def our_titles(part: Part) -> list[str]:
    """Returns the titles of the columns before the paper's."""
    titles = ["method", f"{SCORES[part.score]}, best %"]
    if evaluated_last(part):
        titles.append("last round %")
    titles += [f"{SCORES[key]}, best %" for key in part.also]
    return [*titles, "rounds", "seeds"]


def our_cells(part: Part, method: str, runs: Sequence[Run]) -> dict[str, str]:
    """Returns the cells of a method's row before the paper's, by the titles of `our_titles`."""
    name = method
    if method in part.rules:
        name += f", by {SHOWN[f'accuracy_{part.rules[method]}']}"
    score = by_rule(part, method, part.score)
    cells = [name, ACCURACY.of_trials(tops(runs, score), score)]
    if evaluated_last(part):
        cells.append(ACCURACY.of_trials([evaluated(run.history)[-1] for run in runs], score))
    for key in part.also:
        beside = by_rule(part, method, key)
        cells.append(ACCURACY.of_trials(tops(runs, beside), beside))
    ends = sorted({run.history[-1]["round"] for run in runs})
    rounds = str(ends[0])
    if len(ends) > 1:
        rounds += f" to {ends[-1]}"
    return dict(zip(our_titles(part), [*cells, rounds, str(len(runs))]))


def mean_of(part: Part, method: str, runs: Sequence[Run]) -> float:
    """Returns the part's score in %, the mean over runs at their best."""
    score = by_rule(part, method, part.score)
    best = tops(runs, score)
    if not best:
        raise ValueError(f"{part.title}: {part.runs.csv} has no {score} of {method}")
    return 100 * float(np.mean(values(best, score)))


def by_rule(part: Part, method: str, score: str) -> str:
    """Returns the key of a score under the part's inference rule for a method."""
    return f"{score}_{part.rules[method]}" if method in part.rules else score


def evaluated_last(part: Part) -> bool:
    """Returns whether the last round's score is shown; that of participants depends on the draw."""
    return not part.score.startswith(PARTICIPANTS)


def paper_number(row: Mapping[str, str]) -> str:
    """Formats a published number, such as "91.97 ± 0.37"; "no convergence" if there is none."""
    if not row["accuracy"]:
        return "no convergence"
    mean = f"{float(row['accuracy']):.2f}"
    if row.get("std"):
        return f"{mean} ± {float(row['std']):.2f}"
    return mean


def wrapped(text: str, indent: str = "") -> str:
    """Wraps a text at `WIDTH` characters, and indents lines after the first."""
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
