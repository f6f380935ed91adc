"""Writes and reads an entry's rows: metrics.csv, metrics.jsonl, clients.csv and classes.csv."""

import csv
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_ht.check.names import short
from fedjax_ht.lab.files import csv_text, named, plain_open, write_whole
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import open_regular
from fedjax_ht.simulation.history import merged
from fedjax_ht.simulation.rows import Row, Runs, score_of, unprefixed

LISTS = (
    "clients",
    "accuracy_samples",
    "client_samples",
    "client_ids",
    "class_accuracy",
    "client_class_counts",
    "client_auc",
)
"""Columns of metrics.jsonl with a value per client or class, also after a prefix of `rows`."""
FILES = ("metrics.csv", "metrics.jsonl", "clients.csv", "classes.csv")
CLASS_COLUMNS = ("round", "trial", "client", "class", "samples", "correct")
"""Columns of classes.csv."""


def write_runs(runs: Runs, workdir: Path | str, written: int = 0) -> int:
    """Brings the four files up to date with an entry's runs.

    All files list the rows round by round; "trial" is the run of a row. metrics.jsonl holds every
    row, and metrics.csv the same without `LISTS`. clients.csv has a line per evaluation of a run:
    the score of every evaluated client on its own test set (empty for a client without test
    samples), and then its AUC, where computed. classes.csv has a line per class of every evaluated
    client: its test samples, and how many of them are classified correctly.

    Args:
      runs: all rows of each run.
      workdir: the folder of the four files.
      written: number of rows that this process wrote before. Only later rows are appended, unless
        they have a column that the files lack. 0 rewrites the files, so that a resumed run
        repeats no row.

    Returns:
      The number of rows in the files, which is the number of all rows.

    Raises:
      OSError: they cannot be written. Calling it again is safe and repeats no row.
    """
    workdir, rows = Path(workdir), merged(runs)
    new, columns = rows[written:], columns_of(rows[written:])
    of_clients = _client_columns(new)
    if written:
        known, known_clients = (_header(workdir / name) for name in ("metrics.csv", "clients.csv"))
        has_columns = set(columns) <= set(known) and set(of_clients) <= set(known_clients)
        if known and has_columns and (workdir / "classes.csv").exists():
            _append(_texts(new, known, known_clients), workdir)
            return len(rows)
    columns, of_clients = columns_of(rows), _client_columns(rows)
    heads = {"metrics.csv": columns, "clients.csv": of_clients, "classes.csv": CLASS_COLUMNS}
    for name, text in _texts(rows, columns, of_clients).items():
        head = csv_text([heads[name]]) if name in heads else ""
        write_whole(workdir / name, head + text)
    return len(rows)


def _append(texts: Mapping[str, str], workdir: Path) -> None:
    """Appends to all files of a history, or to none, so that the call may be repeated."""
    sizes: dict[str, int] = {}
    try:
        for name, text in texts.items():
            with named(workdir / name), plain_open(workdir / name, "a") as file:
                sizes[name] = os.fstat(file.fileno()).st_size
                file.write(text)
    except OSError:
        for name, size in sizes.items():
            os.truncate(workdir / name, size)  # needs neither disk space nor a descriptor
        raise


def read_runs(workdir: Path | str) -> list[list[Row]]:
    """Reads the rows of each run of a metrics.jsonl, ordered by trial; [] without that file.

    A truncated last line is skipped.

    Raises:
      ValueError: another line is broken, or is not a row of a run. One line.
    """
    path = Path(workdir) / "metrics.jsonl"
    if not path.exists():
        return []
    runs, scores, broken = defaultdict(list), set(), None
    with open_regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(limits.TEXT_BYTES + 1), b""), 1):
            if broken is not None:  # only the last line may be truncated
                break
            limits.keep(f"{path}: line {number}", len(line), limits.TEXT_BYTES)
            limits.keep(f"{path}: it", number, limits.TABLE_ROWS, "rows")
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                broken = f"{path}, line {number} is not readable as JSON ({error})"
                continue
            if wrong := _wrong_column(row):
                raise ValueError(f"{path}, line {number} is not a row of a run: {wrong}")
            if score_of(row) in row:
                scores.add(score_of(row))
            if len(scores) > 1:
                raise ValueError(f"{path}, line {number} is of another task than earlier lines")
            runs[row["trial"]].append(row)
        else:
            broken = None
    if broken is not None:
        raise ValueError(broken)
    return [runs[trial] for trial in sorted(runs)]


_COUNTS = ("trial", "round", "participants", "arrived")
_OF_CLIENTS = ("not_finite", "refused", "miscounted", "late", "arrived_late")


def _wrong_column(row: Any) -> str:
    """Describes the first value of a row whose type differs from what runs write; "" if none."""
    if not isinstance(row, dict):
        return f"it is {short(row)}, not an object"
    for name in ("trial", "round"):
        if name not in row:
            return f"it has no {name}"
    for name, value in row.items():
        column = unprefixed(name)
        if column in _COUNTS:
            right = _is_number(value) and isinstance(value, int) and 0 <= value < 2**31
        elif column == "score":  # the name of a task's score column
            right = isinstance(value, str) and value.isidentifier()
        elif column == "better":
            right = value in ("higher", "lower")
        elif column == "client_class_counts":
            right = isinstance(value, list) and all(map(_is_counts, value))
        elif column == "far_off":
            right = isinstance(value, list) and all(_are_numbers(x) and len(x) == 2 for x in value)
        elif column in (*LISTS, *_OF_CLIENTS):
            right = _are_numbers(value)
        else:
            right = isinstance(value, bool) or _is_number(value)
        if not right:
            return f"{short(name)} is {short(value)}"
    if ("score" in row) != ("better" in row):
        return "it has only one of score and better"
    lengths = {len(row[name]) for name in ("clients", "client_ids") if name in row}
    return "its clients do not match client_ids" if len(lengths) > 1 else ""


def _is_number(value: Any) -> bool:
    # a diverged run has NaN; ints beyond float64 cannot be computed with
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(x is None or _is_number(x) for x in value)


def _is_counts(value: Any) -> bool:
    if not isinstance(value, dict) or not all(map(str.isdecimal, value)):
        return False
    return all(_are_numbers(x) and len(x) == 2 and None not in x for x in value.values())


def columns_of(rows: Iterable[Row]) -> list[str]:
    """The columns of metrics.csv, in order of first appearance in the rows."""
    columns = {}
    for row in rows:
        columns |= dict.fromkeys(row)
    return [name for name in columns if unprefixed(name) not in LISTS]


def _texts(
    rows: Sequence[Row], columns: Sequence[str], of_clients: Sequence[str]
) -> dict[str, str]:
    """File -> lines for these rows, with these columns of metrics.csv and clients.csv."""
    lines, cells, scores, counts = [], [], [], []
    for row in rows:
        lines.append(json.dumps(row) + "\n")
        cells.append([_cell(row.get(name, "")) for name in columns])
        if _is_evaluation(row):
            accuracies = _scores(row)
            scores.append([_cell(accuracies.get(name, "")) for name in of_clients])
            counts += _class_cells(row)
    return {
        "metrics.jsonl": "".join(lines),
        "clients.csv": csv_text(scores),
        "classes.csv": csv_text(counts),
        # last, since its header tells whether all four files have these rows
        "metrics.csv": csv_text(cells),
    }


def _header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return next(csv.reader(file), [])


def _client_columns(rows: Sequence[Row]) -> list[str]:
    """The columns of clients.csv: client_3 of each evaluated client, and client_3_auc if known."""
    clients, with_auc = {}, {}
    for row in filter(_is_evaluation, rows):
        clients |= dict.fromkeys(_client_ids(row))
        if "client_auc" in row:
            with_auc |= dict.fromkeys(_client_ids(row))
    columns = [f"client_{i}" for i in clients] + [f"client_{i}_auc" for i in with_auc]
    return ["round", "trial", *columns]


def _client_ids(row: Row) -> Sequence[int]:
    return row.get("client_ids") or range(len(row["clients"]))


def _is_evaluation(row: Row) -> bool:
    return "clients" in row


def _scores(row: Row) -> dict[str, Any]:
    """Column of clients.csv -> cell of an evaluation.

    Clients without test samples have no score, and those with an undefined AUC no AUC.
    """
    cells = {"round": row["round"], "trial": row["trial"]}
    for i, score in zip(_client_ids(row), row["clients"]):
        if score is not None:
            cells[f"client_{i}"] = score
    for i, auc in zip(_client_ids(row), row.get("client_auc", ())):
        if auc is not None:
            cells[f"client_{i}_auc"] = auc
    return cells


def _class_cells(row: Row) -> list[list[Any]]:
    """Returns an evaluation's lines of classes.csv; [] if it did not count by class."""
    lines = []
    for i, counts in zip(_client_ids(row), row.get("client_class_counts", ())):
        for label, (samples, correct) in counts.items():
            lines.append([row["round"], row["trial"], i, label, samples, correct])
    return lines


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value
