"""Makes the tables of papers.md and coverage.md in experiments/results, and pictures.

    python -m experiments.paper_tables

Run it in the repository's root. experiments/results/tables.toml lists which runs belong to which
published numbers, by which score, and how each was made; its head explains the fields.
`experiments.paper_table` makes the CSVs from runs. experiments/results/coverage.toml lists how to
run every table of the papers, and claims.toml which of their claims hold. Only the parts of a page
between two marks change; the rest is written by hand.
"""

import textwrap
from pathlib import Path

from absl import app

from experiments.evaluations import curves
from experiments.paper_claims import claims_markdown, read_claims
from experiments.paper_coverage import counts_markdown, coverage_markdown, read_coverage
from experiments.paper_manifest import UNKNOWN, Manifest, Table, read_manifest
from experiments.paper_parts import part_markdown, selected, wrapped
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.report.plots import save

RESULTS, PAGE = Path("experiments/results"), Path("experiments/results/papers.md")
COVERAGE = Path("experiments/results/coverage.md")
BEGIN, END = "<!-- made by python -m experiments.paper_tables -->", "<!-- until here -->"
COUNTS = "<!-- counts, made by python -m experiments.paper_tables -->", "<!-- end of counts -->"
CLAIMS = "<!-- claims, made by python -m experiments.paper_tables -->", "<!-- end of claims -->"


def table_markdown(table: Table, results: Path) -> str:
    """Makes a section of the page."""
    configs = ", ".join(f"[{name}](../configs/{name})" for name in table.configs)
    discussed = f"[{table.page.partition('#')[0]}]({table.page})"
    made = f"Configs: {configs}. Machine: {table.machine}. Seconds: {table.seconds}. "
    made += f"Discussed in {discussed}."
    text, before = [f"## {table.title}", wrapped(made)], ""
    for part in table.parts:
        command = f"Command: {UNKNOWN}."
        if part.command:
            command = textwrap.indent(part.command.strip(), "    ")
        text += [f"**{part.title}**", "Command: as above." if command == before else command]
        text.append(part_markdown(part, results))
        before = command
    notes = {
        "How it differs from the paper": table.differs,
        "Unstated in the paper": table.unstated,
        "What was tried": table.tried,
    }
    text.append("\n".join(wrapped(f"* **{name}**: {note}", "  ") for name, note in notes.items()))
    return "\n\n".join(text)


def page(text: str, manifest: Manifest, results: Path) -> str:
    """Updates the page of tables between its marks.

    Raises:
      ValueError: a mark is missing, or a table's runs are.
    """
    before, after = around_marks(text)
    made = [table_markdown(table, results) for table in manifest.tables]
    return before + "\n\n".join(made) + after


def coverage_page(text: str, results: Path) -> str:
    """Updates the page of coverage between its marks.

    Raises:
      ValueError: a mark is missing, or coverage.toml has a mistake.
    """
    papers = read_coverage(results / "coverage.toml")
    before, after = around_marks(text, COUNTS)
    text = before + counts_markdown(papers) + after
    before, after = around_marks(text)
    return before + coverage_markdown(papers) + after


def with_claims(text: str, results: Path) -> str:
    """Updates the page's table of claims between its marks.

    Raises:
      ValueError: a mark is missing, claims.toml has a mistake, or a verdict contradicts the runs.
    """
    before, after = around_marks(text, CLAIMS)
    claims = read_claims(results / "claims.toml", results)
    return before + claims_markdown(claims, results) + after


def around_marks(text: str, marks: tuple[str, str] = (BEGIN, END)) -> tuple[str, str]:
    """Returns a page before and after its generated part, marks included.

    Args:
      text: text of the page.
      marks: lines before and after the generated part.

    Raises:
      ValueError: a mark is missing.
    """
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        raise ValueError(f"the page needs the lines {marks[0]} and {marks[1]}, in this order")
    return f"{before}{begin}\n\n", f"\n\n{end}{after}"


@orderly_main
def main(_) -> None:
    manifest = read_manifest(RESULTS / "tables.toml")
    tables = page(PAGE.read_text(encoding="utf-8"), manifest, RESULTS)
    pages = {
        PAGE: with_claims(tables, RESULTS),
        COVERAGE: coverage_page(COVERAGE.read_text(encoding="utf-8"), RESULTS),
    }
    drawn = {}
    for picture in manifest.pictures:
        runs = []
        for selection in picture.runs:
            runs += selected(selection, RESULTS)
        drawn[picture.file] = curves(runs, picture.score)
    for path, text in pages.items():
        write_whole(path, text)
        print(path)
    for name, figure in drawn.items():
        print(save(figure, Path(name)))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
