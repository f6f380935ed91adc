"""Checks links of a page of the documentation."""

import re
from pathlib import Path

LINK = re.compile(r"\]\(([^)#\s]*)#?([\w-]*)\)")


def assert_links_lead_to_headings(page: Path) -> None:
    """Checks that every relative link of a page has its file and its heading."""
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in headings_of(target), f"{path}#{anchor}"


def headings_of(page: Path) -> set[str]:
    """Returns the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
