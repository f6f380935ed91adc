"""Checks links of a page of the documentation."""

import re
from pathlib import Path


def assert_links_lead_to_headings(page: Path) -> None:
    """Checks that every relative link of a page has its file and, where it names one, its
    heading."""
    for path, anchor in re.findall(r"\]\(([^)#]+)#?([\w-]*)\)", page.read_text(encoding="utf-8")):
        target = page.parent / path
        assert target.exists(), path
        headings = (
            re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M) if anchor else []
        )
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, f"{path}#{anchor}"
