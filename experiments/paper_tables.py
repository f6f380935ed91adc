"""Makes the tables of papers.md and coverage.md in experiments/results, and pictures.

    python -m experiments.paper_tables

Run it in the repository's root. experiments/results/tables.toml says which runs stand beside which
published numbers, by which score, and how each was made; its head explains the fields.
`experiments.paper_table` makes the CSVs from runs. experiments/results/coverage.toml says of every
table of the papers what runs it. Of a page only what is between the two marks changes, the rest is
written by hand.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import app

from experiments.evaluations import (
    SHOWN,
    SHOWN_BESIDE_GLOBAL,
    Run,
    by_method,
    curves,
    read_evaluations,
    read_published,
    tops,
)
from experiments.markdown import markdown_table
from experiments.paper_coverage import coverage_markdown, read_coverage
from experiments.paper_manifest import UNKNOWN, Manifest, Part, Selection, Table, read_manifest
from fedjax_ht.core.files import atomic_open
from fedjax_ht.report import plots
from fedjax_ht.report.table import PARTICIPANTS, percent
from fedjax_ht.runner.cli import fail, parse_flags
from fedjax_ht.simulation.history import evaluated

RESULTS, PAGE = Path("experiments/results"), Path("experiments/results/papers.md")
COVERAGE = Path("experiments/results/coverage.md")
BEGIN, END = "<!-- made by python -m experiments.paper_tables -->", "<!-- until here -->"
WIDTH = 128  # of a line of the page
SCORES = (
    SHOWN
    | SHOWN_BESIDE_GLOBAL
    | {"accuracy": "all clients", "accuracy_weighted": "clients by test samples"}
)


def selected(selection: Selection, results: Path) -> list[Run]:
    """Raises:
    ValueError: there are none, or none of a method that is named.
    """
    runs = [
        run for run in read_evaluations(results / selection.csv) if run.dataset == selection.dataset
    ]
    runs = [run for run in runs if not selection.methods or run.method in selection.methods]
    runs = [run for run in runs if not selection.seeds or run.seed in selection.seeds]
    absent = [method for method in selection.methods if method not in {run.method for run in runs}]
    if absent or not runs:
        raise ValueError(
            f"{selection.csv} has no {', '.join(absent) or 'runs'} on {selection.dataset}"
        )
    last = selection.rounds or max(row["round"] for run in runs for row in run.history)
    return [
        run._replace(history=[row for row in run.history if row["round"] <= last]) for run in runs
    ]


def part_markdown(part: Part, results: Path) -> str:
    """A part's numbers, methods by falling score, and the paper's rows that were not run.

    A difference stands only where both sides are of one score and one dataset.

    Raises:
      ValueError: there is no such score, or no published number.
    """
    for key in filter(None, (part.score, *part.also, part.published_score)):
        if key not in SCORES:
            raise ValueError(f"{part.title}: {key} is no score; there are {', '.join(SCORES)}")
    runs, dataset = selected(part.runs, results), part.published_dataset or part.runs.dataset
    theirs = published_rows(part, dataset, results)
    apart = [f"another dataset ({dataset})"] if dataset != part.runs.dataset else []
    if part.published_score and part.published_score != part.score:
        apart.append(f"another score ({SCORES[part.published_score]})")
    groups = by_method(runs, part.score)
    means = {method: mean_of(part, method, group) for method, group in groups.items()}
    names = {method: part.published_as.get(method, method) for method in groups}
    rows = []
    for method in sorted(groups, key=means.__getitem__, reverse=True):
        row = theirs.get(names[method])
        cells = our_cells(part, method, groups[method]) + (
            [paper_number(row) if row else "-"] if theirs else []
        )
        if theirs and not apart:
            cells.append(
                f"{means[method] - float(row['accuracy']):+.2f}" if row and row["accuracy"] else ""
            )
        rows.append(cells)
    text = [markdown_table(part_head(part, dataset, bool(theirs), not apart), rows)]
    if theirs and apart:
        text.append(
            wrapped(f"No difference is given: the paper's numbers are of {' and of '.join(apart)}.")
        )
    left = [
        f"{method} {paper_number(row)}"
        for method, row in theirs.items()
        if method not in names.values()
    ]
    if left:
        text.append(
            wrapped(f"Rows of the paper that were not run in this form: {', '.join(left)}.")
        )
    return "\n\n".join(text)


def published_rows(part: Part, dataset: str, results: Path) -> dict[str, dict[str, str]]:
    """Method -> what its paper has; nothing for a part without published numbers."""
    if not part.published:
        return {}
    rows = {
        method: row
        for (of, method), (row, *_) in read_published(str(results / part.published)).items()
        if of == dataset
    }
    if not rows:
        raise ValueError(f"{part.title}: {part.published} has no rows of {dataset}")
    return rows


def part_head(part: Part, dataset: str, published: bool, comparable: bool) -> list[str]:
    """The titles of a part's columns; `dataset` is the published numbers'."""
    head = [
        "method",
        f"{SCORES[part.score]}, best %",
        *(["last round %"] if evaluated_last(part) else []),
    ]
    head += [*(f"{SCORES[key]}, best %" for key in part.also), "rounds", "seeds"]
    paper = "paper %" if dataset == part.runs.dataset else f"paper % ({dataset})"
    return head + [paper] * published + ["ours - paper"] * (published and comparable)


def our_cells(part: Part, method: str, runs: Sequence[Run]) -> list[str]:
    """What `part_head` has up to the paper's."""
    rule, (score, *others) = (
        part.rules.get(method),
        (by_rule(part, method, key) for key in (part.score, *part.also)),
    )
    ends = sorted({run.history[-1]["round"] for run in runs})
    return [
        f"{method}, by {SHOWN[f'accuracy_{rule}']}" if rule else method,
        percent(tops(runs, score), score),
        *(
            [percent([evaluated(run.history)[-1] for run in runs], score)]
            if evaluated_last(part)
            else []
        ),
        *(percent(tops(runs, key), key) for key in others),
        f"{ends[0]} to {ends[-1]}" if len(ends) > 1 else str(ends[0]),
        str(len(runs)),
    ]


def mean_of(part: Part, method: str, runs: Sequence[Run]) -> float:
    """The part's score in %, mean over runs, each at its best."""
    score = by_rule(part, method, part.score)
    best = tops(runs, score)
    if not best:
        raise ValueError(f"{part.title}: {part.runs.csv} has no {score} of {method}")
    return 100 * float(np.mean([row[score] for row in best]))


def by_rule(part: Part, method: str, score: str) -> str:
    """The score by the inference rule that the part has for a method."""
    return f"{score}_{part.rules[method]}" if method in part.rules else score


def evaluated_last(part: Part) -> bool:
    """Whether the last round's score says something: not where it is of whom that round drew."""
    return not part.score.startswith(PARTICIPANTS)


def paper_number(row: Mapping[str, str]) -> str:
    """As "91.97 ± 0.37", or "no convergence" where it has none."""
    if not row["accuracy"]:
        return "no convergence"
    return f"{float(row['accuracy']):.2f}" + (
        f" ± {float(row['std']):.2f}" if row.get("std") else ""
    )


def wrapped(text: str, indent: str = "") -> str:
    """Words at most WIDTH columns wide; lines after the first are indented."""
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table_markdown(table: Table, results: Path) -> str:
    """A section of the page."""
    configs = ", ".join(f"[{name}](../configs/{name})" for name in table.configs)
    discussed = f"[{table.page.partition('#')[0]}]({table.page})"
    made = f"Configs: {configs}. Machine: {table.machine}. Seconds: {table.seconds}. "
    made += f"Discussed in {discussed}."
    text, before = [f"## {table.title}", wrapped(made)], ""
    for part in table.parts:
        command = (
            textwrap.indent(part.command.strip(), "    ")
            if part.command
            else f"Command: {UNKNOWN}."
        )
        text += [f"**{part.title}**", "Command: as above." if command == before else command]
        text.append(part_markdown(part, results))
        before = command
    notes = {
        "How it differs from the paper": table.differs,
        "Unstated in the paper": table.unstated,
    }
    notes |= {"What was tried": table.tried}
    text.append("\n".join(wrapped(f"* **{name}**: {note}", "  ") for name, note in notes.items()))
    return "\n\n".join(text)


def page(text: str, manifest: Manifest, results: Path) -> str:
    """The page of tables with what is between its marks made anew.

    Raises:
      ValueError: a mark is missing, or a table's runs are.
    """
    before, after = around_marks(text)
    made = [table_markdown(table, results) for table in manifest.tables]
    return before + "\n\n".join(made) + after


def coverage_page(text: str, results: Path) -> str:
    """Makes the page of coverage anew between its marks.

    Raises:
      ValueError: a mark is missing, or coverage.toml has a mistake.
    """
    before, after = around_marks(text)
    return before + coverage_markdown(read_coverage(results / "coverage.toml"), WIDTH) + after


def around_marks(text: str) -> tuple[str, str]:
    """Returns a page up to what is made and from there on, the marks included.

    Raises:
      ValueError: a mark is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}, in this order")
    return f"{before}{begin}\n\n", f"\n\n{end}{after}"


def main(_) -> None:
    try:
        manifest = read_manifest(RESULTS / "tables.toml")
        pages = {
            PAGE: page(PAGE.read_text(encoding="utf-8"), manifest, RESULTS),
            COVERAGE: coverage_page(COVERAGE.read_text(encoding="utf-8"), RESULTS),
        }
        drawn = {
            picture.file: curves(
                [run for part in picture.runs for run in selected(part, RESULTS)], picture.score
            )
            for picture in manifest.pictures
        }
    except (ValueError, OSError) as error:
        fail(error)
    for path, text in pages.items():
        with atomic_open(path) as file:
            file.write(text)
    for path in [*pages, *(plots.save(figure, Path(name)) for name, figure in drawn.items())]:
        print(path)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
