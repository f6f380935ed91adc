"""Honest clients' accuracy in runs of configs/attacked.py, as a CSV and a table.

    python -m experiments.attack_table checkpoints/runs experiments/results/attacked.csv
    python -m experiments.attack_table experiments/results/attacked.csv

The mean over trials of the last evaluation. Without attackers the same clients are scored as with
them: those that would be honest at 10 and at 30 %.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app

from fedjax_ht.core.files import atomic_open
from fedjax_ht.experiment.entries import folder_of
from fedjax_ht.experiment.run_folder import read_config
from fedjax_ht.runner.cli import fail
from fedjax_ht.simulation.history import by_trial, evaluated
from fedjax_ht.trust.attacks import Attack, attackers


class Score(NamedTuple):
    """The last evaluation of one trial.

    Attributes:
      attack: its kind; "none" without attackers.
      share: of the clients that attack, or in a run without attackers: whose accuracy is left out.
      defence: the last one of `config.robust`; "none" without.
      method, seed, round: whose.
      accuracy: mean over the clients that do not belong to the share.
    """

    attack: str
    share: float
    defence: str
    method: str
    seed: int
    round: int
    accuracy: float


def scores(folder: Path, shares: Iterable[float] = (0.1, 0.3)) -> Iterator[Score]:
    """Of one run."""
    config, _ = read_config(folder)
    attack, defence = config["attack"], (config["robust"] or [["none"]])[-1][0]
    for entry in config["entries"]:
        lines = (folder / folder_of(entry["label"]) / "metrics.jsonl").read_text().splitlines()
        for trial in by_trial([json.loads(line) for line in lines]):
            last = evaluated(trial)[-1]
            own = (entry["method"], config["seed"] + last["trial"], last["round"])
            if attack["kind"] != "none":
                yield Score(attack["kind"], attack["share"], defence, *own, last["accuracy"])
                continue
            clients = np.array(last["clients"], float)
            for share in shares:
                bad = attackers(Attack("noise", share, seed=attack["seed"]), len(clients))
                yield Score("none", share, defence, *own, float(np.nanmean(clients[~bad])))


def write(found: Iterable[Score], path: Path) -> None:
    with atomic_open(path) as file:
        writer = csv.writer(file)
        writer.writerow(Score._fields)
        writer.writerows(
            [f"{x:.6g}" if isinstance(x, float) else x for x in score] for score in sorted(found)
        )


def read(path: Path) -> list[Score]:
    with path.open(newline="") as file:
        rows = [Score(**row) for row in csv.DictReader(file)]
    return [
        row._replace(
            share=float(row.share),
            seed=int(row.seed),
            round=int(row.round),
            accuracy=float(row.accuracy),
        )
        for row in rows
    ]


def markdown(found: Iterable[Score]) -> str:
    """A table for each share: a line an attack and defence, a column a method, percent."""
    cells, methods = defaultdict(list), {}
    for score in found:
        cells[score.share, score.attack, score.defence, score.method].append(score.accuracy)
        methods[score.method] = None
    tables = []
    for share in sorted({key[0] for key in cells}):
        lines = [
            f"| {100 * share:.0f} % attack | defence | {' | '.join(methods)} |",
            "|---" * (2 + len(methods)) + "|",
        ]
        for attack, defence in dict.fromkeys(key[1:3] for key in sorted(cells) if key[0] == share):
            means = (cells.get((share, attack, defence, method)) for method in methods)
            shown = " | ".join("" if one is None else f"{100 * np.mean(one):.1f}" for one in means)
            lines.append(f"| {attack} | {defence} | {shown} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def main(arguments: list[str]) -> None:
    try:
        match [Path(argument) for argument in arguments[1:]]:
            case [found]:
                print(markdown(read(found)))
            case [runs, out]:
                folders = sorted(path.parent for path in runs.glob("*/summary.md"))
                found = [score for folder in folders for score in scores(folder)]
                write(found, out)
                print(markdown(found))
            case _:
                raise ValueError("give a folder of runs and a CSV to write, or a CSV to show")
    except (OSError, ValueError) as error:
        fail(error)


if __name__ == "__main__":
    app.run(main)
