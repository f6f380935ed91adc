r"""Many runs in one table, beside published numbers.

    python -m experiments.paper_table --runs=FOLDER --out=STEM [--published=CSV]
    [--score=global_accuracy_head] \
        [--published_score=accuracy_participants] [--rounds=25] [--also=CSV] [--curves=PNG]

Every run below --runs that has a config.json and a method's metrics.jsonl counts. Runs of one
dataset and method that differ in their seeds alone are pooled; where runs of a method differ in
more, a run is named by what sets it apart: of the method's options by what differs from their
defaults, as "fedktl mu=0.0", of other settings by what most of its runs do not share. What it
trained by (optimizer, learning rate, epochs) is held against all runs of the dataset, as
"fedclassavg optimizer=adam", so that no method has a training of its own unseen. Writes STEM.csv,
the evaluations of every run, and STEM_table.md. The published CSV has the columns dataset, method
(with what sets it apart), accuracy (in %, empty where a paper says that it did not converge) and
source, and may have std. --published_score says which of our scores these numbers are of, if it is
not --score. --curves draws --score over the evaluations that all runs of a method have. --also
names files like STEM.csv of earlier tables, whose runs then stand beside these under the names that
they have there. `experiments.paper_tables` makes the page of all papers' tables of such files.
"""

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
    by_method,
    curves,
    read_evaluations,
    read_published,
    tops,
    write_evaluations,
)
from experiments.markdown import markdown_table
from fedjax_ht.configs.base import method_config
from fedjax_ht.core.files import atomic_open
from fedjax_ht.experiment.entries import folder_of
from fedjax_ht.report import plots
from fedjax_ht.report.table import NOTE, PARTICIPANTS, human_bytes, percent, rounds_of
from fedjax_ht.runner.cli import fail, parse_flags
from fedjax_ht.simulation.history import by_trial, evaluated, wire_bytes

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
    "run",
    "seed",
    "partition.seed",
    "trials",
    "compare",
    "entries",
    "given",
    "tuned",
    "tuned_on",
)
SAME_RESULT += ("dataset.data_dir", "checkpoint", "lanes", "devices", "client_store")


def leaves(config: Mapping, prefix: str = "") -> Iterator[tuple[str, str]]:
    """("training.epochs", "1") for every field of a nested config."""
    for key, value in config.items():
        path = prefix + key
        if path in SAME_RESULT:
            continue
        if isinstance(value, Mapping):
            yield from leaves(value, path + ".")
        else:
            yield path, value if isinstance(value, str) else json.dumps(value)


def find_runs(folder: Path, rounds: int | None = None, earlier: Sequence[Run] = ()) -> list[Run]:
    """Every trial below a folder, up to a round, in order of their paths, its method named by what
    sets it apart, from runs of an `earlier` table, too."""
    found = []
    for path in sorted(folder.rglob("metrics.jsonl")):
        if not (path.parent.parent / "config.json").exists():  # of a course that was set aside
            continue
        config = json.loads((path.parent.parent / "config.json").read_text())
        method, settings = settings_of(config, path.parent.name)
        with path.open() as file:
            history = [
                row for row in map(json.loads, file) if rounds is None or row["round"] <= rounds
            ]
        for trial in by_trial(history):
            seed = config["seed"] + trial[0]["trial"]
            found.append(Run(config["dataset"]["name"], method, seed, trial, settings))
    # Which settings tell an earlier table's runs of a method apart can be read off their names.
    names = {(run.dataset, *run.method.split()) for run in earlier}
    told = {
        (dataset, method, part.partition("=")[0])
        for dataset, method, *parts in names
        for part in parts
    }
    return [run._replace(method=" ".join([run.method, *apart(run, found, told)])) for run in found]


def settings_of(config: Mapping, folder: str) -> tuple[str, dict[str, str]]:
    """The method in a folder of a run, and what may change its numbers."""
    for entry in config.get("entries", ()):
        if folder_of(entry["label"]) == folder:
            own = {"method": {"name": entry["method"], "options": entry["options"]}}
            own |= {part: {**config[part], **entry[part]} for part in ("training", "model")}
            return entry["method"], dict(leaves({**config, **own}))
    return folder, dict(leaves(config))  # a run from before there were entries


def apart(run: Run, runs: Sequence[Run], told: Collection[tuple[str, str, str]] = ()) -> list[str]:
    """What sets a run apart, as "mu=0.0": where runs of this dataset and method differ, the
    method's options that are not at their defaults, and other settings that most of those runs do
    not share with it. Settings of local training, as "optimizer=adam", are held against all runs of
    the dataset. `told` are (dataset, method, option) in which runs of earlier tables differ."""
    beside = [r for r in runs if r.dataset == run.dataset]
    alike = [r for r in beside if r.method == run.method]
    defaults = dict(leaves(method_config(run.method).to_dict(), "method."))
    found = []
    for key, value in run.settings.items():
        others = beside if key.startswith("training.") else alike
        counts = Counter(r.settings.get(key, value) for r in others).most_common(2)
        name = key.rpartition(".")[2]
        if len(counts) == 1 and not (key in defaults and (run.dataset, run.method, name) in told):
            continue
        tied = len(counts) > 1 and counts[0][1] == counts[1][1]
        usual = defaults.get(key, None if tied else counts[0][0])
        if value != usual:
            found.append(f"{name}={value}")
    return found


def line(
    runs: Sequence[Run],
    published: Sequence[dict[str, str]],
    score: str,
    others: Sequence[str],
    theirs: str,
) -> list[str]:
    """The cells of one method on one dataset; `others` are scores shown beside, `theirs` the one
    that was published."""
    best, by_val = tops(runs, score), tops(runs, score, by="val_accuracy")
    spent = [
        row
        for run in runs
        for row in run.history
        if row["round"] > 0 and "uplink_payload_bytes" in row
    ]
    numbers = [row["accuracy"] or "no convergence" for row in published]
    known = [float(row["accuracy"]) for row in published if row["accuracy"]]
    same = tops(runs, theirs)
    ours = 100 * float(np.mean([row[theirs] for row in same])) if same else math.nan
    return [
        runs[0].method,
        percent(best, score),
        percent(by_val, score),
        percent([evaluated(run.history)[-1] for run in runs], score),
        *(percent(tops(runs, other), other) for other in others),
        rounds_of(best),
        str(len(runs)),
        ", ".join(dict.fromkeys(numbers)) or "-",
        f"{ours - known[0]:+.2f}" if known and same else "",
        human_bytes(np.mean([wire_bytes(row) for row in spent])) if spent else "-",
    ]


def markdown(
    runs: Sequence[Run],
    published: dict[tuple[str, str], list[dict[str, str]]],
    score: str,
    theirs: str | None = None,
) -> str:
    """A table a dataset, methods by falling score; `theirs` is the score that was published, the
    same unless given."""
    theirs = theirs or score
    parts = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        grouped = by_method([run for run in runs if run.dataset == dataset], score)
        titles = SHOWN | (SHOWN_BESIDE_GLOBAL if score == "global_accuracy_head" else {})
        others = [key for key in titles if key != score and differs(key, score, runs)]
        head = (
            "method",
            "ours %",
            "by validation %",
            "last round %",
            *(f"{titles[key]} %" for key in others),
        )
        of = titles.get(theirs, theirs) if theirs != score else ""
        head += (
            "best round",
            "seeds",
            "paper %",
            f"{of} - paper" if of else "difference",
            "bytes a round",
        )
        lines = [
            line(group, published.get((dataset, name), []), score, others, theirs)
            for name, group in grouped.items()
        ]
        lines.sort(key=lambda cells: -float(cells[1].split()[0]))
        parts.append(f"## {dataset}\n\n{markdown_table(head, lines)}")
    return "\n\n".join([*parts, *([NOTE] if differs(PARTICIPANTS, score, runs) else [])])


def differs(key: str, score: str, runs: Sequence[Run]) -> bool:
    """Whether any evaluation has another number there."""
    rows = (row for run in runs for row in run.history)
    return any(key in row and row[key] != row.get(score) for row in rows)


def main(_) -> None:
    for name, value in (("runs", _RUNS.value), ("out", _OUT.value)):
        if not value:
            fail(ValueError(f"no --{name}; see --help"))
    try:
        earlier = [run for path in _ALSO.value for run in read_evaluations(Path(path))]
        runs = earlier + find_runs(Path(_RUNS.value), _ROUNDS.value, earlier)
        published = read_published(_PUBLISHED.value)
    except FileNotFoundError as error:
        fail(error)
    if not any(tops([run], _SCORE.value) for run in runs):
        fail(ValueError(f"no run with a {_SCORE.value} below {_RUNS.value}"))
    out = Path(_OUT.value)
    write_evaluations(runs, out.with_suffix(".csv"))
    text = markdown(runs, published, _SCORE.value, _AS.value)
    with atomic_open(out.with_name(out.name + "_table.md")) as file:
        file.write(text + "\n")
    if _CURVES.value:
        plots.save(curves(runs, _SCORE.value), Path(_CURVES.value))
    print(text)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
