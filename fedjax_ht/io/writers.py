"""A run's history as files: metrics.csv, metrics.jsonl, clients.csv."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_ht.io.files import atomic_open

PER_CLIENT = ("clients", "client_ids")


def write_history(history: Sequence[dict[str, Any]], workdir: Path | str) -> None:
    """Rewrites the three files from the whole history, so that a resumed run leaves no row twice.

    metrics.jsonl holds every row; metrics.csv the same without the per-client values; clients.csv the accuracy of every
    evaluated client on its own test set, one line an evaluation of a trial (empty where a client has no test sample).
    """
    workdir = Path(workdir)
    with atomic_open(workdir / "metrics.jsonl") as file:
        file.writelines(json.dumps(row) + "\n" for row in history)
    columns = list(dict.fromkeys(name for row in history for name in row if name not in PER_CLIENT))
    with atomic_open(workdir / "metrics.csv") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", restval="")
        writer.writeheader()
        writer.writerows(
            {k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()} for row in history
        )
    rows = [row for row in history if "clients" in row]
    with atomic_open(workdir / "clients.csv") as file:
        writer = csv.writer(file)
        ids = (rows[0].get("client_ids") or range(len(rows[0]["clients"]))) if rows else ()
        writer.writerow(["round", "trial", *(f"client_{i}" for i in ids)])
        writer.writerows(
            [row["round"], row["trial"], *("" if a is None else a for a in row["clients"])] for row in rows
        )
