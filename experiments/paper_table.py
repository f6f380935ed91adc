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
prints a table for each dataset, as on the page of all papers' tables. The published CSV has the
columns dataset, method (with its differences), accuracy (in %, empty if a paper reports no
convergence) and source, and may have std. --published_score names the score of these numbers, if it
is not --score, and comes first in the tables. --curves plots --score over the evaluations that all
runs of a method have. --also names files like STEM.csv from earlier tables, whose runs are added
under the names that they have there. `experiments.paper_tables` makes the page of all papers'
tables from such files.
"""

import itertools
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

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
from experiments.paper_manifest import Part, Selection
from experiments.paper_parts import part_markdown
from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.config.base import method_config
from fedjax_ht.lab.config.entries import folder_of
from fedjax_ht.lab.config.typed import to_plain
from fedjax_ht.lab.report.document import Paragraph
from fedjax_ht.lab.report.plots import save
from fedjax_ht.lab.report.results import NOTES, PARTICIPANTS
from fedjax_ht.lab.runs.folder import FREE_FIELDS, NAMING

_RUNS = flags.DEFINE_string("runs", None, "Folder with runs, at any depth.")
_PUBLISHED = flags.DEFINE_string("published", "", "CSV of the published numbers, if there are any.")
_OUT = flags.DEFINE_string("out", None, "Where to write, without an ending.")
_SCORE = flags.DEFINE_string(
    "score", "accuracy", "The accuracy that the table is about, a key of metrics.jsonl."
)
_AS = flags.DEFINE_string(
    "published_score", "", "The score that the published numbers are of; by default --score."
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


def tables(
    path: Path, runs: Sequence[Run], *, score: str, published: str, published_score: str
) -> str:
    """Makes a table for each dataset, as `paper_parts` does.

    Args:
      path: the CSV of the runs' evaluations.
      runs: runs of all datasets and methods.
      score: accuracy of the tables.
      published: CSV of published numbers; "" for none.
      published_score: published score, which comes first; "" for `score`.
    """
    known = {dataset for dataset, _ in read_published(published or None)}
    first, beside, parts = published_score or score, list(SHOWN), []
    if score not in SHOWN:
        beside.insert(0, score)
    if score == "global_accuracy_head":
        beside += SHOWN_BESIDE_GLOBAL
    for dataset, of_dataset in by_dataset(runs).items():
        if not by_method(of_dataset, first):
            continue
        part = Part(
            Selection(path.name, dataset),
            title=dataset,
            score=first,
            also=[key for key in beside if key != first and differs(key, first, of_dataset)],
            published=os.path.abspath(published) if dataset in known else "",
        )
        parts.append(f"## {dataset}\n\n{part_markdown(part, path.parent)}")
    if differs(PARTICIPANTS, score, runs):
        parts.append(Paragraph(NOTES["participants %"]).markdown())
    return "\n\n".join(parts)


def differs(key: str, score: str, runs: Sequence[Run]) -> bool:
    """Returns whether any evaluation has another value for a key than for the score."""
    rows = itertools.chain(*(run.history for run in runs))
    return any(key in row and row[key] != row.get(score) for row in rows)


@orderly_main
def main(_) -> None:
    for name, value in (("runs", _RUNS.value), ("out", _OUT.value)):
        if not value:
            raise ValueError(f"no --{name}; see --help")
    earlier = list(itertools.chain(*map(read_evaluations, map(Path, _ALSO.value))))
    runs = earlier + find_runs(Path(_RUNS.value), _ROUNDS.value, earlier)
    path = Path(_OUT.value).with_suffix(".csv")
    if not any(tops([run], _SCORE.value) for run in runs):
        raise ValueError(f"no run with a {_SCORE.value} below {_RUNS.value}")
    write_evaluations(runs, path)
    if _CURVES.value:
        save(curves(runs, _SCORE.value), Path(_CURVES.value))
    scores = {"score": _SCORE.value, "published_score": _AS.value}
    print(tables(path, runs, published=_PUBLISHED.value, **scores))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
