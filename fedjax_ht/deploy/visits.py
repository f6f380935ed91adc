"""Visits to a gate: the addresses that clients come from, and counts of refused requests."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_ht.deploy.audit import Audit
from fedjax_ht.deploy.gate import TOO_LONG

FLUSH_SECONDS = 60.0
"""Refusals of so long are one line of the audit log: strangers do not fill it."""
MOST_ADDRESSES = 1000
"""Addresses that are remembered; of more, some are told again."""


class Visits:
    """Counts refused requests between two lines, and remembers where clients have come from.

    The gate's thread adds to it, the server's reads it.
    """

    def __init__(self, owners: Mapping[int, int], tell: Callable[[str], None], audit: Audit):
        self._owners, self._tell, self._audit = owners, tell, audit
        self._lock = threading.Lock()
        self._refused: Counter[tuple[int | None, int]] = Counter()
        self._too_long: set[int] = set()
        self._addresses: set[tuple[int, str]] = set()
        self._flushed = time.monotonic()

    def sender(self, node: int) -> dict[str, int]:
        """Returns the field of a line that names a node: its client, where its key is known."""
        owner = self._owners.get(node)
        return {"node": node} if owner is None else {"client": owner}

    def add_address(self, node: int, host: str) -> None:
        """Notes from where a node has sent a signed request."""
        with self._lock:
            if (node, host) in self._addresses:
                return
            if len(self._addresses) >= MOST_ADDRESSES:
                self._addresses.clear()
            self._addresses.add((node, host))
        self._audit("address", **self.sender(node), host=host)

    def add_refusal(self, node: int | None, status: int) -> None:
        """Notes that a request was refused, with HTTP's code; None is a stranger."""
        with self._lock:
            self._refused[node, status] += 1
            if node is not None and status == TOO_LONG:
                self._too_long.add(node)

    def flush(self, is_last: bool = False) -> None:
        """Tells of clients that have sent too much, and once in a while of all refusals."""
        with self._lock:
            too_long, self._too_long = self._too_long, set()
            is_due = is_last or time.monotonic() - self._flushed > FLUSH_SECONDS
            refused: Counter[tuple[int | None, int]] = Counter()
            if is_due:
                refused, self._refused = self._refused, refused
                self._flushed = time.monotonic()
        for node in sorted(too_long):
            name = " ".join(map(str, *self.sender(node).items()))
            self._tell(f"{name} has sent more bytes than it may; they were not read")
        by_sender: dict[int | None, dict[str, int]] = {}
        for (node, status), count in sorted(refused.items(), key=str):
            by_sender.setdefault(node, {})[str(status)] = count
        for node, codes in by_sender.items():
            fields: dict[str, Any] = {} if node is None else self.sender(node)
            self._audit("refused" if fields else "strangers", **fields, codes=codes)
