"""Links between pages of the repository lead to files and headings that are there."""

import re
from pathlib import Path

import pytest

from tests.docs.links import assert_links_lead_to_headings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("experiments/results/*.md"),
        *ROOT.glob("benchmarks/results/*.md"),
        ROOT / "checkpoints" / "README.md",
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert_links_lead_to_headings(page)


def test_commands_are_those_of_the_program_and_configs_go_by_name():
    """`python -m experiments.main` is named where docs/releasing.md says that it works, too."""
    commands = r"python -m experiments\.(main|compare|sweep|evaluate|data)\b|--config=experiments/"
    pages = [*PAGES, *(ROOT / "notebooks").glob("*.ipynb"), *ROOT.glob("experiments/**/*.toml")]
    naming = [page for page in pages if re.search(commands, page.read_text(encoding="utf-8"))]
    assert {page.name for page in naming} <= {"releasing.md", "CHANGELOG.md"}


def test_every_decision_is_in_the_index():
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text()
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name for name in records if f"({name})" not in index] == []
    assert [name[:4] for name in records] == [f"{n:04d}" for n in range(1, len(records) + 1)]
