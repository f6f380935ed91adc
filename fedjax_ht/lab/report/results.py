"""The tables of a run: its entries' scores, costs until a target, bytes sent, and explanations."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.report import document
from fedjax_ht.lab.report.document import Column, Document, Paragraph, Table
from fedjax_ht.lab.report.rows import (
    ACCURACY,
    AUC,
    MACRO_F1,
    NAMES,
    PARTICIPANTS,
    Score,
    after_start,
    mean,
    rows_of_all,
    score_in,
    tops_of,
    values,
)
from fedjax_ht.lab.report.statistics import Gains
from fedjax_ht.simulation.history import best, merged, wire_bytes
from fedjax_ht.simulation.rows import NEW, History, Row, Runs, evaluated

NOTES = {
    "epsilon": """\
"epsilon": the privacy cost of all rounds, the largest of any client, at privacy.delta.""",
    "macro F1 %": """\
"macro F1": the mean F1 score of a client's classes, those of its test samples and predictions, \
or of all labels where samples have several, and then over clients, in the same round.""",
    "AUC %": """\
"AUC": the area under the ROC curve of a class against the others, in the same round. \
It is a mean over the classes of a client's test samples, and then over clients with two classes \
or more. It uses the scores that choose the predictions.""",
    "participants %": """\
"participants": the mean over a round's participants after their training, in its best round. \
FedSSA's code reports it. As a maximum over rounds and draws of participants, it is biased upwards \
(docs/results.md).""",
    "new clients": """\
"new clients": the score of clients that never train, in the best round of those that do.""",
}
"""Title of a column -> its meaning."""


def column_notes(titles: Sequence[str]) -> dict[str, Paragraph]:
    """Returns the notes on these columns by title; columns without a note are omitted."""
    return {title: Paragraph(note) for title, note in NOTES.items() if title in titles}


def explanation(score: Score, with_server: bool, several: bool) -> str:
    """Explains the columns of a comparison.

    Args:
      score: the score of its rows.
      with_server: True if there is a column for the server's own model.
      several: True if there are several trials.
    """
    accuracy = f"The {score.name} is that of the best round on the test sets"
    if score.key == "accuracy":
        accuracy = "Accuracies are those of the best round on the test sets"
    end = "above" if score.sign > 0 else "below"
    costs = (
        "Bytes are those of all clients, up and down, and FLOPs those of all clients' training, "
        f"through the first evaluation at or {end} the target"
    )
    seconds = "Seconds are the median round, and the whole run with evaluation and compilation"
    client = (
        "One client's cost is counted as FedSSA and FedRAL do: the rounds to the target times what "
        "one participant uploads (numbers of payload, one way) and computes in a round"
    )
    if several:
        accuracy += ", mean and standard deviation over trials"
        costs += ", as means over the trials that got there"
        seconds += ", of all trials together"
    if with_server:
        accuracy += "; of the server's own model, on all test samples and in its own best round"
    return f"{accuracy}. {costs}. {seconds}. {client}."


GLOBAL = "global_accuracy_head"  # of the server's own model
SERVER_F1, SERVER_AUC = "global_macro_f1_head", "global_auc_head"
BY_CLASS = "class_accuracy"
SECONDS = ("seconds_round", "seconds_evaluation")
STAGES = ("train", "score", "serve", "host")  # see `RoundReport.stages`


class Cost(NamedTuple):
    """The cost of reaching a target.

    Attributes:
      rounds: rounds until the target.
      bytes, flops: bytes sent and received, and FLOPs of training, by all clients together.
      client_elements, client_flops: numbers uploaded, and FLOPs computed, by one client that takes
        part in every round.
    """

    rounds: float
    bytes: float
    flops: float
    client_elements: float
    client_flops: float


class Scored(NamedTuple):
    """The rows of an entry's runs behind its row of a table.

    Attributes:
      runs: all rows.
      rounds: the rows of all runs, without those of the untrained federation.
      tops, lasts: each run's best and last evaluation.
      validated: each run's best round on validation sets, if there are any.
      reaching: the costs of the runs that reach the target of a comparison.
    """

    runs: Runs
    rounds: list[Row]
    tops: list[Row]
    lasts: list[Row]
    validated: list[Row]
    reaching: list[Cost]

    @property
    def cost(self) -> Cost | None:
        """The mean cost of the runs that reach the target; None without any."""
        return Cost(*np.mean(self.reaching, axis=0).tolist()) if self.reaching else None


def scored(runs: Runs, target: float = math.nan, of_target: Score = ACCURACY) -> Scored:
    """Selects the rows of an entry; `of_target` is the score of a comparison's target."""
    ends = [best(history) for history in runs if evaluated(history)]
    costs = [cost_to_reach(history, target, of_target) for history in runs]
    return Scored(
        runs,
        rounds=after_start(merged(runs)),
        tops=[each.on_test for each in ends],
        lasts=[each.last for each in ends],
        validated=[each.on_val for each in ends if each.on_val],
        reaching=[cost for cost in costs if cost is not None],
    )


def _mean(
    rows: Sequence[Row], key: str, score: Score = ACCURACY, spread: bool = True
) -> str | None:
    """Formats a mean score; None without rows, or if one of them lacks the score."""
    return score.of_trials(rows, key, spread) if rows and all(key in row for row in rows) else None


def _validated(score: Score, of: Scored) -> str | None:
    if not of.validated:
        return None
    return f"{score.of_trials(of.validated)} (round {document.rounds_of(of.validated)})"


def _seconds(key: str) -> Column:
    """Returns a column with the median of seconds over the rows that have them."""

    def write(_: str, of: Scored) -> str | None:
        numbers = values(of.rounds, key)
        return f"{np.median(numbers):.2f}" if numbers else None

    return write


def _epsilon(_: str, of: Scored) -> str | None:
    spent = values(of.rounds, "epsilon")
    return f"{max(spent):.3g}" if spent else None


def _simulated(_: str, of: Scored) -> str | None:
    # row 0, of the untrained federation, may be the best, and has no clock
    clocks = [row.get("simulated_clock", 0.0) for row in of.tops]
    return f"{np.mean(clocks):.4g}" if values(of.rounds, "simulated_clock") else None


def columns_of(score: Score, others: Sequence[str]) -> dict[str, Column]:
    """Returns title -> column of a run's table.

    A column formats an entry's cell, or returns None if the entry lacks the value. `others` are the
    further metrics of a task other than classification.
    """
    unit = score.unit
    return {
        "method": lambda label, _: label,
        f"{score.name}{unit}": lambda _, of: score.of_trials(of.tops),
        **{NAMES.get(x, x) + Score(x).unit: _mean_column(x) for x in others},
        f"by validation{unit}": lambda _, of: _validated(score, of),
        "new clients": lambda _, of: _mean(of.tops, NEW + score.key, score),
        "participants %": lambda _, of: _mean(tops_of(of.runs, PARTICIPANTS), PARTICIPANTS),
        "server's model %": lambda _, of: _mean(tops_of(of.runs, GLOBAL), GLOBAL),
        "± clients": lambda _, of: _mean(of.tops, f"{score.key}_std", score, spread=False),
        "weighted %": lambda _, of: _mean(of.tops, "accuracy_weighted"),
        "macro F1 %": lambda _, of: _mean(of.tops, MACRO_F1),
        "AUC %": lambda _, of: _mean(of.tops, AUC),
        "epsilon": _epsilon,
        "best round": lambda _, of: document.rounds_of(of.tops) or "-",
        f"last{unit}": lambda _, of: score.of_trials(of.lasts),
        "worst 10 %": lambda _, of: score.of_trials(of.tops, f"{score.key}_worst10"),
        "uplink": lambda _, of: document.human_bytes(mean_bytes(of.rounds, "uplink")),
        "downlink": lambda _, of: document.human_bytes(mean_bytes(of.rounds, "downlink")),
        "FLOPs": lambda _, of: document.human_flops(mean_of_all(of.rounds, "flops")),
        "s/round": _seconds("seconds_round"),
        **{f"{stage} s": _seconds(f"seconds_{stage}") for stage in STAGES},
        "simulated s to best": _simulated,
    }


def _mean_column(key: str) -> Column:
    """Returns the column of a metric's mean over trials, for entries whose rows all have it."""
    return lambda _, of: _mean(of.tops, key, Score(key), spread=False)


def _importance(score: Score) -> tuple[str, ...]:
    unit = score.unit
    return (
        *(f"{score.name}{unit}", "epsilon", "server's model %", f"last{unit}", "best round"),
        "uplink",
        *("s/round", f"by validation{unit}", "new clients", "worst 10 %", "macro F1 %", "AUC %"),
        *("participants %", "downlink", "FLOPs", "simulated s to best"),
    )


def run_results(histories: Mapping[str, Runs], winner: str | None = None) -> Document:
    """Makes the table of a run, one row per entry, and explains its columns.

    Accuracies are those of the best round on the test sets, and "last" of the last round. Several
    trials have means with the (population) standard deviation, and the best round of each. Columns
    without any value are omitted: "by validation", the test accuracy in the best round on
    validation sets; the clients that never train, in the best round of the others; "participants",
    see `column_notes`; the server's own model on all test samples, in its own best round; seconds
    by stage; the devices' seconds until the best round. Traffic and FLOPs are means per round over
    all clients together; seconds are those of the median round, of all trials together.

    Args:
      histories: label of an entry -> its runs.
      winner: label of the entry whose accuracy a page highlights.
    """
    rows, score = [(label, scored(runs)) for label, runs in histories.items()], score_in(histories)
    others = further_metrics(histories, score)
    table = document.columns_table(columns_of(score, others), rows, _importance(score), winner)
    folded = []
    for title, note in column_notes(table.head).items():
        folded.append(Document([note], f'What "{title.removesuffix(" %")}" means'))
    return Document([table, *folded])


def further_metrics(histories: Mapping[str, Runs], score: Score) -> list[str]:
    """Returns the names of a task's metrics, except its score, with pooled values in the rows."""
    names = dict.fromkeys(itertools.chain(*rows_of_all(histories)))
    shown = {score.key, MACRO_F1, AUC}  # the latter two have columns of their own
    return [name for name in names if f"{name}_pooled" in names and name not in shown]


def mean_bytes(rows: Sequence[Row], *ways: str) -> float:
    """Returns the mean of `wire_bytes` over rows; 0 without rows."""
    return mean([wire_bytes(row, *ways) for row in rows], 0.0)


def mean_of_all(rows: Sequence[Row], key: str) -> float:
    """Returns the mean of a value over rows; NaN unless all of them have it."""
    return mean([row.get(key, math.nan) for row in rows], math.nan)


def class_table(histories: Mapping[str, Runs], class_names: Sequence[str]) -> Table:
    """Makes a table of the accuracy by class, in percent, in each entry's best round.

    Accuracies cover all clients' test samples, and are means over trials; "-" if no client has any.
    Entries whose rows lack them are omitted; without any entry, the table has no rows.
    """
    columns = {}
    for label, runs in histories.items():
        tops = [best(history).on_test for history in runs if evaluated(history)]
        of_runs = [row[BY_CLASS] for row in tops if BY_CLASS in row]
        if of_runs:
            columns[label] = np.array(of_runs, np.float64)  # None becomes NaN
    rows = []
    for number, name in enumerate(class_names if columns else ()):
        cells = [percents[:, number] for percents in columns.values()]
        rows.append([name, *(_mean_percent(of_class) for of_class in cells)])
    return Table(["class", *columns], rows)


def _mean_percent(shares: np.ndarray) -> str:
    known = shares[~np.isnan(shares)]
    return f"{100 * np.mean(known):.1f}" if len(known) else "-"


UPLINK = "numbers in one client's uplinks"
FLOPS = "one client's FLOPs"


class Aim(NamedTuple):
    """The target up to which a comparison counts costs.

    Attributes:
      score: "accuracy" for the task's own score, or `PARTICIPANTS`.
      target, share: arguments of `choose_target`.
    """

    score: str = "accuracy"
    target: float | None = None
    share: float | None = None


def check_aim(aim: Aim, score: Score) -> None:
    """Raises a one-line ValueError unless runs with this score can reach the aim."""
    _, target, share = aim
    if target is not None and share is not None:
        raise ValueError("--target and --target_share are both given; one of them sets the target")
    if score.sign < 0 and (share is not None or aim.score != "accuracy"):
        raise ValueError("--target_share and --target_score are for accuracies; give --target")
    if score != ACCURACY and aim.score == PARTICIPANTS:
        raise ValueError(
            f"--target_score is {PARTICIPANTS!r}, but these data are scored by {score.name}; "
            "remove the flag"
        )
    if not score.is_share and target is not None and not 0 < target < math.inf:
        raise ValueError(f"--target is {target}; it must be a finite {score.name} above 0")
    for flag, value in (("target", target), ("target_share", share)):
        if score.is_share and value is not None and not 0 < value <= 1:
            raise ValueError(f"--{flag} is {value}; it must be above 0 and at most 1")


def cost_to_reach(history: History, target: float, score: Score = ACCURACY) -> Cost | None:
    """Sums the costs of a run's rounds until its score reaches the target; None if it does not."""
    through = rows_through(history, target, score)
    if not through:
        return None
    rounds = after_start(through)
    # Runs from before FLOPs were counted have rows without them.
    flops = [row.get("flops", math.nan) for row in rounds]
    uploaded = [row["uplink_payload_elements"] / max(1, row["arrived"]) for row in rounds]
    computed = [count / max(1, row["participants"]) for count, row in zip(flops, rounds)]
    return Cost(
        rounds=through[-1]["round"],
        bytes=sum(map(wire_bytes, rounds)),
        flops=math.fsum(flops),
        client_elements=math.fsum(uploaded),
        client_flops=math.fsum(computed),
    )


def rows_through(history: History, target: float, score: Score) -> History:
    """Returns a run's rows through the first whose score reaches the target; none if none does."""
    for i, row in enumerate(history):
        if score.key in row and score.sign * (row[score.key] - target) >= 0:
            return history[: i + 1]
    return []


def choose_target(
    histories: Mapping[str, Runs], score: Score, target: float | None, share: float | None
) -> tuple[float, str]:
    """Returns the score to reach, and a description of its origin.

    Args:
      histories: label of an entry -> its runs.
      score: the score.
      target: the value itself; an accuracy is in (0, 1].
      share: the value as a share, in (0, 1], of the highest score of any trial of any entry.
        Without both, it is the best score that every trial of every entry reaches.

    Raises:
      ValueError: an entry has no such score.
    """
    bests = []
    for label, runs in histories.items():
        tops = tops_of(runs, score.key)
        if not tops:
            raise ValueError(f"--target_score is {score.key!r}, which {label} does not have")
        bests += values(tops, score.key)
    if target is not None:
        return target, "as asked"
    if share is not None:
        highest = max(bests)
        text = f"{score.text(highest)}{score.unit}"
        return share * highest, f"{share:.4g} of {text}, the best of all trials"
    worst = min(bests, key=lambda value: score.sign * value)
    end = "lowest" if score.sign > 0 else "highest"
    return worst, f"the {end} best {score.name} of all trials, which all reach"


def costs(
    histories: Mapping[str, Runs], aim: Aim, winner: str | None = None
) -> tuple[dict[str, Scored], float, Document]:
    """Compares a run's entries by their costs until a target.

    Returns label -> its rows and costs, the target (an accuracy is in [0, 1]), and both as a text
    with a table and the meaning of its columns. A page highlights the score of `winner`.

    Raises:
      ValueError: an entry has no such score.
    """
    score = score_in(histories)
    of_target = score if aim.score == "accuracy" else Score(aim.score)
    target, origin = choose_target(histories, of_target, aim.target, aim.share)
    entries = {label: scored(runs, target, of_target) for label, runs in histories.items()}
    if aim.score == PARTICIPANTS:
        origin += ", by the round's participants"
    title, reached = f"{score.name}{score.unit}", f"{score.text(target)}{score.unit}"
    of_run = columns_of(score, ())
    shared = ("method", title, *NOTES, "server's model %", "best round")
    until: dict[str, Column] = {
        f"rounds to {reached}": _rounds,
        f"bytes to {reached}": _until("bytes", document.human_bytes),
        f"FLOPs to {reached}": _until("flops", document.human_flops),
    }
    columns: dict[str, Column] = {
        **{name: of_run[name] for name in shared},
        **until,
        UPLINK: _until("client_elements", document.human_count),
        FLOPS: _until("client_flops", document.human_flops),
        "s/round": of_run["s/round"],
        "seconds": lambda _, of: f"{seconds_of(of.runs):.0f}",
    }
    important = [title, "epsilon", "server's model %", *until, "s/round", "best round"]
    table = document.columns_table(columns, entries.items(), important, winner)
    several = any(len(of.runs) > 1 for of in entries.values())
    meaning = Paragraph(explanation(score, "server's model %" in table.head, several))
    notes = [meaning, *column_notes(table.head).values()]
    target_line = Paragraph(f"Target: {reached} ({origin}).")
    text = Document([target_line, table, Document(notes, "What the columns mean")])
    return entries, target, text


def seconds_of(runs: Runs) -> float:
    """Returns the seconds of an entry; each run's rows have those of all its runs together."""
    return math.fsum(row.get(key, 0.0) for row in runs[0] for key in SECONDS)


def _until(field: str, write: Callable[[float], str]) -> Column:
    """Returns the column of a cost until the target."""
    return lambda _, of: "not reached" if of.cost is None else write(getattr(of.cost, field))


def _rounds(_: str, of: Scored) -> str | None:
    rounds, trials = _until("rounds", "{:.4g}".format)(_, of), len(of.runs)
    reached = len(of.reaching)
    return f"{rounds} ({reached} of {trials} trials)" if 0 < reached < trials else rounds


def write_csv(
    entries: Mapping[str, Scored],
    target: float,
    path: Path,
    *,
    gains: Mapping[str, Gains] | None = None,
    score: Score = ACCURACY,
) -> Path:
    """Writes a row per entry, shares in [0, 1]; cells of an unreached target are empty.

    Args:
      entries: label of an entry -> its rows and costs.
      target: the score up to which costs are counted; an accuracy is in [0, 1].
      path: path of the CSV.
      gains: label of an entry -> its clients' gains, in columns gain_...; cells of other entries
        are empty. Without gains there are no such columns.
      score: the score of the rows, whose name replaces "accuracy".
    """
    rows = []
    for label, of in entries.items():
        row = {"method": label, "target": target, **cells_of(of, score)}
        cost = of.cost or [""] * len(Cost._fields)
        row |= {f"{field}_to_target": value for field, value in zip(Cost._fields, cost)}
        if gains:
            gain = gains.get(label, [""] * len(Gains._fields))
            row |= {f"gain_{field}": value for field, value in zip(Gains._fields, gain)}
        rows.append(row)
    write_whole(path, Table(list(rows[0]), [list(map(str, row.values())) for row in rows]).csv())
    return path


def cells_of(of: Scored, score: Score) -> dict[str, Any]:
    """Returns an entry's scores and seconds by the names of compare.csv.

    They are means over trials; NaN if unknown, as in rows of an earlier version.
    """
    scores, of_server = values(of.tops, score.key), tops_of(of.runs, GLOBAL)
    of_participants = values(tops_of(of.runs, PARTICIPANTS), PARTICIPANTS)
    return {
        score.key: float(np.mean(scores)),
        f"{score.key}_std": float(np.std(scores)),
        MACRO_F1: mean_of_all(of.tops, MACRO_F1),
        AUC: mean_of_all(of.tops, AUC),
        "best_rounds": " ".join(map(str, values(of.tops, "round"))),
        "participants_accuracy": mean(of_participants, math.nan),
        "server_accuracy": mean(values(of_server, GLOBAL), math.nan),
        "server_macro_f1": mean_of_all(of_server, SERVER_F1),
        "server_auc": mean_of_all(of_server, SERVER_AUC),
        "reached": len(of.reaching),
        "seconds_per_round": float(np.median(values(of.rounds, "seconds_round"))),
        "seconds": seconds_of(of.runs),
    }
