"""Writes the CSV files of the experiments."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_ht.core.files import atomic_open
from fedjax_ht.report.table import Table


def write_rows(path: Path, head: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes rows below a head, floats with six significant digits; whole or not at all."""
    text = Table(head, [list(map(cell, row)) for row in rows]).csv()
    with atomic_open(path) as file:
        file.write(text)


def cell(value: Any) -> str:
    """Formats a value for a CSV file."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
