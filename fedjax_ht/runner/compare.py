"""Compares methods: fedjax-ht compare --config=quickstart --methods=local,fedtgp.

One split (or one a trial, by the config's partition.per_trial), --trials seeds, the same for every method. A name is
the method as its paper has it; "fedproto:weight=3.0:training.learning_rate=0.05" has settings of its own, and
"fedtgp@tuned" those that somebody has chosen for the config (entries.py). The report says which had what.
--methods and --trials are the config's unless given. --fair=9 first searches nine settings of each method, by
validation (fair.py), and compares the best.
--target=0.8 asks what reaching that accuracy takes, --target_share=0.9 what nine tenths of the best accuracy do;
--target_score=accuracy_participants asks it of that score. The same command again goes on where the run stopped.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from fedjax_ht.io.files import atomic_open
from fedjax_ht.runner import plots
from fedjax_ht.runner.cli import fail
from fedjax_ht.runner.entries import described, entries_of
from fedjax_ht.runner.fair import fairly_tuned
from fedjax_ht.runner.main import chosen_workdir, configured, execute, orderly, report, tell
from fedjax_ht.runner.statistics import beside_first, write_trials
from fedjax_ht.runner.table import GLOBAL, NOTE, PARTICIPANTS, human_bytes, human_flops, tops_of
from fedjax_ht.runner.train import is_primary
from fedjax_ht.simulation.history import Row, best, by_trial, wire_bytes

_METHODS = flags.DEFINE_list(
    "methods", None, "What to compare, such as local,fedproto:weight=3.0,fedtgp@tuned; by default the config's."
)
_TRIALS = flags.DEFINE_integer("trials", None, "How many seeds each runs with; by default the config's.")
_FAIR = flags.DEFINE_integer("fair", None, "How many settings of each method to search first, by validation.")
_TARGET = flags.DEFINE_float("target", None, "An accuracy in (0, 1]; by default the lowest best accuracy.")
_SHARE = flags.DEFINE_float("target_share", None, "Instead: a share, in (0, 1], of the highest best accuracy.")
_OF = flags.DEFINE_string("target_score", "accuracy", "The score that the target is of, as in metrics.jsonl.")

EXPLANATION = """\
Accuracies are those of the best round on the test sets, mean and standard deviation over trials; of a model that the
server has, on all test samples and in its own best round. Bytes are those of all
clients, up and down, and FLOPs those of all clients' training, through the first evaluation at or above the target, as
means over the trials that got there. Seconds are of all trials together: the median round, and the whole run with
evaluation and compilation. One client's cost is counted as FedSSA and FedRAL do: the rounds to the target times what
one participant uploads (numbers of payload, one way) and computes in a round."""


class Cost(NamedTuple):
    """What it took.

    Attributes:
      rounds: until the target.
      bytes, flops: what all clients together sent and received, and computed in training.
      client_elements, client_flops: of one client that takes part in every round: the numbers it uploads, and computes.
    """

    rounds: float
    bytes: float
    flops: float
    client_elements: float
    client_flops: float


class Line(NamedTuple):
    """One method.

    Attributes:
      accuracy, accuracy_std: of the best rounds on the test sets, mean and standard deviation (of the population) over
        trials.
      best_rounds: of each trial.
      participants_accuracy: mean over trials of the highest accuracy of a round's participants; NaN without any.
      server_accuracy: mean over trials of the best of the server's own model; NaN without one.
      reached: how many trials reached the target.
      cost: their mean cost of getting there; None without any.
      seconds_per_round, seconds: of all trials together, the median round and the whole run.
    """

    accuracy: float
    accuracy_std: float
    best_rounds: list[int]
    participants_accuracy: float
    server_accuracy: float
    reached: int
    cost: Cost | None
    seconds_per_round: float
    seconds: float


def comparison(config: ConfigDict, methods: Sequence[str] | None, trials: int | None) -> ConfigDict:
    """A config that runs these entries, or without any the config's.

    Raises:
      ValueError: no entry, one given twice, or one that is wrong.
    """
    config = config.copy_and_resolve_references()
    if trials is not None:
        config.trials = trials
    if methods is None:
        return config
    if not methods or len(set(methods)) < len(methods):
        raise ValueError(f"--methods is {','.join(methods)!r}; it must name at least one method, and each once")
    config.entries = tuple(methods)
    entries_of(config)
    return config


def cost_to_reach(trial: Sequence[Row], target: float, score: str = "accuracy") -> Cost | None:
    """Of one trial's rows, through the first whose score is at or above the target; None if there is none."""
    reached = next((row["round"] for row in trial if row.get(score, -1) >= target), None)
    if reached is None:
        return None
    spent = [row for row in trial if 0 < row["round"] <= reached]
    # A run begun before FLOPs were counted has rows without.
    flops = [row.get("flops", math.nan) for row in spent]
    uploaded = [row["uplink_payload_elements"] / max(1, row["arrived"]) for row in spent]
    computed = [f / max(1, row["participants"]) for f, row in zip(flops, spent)]
    return Cost(reached, sum(map(wire_bytes, spent)), *map(math.fsum, (flops, uploaded, computed)))


def choose_target(
    histories: Mapping[str, Sequence[Row]], score: str, target: float | None, share: float | None
) -> tuple[float, str]:
    """The accuracy to reach, and where it comes from: `target` itself, `share` of the highest that any trial of any
    method has, or without both the highest that every trial of every method reaches.

    Raises:
      ValueError: a method has no such score.
    """
    tops = {name: tops_of(history, score) for name, history in histories.items()}
    for name, rows in tops.items():
        if not rows:
            raise ValueError(f"--target_score is {score!r}, which {name} does not have")
    if target is not None:
        return target, "as asked"
    bests = [row[score] for rows in tops.values() for row in rows]
    if share is not None:
        return share * max(bests), f"{share:.4g} of {100 * max(bests):.2f} %, the best of all trials"
    return min(bests), "the lowest best accuracy of all trials, which all reach"


def summarise(history: Sequence[Row], target: float, score: str = "accuracy") -> Line:
    """A method's line of the comparison."""
    trials = by_trial(history)
    tops = [best(trial).on_test for trial in trials]
    scores = [row["accuracy"] for row in tops]
    servers, drawn = tops_of(history, GLOBAL), tops_of(history, PARTICIPANTS)
    costs = [cost for trial in trials if (cost := cost_to_reach(trial, target, score)) is not None]
    return Line(
        float(np.mean(scores)),
        float(np.std(scores)),
        [row["round"] for row in tops],
        float(np.mean([row[PARTICIPANTS] for row in drawn])) if drawn else math.nan,
        float(np.mean([row[GLOBAL] for row in servers])) if servers else math.nan,
        len(costs),
        Cost(*map(float, np.mean(costs, axis=0))) if costs else None,
        float(np.median([row["seconds_round"] for row in trials[0] if row["round"] > 0])),
        math.fsum(row["seconds_round"] + row["seconds_evaluation"] for row in trials[0]),
    )


def markdown(lines: Mapping[str, Line], target: float, origin: str) -> str:
    """The table, with the target, where it comes from (`origin`), and what the columns mean."""
    aim = f"{100 * target:.2f} %"
    with_server = not all(math.isnan(line.server_accuracy) for line in lines.values())
    server = ["server's model %"] if with_server else []
    with_drawn = not all(math.isnan(line.participants_accuracy) for line in lines.values())
    columns = ["method", "accuracy %", *(["participants %"] if with_drawn else []), *server, "best round"]
    columns += [*(f"{what} to {aim}" for what in ("rounds", "bytes", "FLOPs")), "one client's uplink", "its FLOPs"]
    columns += ["s/round", "seconds"]
    rows = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for name, line in lines.items():
        trials = len(line.best_rounds)
        some = f" ({line.reached} of {trials} trials)" if line.reached < trials else ""
        cost, never = line.cost, ["not reached"] * 5
        cells = [
            name,
            f"{100 * line.accuracy:.2f}" + (f" ± {100 * line.accuracy_std:.2f}" if trials > 1 else ""),
            *([f"{100 * line.participants_accuracy:.2f}".replace("nan", "-")] if with_drawn else []),
            *([f"{100 * line.server_accuracy:.2f}".replace("nan", "-")] if with_server else []),
            ", ".join(map(str, line.best_rounds)),
            *(shown(cost, some) if cost else never),
            f"{line.seconds_per_round:.2f}",
            f"{line.seconds:.0f}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join([f"Target: {aim} ({origin}).", "", *rows, "", EXPLANATION, *(["", NOTE] if with_drawn else [])])


def shown(cost: Cost, some: str) -> list[str]:
    """The cells of a cost; `some` says how many trials it is of."""
    totals = [f"{cost.rounds:.4g}{some}", human_bytes(cost.bytes), human_flops(cost.flops)]
    return [*totals, f"{cost.client_elements:.4g}", human_flops(cost.client_flops)]


def write_csv(lines: Mapping[str, Line], target: float, path: Path) -> Path:
    """One row a method, shares in [0, 1]; empty where the target was not reached."""
    columns = ["method", "target", *(f for f in Line._fields if f != "cost"), *(f"{f}_to_target" for f in Cost._fields)]
    with atomic_open(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for name, line in lines.items():
            fields = line._asdict() | {"best_rounds": " ".join(map(str, line.best_rounds))}
            cost = fields.pop("cost") or [""] * len(Cost._fields)
            writer.writerow([name, target, *fields.values(), *cost])
    return path


def main(_) -> None:
    config, name = configured()
    try:
        config, score = comparison(config, _METHODS.value, _TRIALS.value), _OF.value
        for flag, value in (("target", _TARGET.value), ("target_share", _SHARE.value)):
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"--{flag} is {value}; it must be above 0 and at most 1")
        if _TARGET.value is not None and _SHARE.value is not None:
            raise ValueError("--target and --target_share are both given; one of them sets the target")
        if score not in ("accuracy", PARTICIPANTS):
            raise ValueError(f"--target_score is {score!r}; it must be accuracy or {PARTICIPANTS}")
    except ValueError as error:
        fail(error)
    workdir = chosen_workdir(f"{name}-compare" if _FAIR.value is None else f"{name}-fair{_FAIR.value}", config)

    def costs(histories: Mapping[str, Sequence[Row]]) -> tuple[dict[str, Line], float, str]:
        aim, origin = choose_target(histories, score, _TARGET.value, _SHARE.value)
        lines = {method: summarise(history, aim, score) for method, history in histories.items()}
        origin = origin if score == "accuracy" else f"{origin}, by the round's participants"
        return lines, aim, markdown(lines, aim, origin)

    with orderly(workdir):
        if _FAIR.value is not None:
            config = fairly_tuned(config, [entry.label for entry in entries_of(config)], _FAIR.value, workdir, tell)
        result = execute(config, workdir, tables=lambda histories: {"Results": costs(histories)[2]})
    if not is_primary():
        return
    asked = None if _FAIR.value else _METHODS.value
    histories = {label: result.histories[label] for label in asked or result.histories}
    lines, aim, table = costs(histories)
    text = "\n\n".join(filter(None, [table, beside_first(histories), described(entries_of(config))]))
    written = []
    try:
        if result.files:  # else the folder is read-only
            with atomic_open(workdir / "compare.md") as file:
                file.write(text + "\n")
            sheet = write_csv(lines, aim, workdir / "compare.csv")
            splits = [config.partition.seed + t * config.partition.per_trial for t in range(config.trials)]
            trials = write_trials(histories, config.seed, splits, workdir / "trials.csv")
            picture = workdir / "plots" / "compare.png"
            plots.save(plots.accuracy_and_bytes(histories, aim), picture, plots.VECTOR)
            written = [workdir / "compare.md", sheet, trials, picture, workdir / "report.html"]
    except OSError as error:
        fail(error, code=1)
    report(text, written)
