r"""Tabulates many runs together with published numbers.

    python -m experiments.paper_table --runs=FOLDER --out=STEM [--published=CSV]
    [--score=global_accuracy_head] \
        [--published_score=accuracy_participants] [--rounds=25] [--also=CSV] [--curves=PNG]

Every run below --runs with a config.json and a method's metrics.jsonl counts. Runs of one dataset
and method that differ only in their seeds are pooled. If runs of a method differ in more, a run is
named by its differences: method options that are not at their defaults, as "fedktl mu=0.0", and
other settings that most of its runs do not share. Settings of local training (optimizer, learning
rate, epochs) are compared with all runs of the dataset, as in "fedclassavg optimizer=adam", so that
no method has its own training unnoticed. Writes STEM.csv, the evaluations of every run, and
prints the table. The published CSV has the columns dataset, method (with its differences), accuracy
(in %, empty if a paper reports no convergence) and source, and may have std. --published_score
names the score of these numbers, if it is not --score. --curves plots --score over the evaluations
that all runs of a method have. --also names files like STEM.csv from earlier tables, whose runs are
added under the names that they have there. `experiments.paper_tables` makes the page of all papers'
tables from such files.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import app, flags

from experiments.evaluations import (
    SHOWN,
    SHOWN_BESIDE_GLOBAL,
    Run,
    by_dataset,
    by_method,
    curves,
    read_evaluations,
    read_published,
    tops,
    write_evaluations,
)
from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.config.base import method_config
from fedjax_ht.lab.config.entries import folder_of
from fedjax_ht.lab.config.typed import to_plain
from fedjax_ht.lab.report.document import Paragraph, Table, human_bytes, rounds_of
from fedjax_ht.lab.report.plots import save
from fedjax_ht.lab.report.results import NOTES, PARTICIPANTS
from fedjax_ht.lab.report.rows import ACCURACY, after_start, mean, values
from fedjax_ht.lab.runs.folder import FREE_FIELDS, NAMING
from fedjax_ht.simulation.history import wire_bytes
from fedjax_ht.simulation.rows import evaluated

_RUNS = flags.DEFINE_string("runs", None, "Folder with runs, at any depth.")
_PUBLISHED = flags.DEFINE_string(
    "published", None, "CSV of the published numbers, if there are any."
)
_OUT = flags.DEFINE_string("out", None, "Where to write, without an ending.")
_SCORE = flags.DEFINE_string(
    "score", "accuracy", "The accuracy that the table is about, a key of metrics.jsonl."
)
_AS = flags.DEFINE_string(
    "published_score", None, "The score that the published numbers are of; by default --score."
)
_ALSO = flags.DEFINE_list("also", [], "CSV files of earlier tables, whose runs count as well.")
_ROUNDS = flags.DEFINE_integer(
    "rounds", None, "Leave out what came after, so that longer runs compare with shorter."
)
_CURVES = flags.DEFINE_string("curves", None, "Where to draw the score against rounds, a PNG.")

SAME_RESULT = (
    *(name for name in (*NAMING, *FREE_FIELDS) if name not in ("method", "rounds")),
    "run",
    "seed",
    "partition.seed",
    "trials",
    "lanes",
)
"""Fields of a config that do not change a run's results, or over which runs are pooled."""


def leaves(config: Mapping, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields a pair such as ("training.epochs", "1") for every field of a nested config."""
    for key, value in config.items():
        path = prefix + key
        if path in SAME_RESULT:
            continue
        if isinstance(value, Mapping):
            yield from leaves(value, path + ".")
        else:
            yield path, value if isinstance(value, str) else json.dumps(value)


def find_runs(folder: Path, rounds: int | None = None, earlier: Sequence[Run] = ()) -> list[Run]:
    """Reads every trial below a folder, in path order; methods are named by their differences.

    Args:
      folder: folder of runs.
      rounds: last round to read; None reads all.
      earlier: runs of an earlier table, from which these are distinguished, too.
    """
    runs = []
    for path in sorted(folder.rglob("metrics.jsonl")):
        if not (path.parent.parent / "config.json").exists():  # from a run that was set aside
            continue
        config = json.loads((path.parent.parent / "config.json").read_text())
        method, settings = settings_of(config, path.parent.name)
        for number, history in enumerate(read_runs(path.parent)):
            if rounds is not None:
                history = [row for row in history if row["round"] <= rounds]
            seed = config["seed"] + number
            runs.append(Run(config["dataset"]["name"], method, seed, history, settings))
    known = named_settings(earlier)
    return [run._replace(method=" ".join([run.method, *apart(run, runs, known)])) for run in runs]


def named_settings(earlier: Sequence[Run]) -> set[tuple[str, str, str]]:
    """Returns (dataset, method, setting) for settings in the names of an earlier table's methods.

    They distinguish runs of a method.
    """
    names = set()
    for run in earlier:
        method, *parts = run.method.split()
        names |= {(run.dataset, method, part.partition("=")[0]) for part in parts}
    return names


def settings_of(config: Mapping, folder: str) -> tuple[str, dict[str, str]]:
    """Returns the method in a run's folder, and everything that may affect its results."""
    for entry in config.get("entries", ()):
        if folder_of(entry["label"]) == folder:
            settings = {"method": {"name": entry["method"], "options": entry["options"]}}
            settings |= {part: {**config[part], **entry[part]} for part in ("training", "model")}
            return entry["method"], dict(leaves({**config, **settings}))
    return folder, dict(leaves(config))  # a run from before there were entries


def apart(run: Run, runs: Sequence[Run], known: Collection[tuple[str, str, str]] = ()) -> list[str]:
    """Names a run's differences, as "mu=0.0", from runs of its dataset and method.

    These are method options that are not at their defaults, and other settings that most of those
    runs do not share. Settings of local training, as "optimizer=adam", are compared with all runs
    of the dataset.

    Args:
      run: the run.
      runs: all runs, including this one.
      known: (dataset, method, option) in which runs of earlier tables differ.
    """
    beside = [r for r in runs if r.dataset == run.dataset]
    alike = [r for r in beside if r.method == run.method]
    defaults = dict(leaves(to_plain(method_config(run.method)), "method."))
    names = []
    for key, value in run.settings.items():
        compared = beside if key.startswith("training.") else alike
        counts = Counter(r.settings.get(key, value) for r in compared).most_common(2)
        name = key.rpartition(".")[2]
        named_before = key in defaults and (run.dataset, run.method, name) in known
        if len(counts) == 1 and not named_before:
            continue
        tied = len(counts) > 1 and counts[0][1] == counts[1][1]
        usual = defaults.get(key, None if tied else counts[0][0])
        if value != usual:
            names.append(f"{name}={value}")
    return names


def line(
    runs: Sequence[Run],
    published: Sequence[dict[str, str]],
    score: str,
    beside: Sequence[str],
    published_score: str,
) -> list[str]:
    """Returns the cells of one method on one dataset.

    Args:
      runs: runs of the method.
      published: rows of published numbers.
      score: accuracy of the table.
      beside: further scores.
      published_score: published score.
    """
    best, by_val = tops(runs, score), tops(runs, score, by="val_accuracy")
    numbers = [row["accuracy"] or "no convergence" for row in published]
    known = [float(row["accuracy"]) for row in published if row["accuracy"]]
    ours = 100 * mean(values(tops(runs, published_score), published_score), math.nan)
    difference = ""
    if known and not math.isnan(ours):
        difference = f"{ours - known[0]:+.2f}"
    lasts = [evaluated(run.history)[-1] for run in runs]
    cells = [
        runs[0].method,
        ACCURACY.of_trials(best, score),
        ACCURACY.of_trials(by_val, score),
        ACCURACY.of_trials(lasts, score),
    ]
    for key in beside:
        cells.append(ACCURACY.of_trials(tops(runs, key), key))
    return [
        *cells,
        rounds_of(best),
        str(len(runs)),
        ", ".join(dict.fromkeys(numbers)) or "-",
        difference,
        bytes_a_round(runs),
    ]


def bytes_a_round(runs: Sequence[Run]) -> str:
    """Formats the mean bytes of a round; "-" if no row counts them."""
    counts = []
    for run in runs:
        for row in after_start(run.history):
            if "uplink_payload_bytes" in row:
                counts.append(wire_bytes(row))
    return human_bytes(np.mean(counts)) if counts else "-"


def markdown(
    runs: Sequence[Run],
    published: dict[tuple[str, str], list[dict[str, str]]],
    score: str,
    published_score: str | None = None,
) -> str:
    """Makes a table for each dataset, methods by falling score.

    Args:
      runs: runs of all datasets and methods.
      published: rows of published numbers by dataset and method.
      score: accuracy of the tables.
      published_score: published score; None for `score`.
    """
    published_score = published_score or score
    parts = []
    titles = dict(SHOWN)
    if score == "global_accuracy_head":
        titles |= SHOWN_BESIDE_GLOBAL
    for dataset, of_dataset in by_dataset(runs).items():
        grouped = by_method(of_dataset, score)
        beside = [key for key in titles if key != score and differs(key, score, runs)]
        head = ["method", "ours %", "by validation %", "last round %"]
        head += [f"{titles[key]} %" for key in beside]
        head += ["best round", "seeds", "paper %"]
        difference = "difference"
        if published_score != score:
            difference = f"{titles.get(published_score, published_score)} - paper"
        head += [difference, "bytes a round"]
        rows = []
        for name, group in grouped.items():
            numbers = published.get((dataset, name), [])
            rows.append(line(group, numbers, score, beside, published_score))
        rows.sort(key=lambda cells: -float(cells[1].split()[0]))
        parts.append(f"## {dataset}\n\n{Table(head, rows).markdown()}")
    if differs(PARTICIPANTS, score, runs):
        parts.append(Paragraph(NOTES["participants %"]).markdown())
    return "\n\n".join(parts)


def differs(key: str, score: str, runs: Sequence[Run]) -> bool:
    """Returns whether any evaluation has another value for a key than for the score."""
    for run in runs:
        for row in run.history:
            if key in row and row[key] != row.get(score):
                return True
    return False


@orderly_main
def main(_) -> None:
    for name, value in (("runs", _RUNS.value), ("out", _OUT.value)):
        if not value:
            raise ValueError(f"no --{name}; see --help")
    earlier = list(itertools.chain(*map(read_evaluations, map(Path, _ALSO.value))))
    runs = earlier + find_runs(Path(_RUNS.value), _ROUNDS.value, earlier)
    published = read_published(_PUBLISHED.value)
    if not any(tops([run], _SCORE.value) for run in runs):
        raise ValueError(f"no run with a {_SCORE.value} below {_RUNS.value}")
    write_evaluations(runs, Path(_OUT.value).with_suffix(".csv"))
    if _CURVES.value:
        save(curves(runs, _SCORE.value), Path(_CURVES.value))
    print(markdown(runs, published, _SCORE.value, _AS.value))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
