"""docs/deploy.md: what each side may take of each resource has a test."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[1] / "docs/deploy.md").read_text()


def test_each_limit_has_a_test():
    table = PAGE.partition("| resource | whose | at most | test |\n|---|---|---|---|\n")[2]
    rows = table.partition("\n\n")[0].splitlines()
    assert len(rows) > 20
    for row in rows:
        test = row.strip("|").split("|")[3].strip()
        file, name = re.fullmatch(r"`(test_\w+\.py): (test_\w+)`", test).groups()
        assert f"def {name}(" in (FOLDER / file).read_text(), row
