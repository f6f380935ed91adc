"""Honest clients' accuracy in runs of experiments/configs/attacked.py, as a CSV and a table.

    python -m experiments.attack_table checkpoints/runs checkpoints/runs/attacked.csv
    python -m experiments.attack_table experiments/results/attacked.csv

Accuracies are means over trials at the last evaluation. Runs without attackers score the same
clients as runs with them: those that would be honest at 10 and at 30 %. Runs
of other configs are an error.
"""

import operator
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app

from experiments.configs.attacked import get_config
from experiments.leaderboard_rows import require_config
from experiments.rows import column, grouped, read_rows, write_rows
from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.lab.cli import orderly_main
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.entries import folder_of
from fedjax_ht.lab.report.document import Document, Table
from fedjax_ht.lab.runs.folder import FREE_BUT_ROUNDS, read_folder
from fedjax_ht.simulation.rows import evaluated
from fedjax_ht.trust.attacks import attackers
from fedjax_ht.trust.options import Attack

FREE = {*FREE_BUT_ROUNDS, "robust", *(f"attack.{field}" for field in ("kind", "share", "strength"))}
"""Fields in which runs of the config differ."""


class Score(NamedTuple):
    """The last evaluation of one trial.

    Attributes:
      attack: kind of the attack; "none" without attackers.
      share: share of the clients that attack or, in a run without attackers, whose accuracy is left
        out.
      defence: the last one of `config.robust`; "none" without.
      method, seed, round: method, seed and round of the evaluation.
      accuracy: mean over the clients outside the share.
    """

    attack: str
    share: float
    defence: str
    method: str
    seed: int
    round: int
    accuracy: float


def scores(folder: Path, shares: Iterable[float] = (0.1, 0.3)) -> Iterator[Score]:
    """Yields the scores of one run.

    Args:
      folder: folder of the run.
      shares: shares of the clients that are left out in a run without attackers.

    Raises:
      ValueError: the run has another config. One line.
    """
    run = read_folder(folder)
    require_config(run, typed_config(get_config()), "attacked", FREE)
    config = run.fields
    attack, defence = config["attack"], (config["robust"] or [["none"]])[-1][0]
    for entry in config["entries"]:
        for history in read_runs(folder / folder_of(entry["label"])):
            last = evaluated(history)[-1]
            names = (entry["method"], config["seed"] + last["trial"], last["round"])
            if attack["kind"] != "none":
                yield Score(attack["kind"], attack["share"], defence, *names, last["accuracy"])
                continue
            clients = np.array(last["clients"], float)
            for share in shares:
                bad = attackers(Attack("noise", share, seed=attack["seed"]), len(clients))
                accuracy = float(np.nanmean(clients[~bad]))
                yield Score("none", share, defence, *names, accuracy)


def write(scores: Iterable[Score], path: Path) -> None:
    """Writes a row for each score, in order."""
    write_rows(path, Score._fields, sorted(scores))


def markdown(scores: Iterable[Score]) -> str:
    """Makes a Markdown table per share: a row per attack and defence, a column per method, in %."""
    scores = list(scores)
    methods = list(dict.fromkeys(column(scores, "method")))
    tables = []
    for share, of_share in sorted(grouped(scores, operator.attrgetter("share")).items()):
        rows = []
        cases = grouped(of_share, operator.attrgetter("attack", "defence"))
        for case, of_case in sorted(cases.items()):
            by_method = grouped(of_case, operator.attrgetter("method"))
            row = list(case)
            for method in methods:
                accuracies = column(by_method.get(method, ()), "accuracy")
                row.append(f"{100 * np.mean(accuracies):.1f}" if accuracies else "")
            rows.append(row)
        tables.append(Table([f"{100 * share:.0f} % attack", "defence", *methods], rows))
    return Document(tables).markdown()


@orderly_main
def main(arguments: list[str]) -> None:
    match [Path(argument) for argument in arguments[1:]]:
        case [table]:
            print(markdown(read_rows(table, Score)))
        case [runs, out]:
            folders = sorted(path.parent for path in runs.glob("*/summary.md"))
            read_scores = [score for folder in folders for score in scores(folder)]
            write(read_scores, out)
            print(markdown(read_scores))
        case _:
            raise ValueError("give a folder of runs and a CSV to write, or a CSV to show")


if __name__ == "__main__":
    app.run(main)
