"""Audit log: a JSON line for everything that one side of a deployment does with another.

docs/audit.md lists the events. The newest `FILES` files of `FILE_BYTES` are kept.
"""

import contextlib
import datetime
import json
import logging
import logging.handlers
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedjax_ht.deploy.messages import printable

FILE_NAME = "audit.jsonl"
FILE_BYTES = 4 << 20
FILES = 4
"""Number of files kept: audit.jsonl, and before it audit.jsonl.1 and so on."""

Audit = Callable[..., None]
"""(event, **fields) -> None; fields are JSON values, including strings from the other side."""


def no_audit(event: str, **fields: Any) -> None:
    """Records nothing."""


def open_audit(folder: Path, tell: Callable[[str], None]) -> Audit:
    """Returns a function that appends lines to `FILE_NAME` in a folder.

    A line that cannot be written is lost, without an error.

    Args:
      folder: this side's folder; created if missing.
      tell: called once with a message if the log cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handler = _Handler(folder / FILE_NAME, maxBytes=FILE_BYTES, backupCount=FILES - 1, delay=True)
    handler.tell = tell

    def audit(event: str, **fields: Any) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "event": event}
        for name, value in fields.items():
            line[name] = printable(value) if isinstance(value, str) else value
        text = json.dumps(line)
        handler.handle(logging.makeLogRecord({"msg": "%s", "args": (text,)}))

    return audit


@contextlib.contextmanager
def lifetime(audit: Audit, **fields: Any) -> Iterator[None]:
    """Records the start of a side, with these fields, and its end with the reason."""
    audit("started", **fields)
    reason = "done"
    try:
        yield
    except BaseException as error:
        reason = str(error) or type(error).__name__
        raise
    finally:
        audit("ended", reason=reason)


class _Handler(logging.handlers.RotatingFileHandler):
    """Writes lines, and reports the first that it cannot write.

    Attributes:
      tell: called with a message.
      has_told: True after the first failure.
    """

    tell: Callable[[str], None]
    has_told = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.has_told:
            self.has_told = True
            self.tell(f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}")
