"""docs/deploy.md: what each side may take of each resource is what the code has, and is tested."""

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from httpcore._sync.http11 import HTTP11Connection

from fedjax_ht.deploy import (
    answers,
    audit,
    contacts,
    flower,
    gate,
    headers,
    link,
    node,
)

FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[1] / "docs/deploy.md").read_text()
KILO, MEGA = 1 << 10, 1 << 20
BUDGETS = {
    ("connections", "all strangers"): f"{link.STRANGERS} at a time",
    ("connections", "a client"): f"{link.PER_NODE} at a time",
    ("descriptors of the server", "strangers and clients"): (
        f"all but {link.RESERVE}, which are for files, and {link.SPARE} for"
    ),
    ("bytes of a URL and headers", "a stranger, a client"): f"{link.HEAD_BYTES // KILO} kB",
    ("bytes of a URL and headers", "the server"): (
        f"{HTTP11Connection.MAX_INCOMPLETE_EVENT_SIZE // KILO} kB"
    ),
    ("bytes of a request", "a client"): f"{gate.REQUEST_BYTES // KILO} kB without a reply",
    ("bytes of a request", "a client", 2): (
        f"with a reply its arrays, {headers.HEADER_BYTES // KILO} kB for their header, "
        f"{link.FRAMING_BYTES // KILO} kB for Flower"
    ),
    ("bytes of a response", "the server"): (
        f"its arrays, {headers.HEADER_BYTES // KILO} kB for their header, "
        f"{node.RESPONSE_BYTES // KILO} kB for Flower; "
        f"{node.RESPONSE_BYTES // KILO} kB without a message"
    ),
    ("seconds of silence", "a stranger"): f"{link.SILENT_SECONDS:g}, from",
    ("seconds of silence", "a client"): f"{gate.SILENT_SECONDS:g} within a request",
    ("seconds of silence", "a client", 2): f"{flower.HELLO_SECONDS:g} without a word of who",
    ("seconds of silence", "the server"): f"{node.RESPONSE_SECONDS:g} within a response",
    ("bytes of logs", "strangers and clients"): f"2 files of {flower.LOG_BYTES // MEGA} MB",
    ("bytes of logs", "all"): f"{audit.FILES} audit logs of {audit.FILE_BYTES // MEGA} MB",
    ("lines of logs", "all strangers"): f"one in {link.FLUSH_SECONDS:g} s",
    ("characters in a line", "a client, the server"): f"{headers.LINE_LENGTH}, on one line",
    ("samples that it says it has", "a client"): f"{contacts.MOST_SAMPLES // 10**6} million",
    ("states on a client's disk", "the server"): f"{answers.MAX_STATES:,}",
}
"""(resource, whose[, which of several rows]) -> how the cell "at most" begins."""


def rows() -> dict[tuple, tuple[str, str]]:
    """Reads the table; keys as of `BUDGETS` -> (at most, test)."""
    table, resource = {}, ""
    lines = PAGE.partition("| resource | whose | at most | test |\n|---|---|---|---|\n")[2]
    for line in lines.partition("\n\n")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        resource, key = cells[0] or resource, ()
        for number in range(1, 9):
            key = (resource, cells[1], number) if number > 1 else (resource, cells[1])
            if key not in table:
                break
        table[key] = cells[2], cells[3]
    return table


@pytest.mark.parametrize("key", BUDGETS, ids=lambda key: ", ".join(map(str, key)))
def test_a_limit_is_what_the_code_has(key):
    assert rows()[key][0].startswith(BUDGETS[key])


def test_each_limit_has_a_test():
    assert len(rows()) > 20
    for key, (_, test) in rows().items():
        file, name = re.fullmatch(r"`(test_\w+\.py): (test_\w+)`", test).groups()
        assert f"def {name}(" in (FOLDER / file).read_text(), key
