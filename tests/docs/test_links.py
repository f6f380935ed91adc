"""Links between pages of the repository lead to files and headings that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#\s]*)#?([\w-]*)\)")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("experiments/*/*.md"),
        *ROOT.glob("benchmarks/results/*.md"),
        ROOT / "checkpoints" / "README.md",
    ]
)


def headings_of(page: Path) -> set[str]:
    """Returns the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(page):
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in headings_of(target), f"{path}#{anchor}"


def test_commands_are_those_of_the_program_and_configs_go_by_name():
    """`python -m experiments.main` works in a clone alone."""
    commands = r"python -m experiments\.(main|compare|sweep|evaluate|data)\b|--config=experiments/"
    pages = [*PAGES, *(ROOT / "notebooks").glob("*.ipynb"), *ROOT.glob("experiments/**/*.toml")]
    naming = [page for page in pages if re.search(commands, page.read_text(encoding="utf-8"))]
    assert {page.name for page in naming} <= {"0028-runner-in-package.md"}


def test_every_decision_is_in_the_index():
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text()
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name for name in records if f"({name})" not in index] == []
    assert [name[:4] for name in records] == [f"{n:04d}" for n in range(1, len(records) + 1)]
