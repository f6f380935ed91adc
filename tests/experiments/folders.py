"""Folders of runs that nobody trained: config.json and metrics.jsonl as a run writes them."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedjax_ht.lab.config.base import base_config, typed_config
from fedjax_ht.lab.config.entries import chosen, entries_of, folder_of
from fedjax_ht.lab.config.typed import to_json

History = Sequence[Mapping]


def write_run(path: Path, histories: Mapping[str, History], **fields) -> Path:
    """Writes a run's folder.

    Args:
      path: of the folder.
      histories: entry, as it is written -> rows.
      **fields: of the config, as `partition__options__alpha=0.1`.
    """
    config = base_config()
    for name, value in fields.items():
        config.update({name.replace("__", "."): value})
    config.method.name = None
    config.entries = chosen(config.entries, histories)
    typed = typed_config(config)
    entries = [entry._asdict() for entry in entries_of(typed)]
    path.mkdir(parents=True)
    content = to_json(typed) | {"entries": entries, "run": {"version": 3}}
    (path / "config.json").write_text(json.dumps(content))
    for label, history in histories.items():
        folder = path / folder_of(label)
        folder.mkdir()
        lines = [json.dumps(row) + "\n" for row in history]
        (folder / "metrics.jsonl").write_text("".join(lines))
    return path


def edit_fields(folder: Path, fields: Mapping) -> None:
    """Replaces fields of a run's config.json, but not its entries."""
    path = folder / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **fields, "entries": content["entries"]}))


def history(*accuracies: float, trial: int = 0, every: int = 1, **scores: float) -> list[dict]:
    """Makes a trial's rows: an accuracy every so many rounds, and the other scores in all."""
    rows = []
    for number, accuracy in enumerate(accuracies):
        rows.append({"round": number * every, "trial": trial, "accuracy": accuracy} | scores)
    return rows


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
