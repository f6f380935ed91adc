"""A run's history as files: metrics.csv, metrics.jsonl, clients.csv."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_ht.core.files import atomic_open

HistoryRow = dict[str, Any]
PER_CLIENT = ("clients", "client_ids")
FILES = ("metrics.csv", "metrics.jsonl", "clients.csv")


def write_history(history: Sequence[HistoryRow], workdir: Path | str, written: int = 0) -> int:
    """Brings the three files up to date with a history.

    metrics.jsonl holds every row; metrics.csv the same without the per-client values; clients.csv
    the accuracy of every evaluated client on its own test set, one line an evaluation of a trial
    (empty where a client has no test sample).

    Args:
      history: all rows.
      workdir: where the files are.
      written: how many of them this process has written before; only the others are then appended,
        unless they bring a column that the files lack. 0 writes the files anew, so that a resumed
        run leaves no row twice.

    Returns:
      How many rows the files hold: all.
    """
    workdir = Path(workdir)
    new, columns = history[written:], columns_of(history[written:])
    known = _header(workdir / "metrics.csv") if written else []
    heads = {"metrics.jsonl": "", "metrics.csv": "", "clients.csv": ""}
    rewritten = not known or not set(columns) <= set(known)
    if rewritten:
        new, columns = history, columns_of(history)
        heads |= {"metrics.csv": _csv([columns]), "clients.csv": _csv([_client_columns(history)])}
    else:
        columns = known
    texts = {
        "metrics.jsonl": "".join(json.dumps(row) + "\n" for row in new),
        "metrics.csv": _csv([[_cell(row.get(name, "")) for name in columns] for row in new]),
        "clients.csv": _csv([_accuracies(row) for row in new if "clients" in row]),
    }
    for name, text in texts.items():
        with (
            atomic_open(workdir / name)
            if rewritten
            else (workdir / name).open("a", newline="") as file
        ):
            file.write(heads[name] + text)
    return len(history)


def read_history(workdir: Path | str) -> list[HistoryRow]:
    """The rows of a metrics.jsonl; none without that file. A last line that was cut off is left
    out.

    Raises:
      ValueError: another line is broken.
    """
    path = Path(workdir) / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if number < len(lines):
                raise ValueError(
                    f"{path}, line {number} is not readable as JSON ({error})"
                ) from None
    return rows


def columns_of(rows: Iterable[HistoryRow]) -> list[str]:
    """Of metrics.csv, in the order in which they first come."""
    return list(dict.fromkeys(name for row in rows for name in row if name not in PER_CLIENT))


def _header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return next(csv.reader(file), [])


def _client_columns(history: Sequence[HistoryRow]) -> list[str]:
    first = next((row for row in history if "clients" in row), {"clients": ()})
    return [
        "round",
        "trial",
        *(f"client_{i}" for i in first.get("client_ids") or range(len(first["clients"]))),
    ]


def _accuracies(row: HistoryRow) -> list:
    return [row["round"], row["trial"], *("" if a is None else a for a in row["clients"])]


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _csv(rows: Iterable[Sequence]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()
