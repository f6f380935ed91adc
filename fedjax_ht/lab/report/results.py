"""The tables of a run: the accuracies of its entries, the bytes that they sent, and the meaning of
columns."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_ht.lab.report.document import (
    Block,
    Document,
    Folded,
    Paragraph,
    Table,
    human_bytes,
    human_flops,
    percent,
    rounds_of,
    table_of,
)
from fedjax_ht.lab.report.rows import after_start, has_clock, mean, reporting, tops_of, values
from fedjax_ht.simulation.history import best, merged, wire_bytes
from fedjax_ht.simulation.rows import Row, Runs, evaluated

PARTICIPANTS_NOTE = """\
"participants": the mean over one round's participants, freshly trained, in the round where it is \
highest. FedSSA's code reports this score; as a maximum over rounds and over draws of participants \
it is biased upwards (docs/results.md)."""

NOTES = {
    "macro F1 %": """\
"macro F1": of a client the mean of the F1 of the classes that its test samples or its predictions \
have, in the round of the accuracy beside it; as a mean over clients.""",
    "AUC %": """\
"AUC": of a client the mean, over the classes of its test samples, of the area under the ROC curve \
of the class against the others, by the scores that predictions are chosen by, in the round of the \
accuracy beside it; as a mean over the clients with test samples of two classes or more.""",
    "participants %": PARTICIPANTS_NOTE,
}
"""Title of a column -> its meaning."""


def column_notes(titles: Sequence[str]) -> dict[str, Paragraph]:
    """Returns the notes on those of the columns that have one, by title."""
    return {title: Paragraph(note) for title, note in NOTES.items() if title in titles}


def explanation(with_server: bool, several: bool) -> str:
    """Explains the columns of a comparison.

    Args:
      with_server: True if there is a column of the server's own model.
      several: True if there are several trials.
    """
    accuracy = "Accuracies are those of the best round on the test sets"
    costs = (
        "Bytes are those of all clients, up and down, and FLOPs those of all clients' training, "
        "through the first evaluation at or above the target"
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
PARTICIPANTS = "accuracy_participants"
MACRO_F1, AUC, BY_CLASS = "macro_f1", "auc", "class_accuracy"
STAGES = ("train", "score", "serve", "host")  # see `RoundReport.stages`
TITLES = (
    "method",
    "accuracy %",
    "by validation %",
    "participants %",
    "server's model %",
    "± clients",
    "weighted %",
    "macro F1 %",
    "AUC %",
    "best round",
    "last %",
    "worst 10 %",
    "uplink",
    "downlink",
    "FLOPs",
    "s/round",
    "train s",
    "score s",
    "serve s",
    "host s",
    "simulated s to best",
)
IMPORTANCE = (
    "accuracy %",
    "server's model %",
    "last %",
    "best round",
    "uplink",
    "s/round",
    "by validation %",
    "worst 10 %",
    "macro F1 %",
    "AUC %",
    "participants %",
    "downlink",
    "FLOPs",
    "simulated s to best",
)


def run_results(histories: Mapping[str, Runs], winner: str | None = None) -> Document:
    """Makes the table of a run, one row an entry, and the meaning of its columns.

    Accuracies are those of the best round on the test sets, "last" of the last round; of several
    trials means, with the standard deviation (of the population) behind them, and the best round of
    each. A column that no entry has a value for is left out: "by validation", the test accuracy in
    the round that is best on validation sets; "participants", see `column_notes`; the server's own
    model on all test samples, in its own best round; seconds by stage; the devices' seconds until
    the best round. Traffic and FLOPs are means per round over all clients together; seconds are
    those of the median round, of all trials together.

    Args:
      histories: label of an entry -> its runs.
      winner: label of the entry whose accuracy a page highlights.
    """
    rows = list(map(run_cells, histories, histories.values()))
    table = table_of(rows, TITLES, IMPORTANCE, winner)
    blocks: list[Block] = [table]
    for title, note in column_notes(table.head).items():
        blocks.append(Folded(f'What "{title.removesuffix(" %")}" means', [note]))
    return Document(blocks)


def run_cells(label: str, runs: Runs) -> dict[str, str]:
    """Returns an entry's cells of the table of a run, by title."""
    ends = [best(history) for history in runs if evaluated(history)]
    tops, lasts = [each.on_test for each in ends], [each.last for each in ends]
    validated = [each.on_val for each in ends if each.on_val]
    rounds = after_start(merged(runs))
    cells = {"method": label, "accuracy %": percent(tops, "accuracy")}
    if validated:
        chosen = percent(validated, "accuracy")
        cells["by validation %"] = f"{chosen} (round {rounds_of(validated)})"
    shown = {
        "participants %": (PARTICIPANTS, tops_of(runs, PARTICIPANTS)),
        "server's model %": (GLOBAL, tops_of(runs, GLOBAL)),
        "macro F1 %": (MACRO_F1, _all_with(tops, MACRO_F1)),
        "AUC %": (AUC, _all_with(tops, AUC)),
    }
    for title, (score, rows) in shown.items():
        if rows:
            cells[title] = percent(rows, score)
    cells |= {
        "± clients": percent(tops, "accuracy_std", spread=False),
        "weighted %": percent(tops, "accuracy_weighted"),
        "best round": rounds_of(tops) or "-",
        "last %": percent(lasts, "accuracy"),
        "worst 10 %": percent(tops, "accuracy_worst10"),
        "uplink": human_bytes(mean_bytes(rounds, "uplink")),
        "downlink": human_bytes(mean_bytes(rounds, "downlink")),
        "FLOPs": mean_flops(rounds),
        "s/round": median(rounds, "seconds_round"),
    }
    for stage in STAGES:
        if values(rounds, f"seconds_{stage}"):
            cells[f"{stage} s"] = median(rounds, f"seconds_{stage}")
    if has_clock({label: runs}):
        # The untrained federation of row 0, which may be best, has no clock.
        clocks = [row.get("simulated_clock", 0.0) for row in tops]
        cells["simulated s to best"] = f"{np.mean(clocks):.4g}"
    return cells


def _all_with(rows: Sequence[Row], score: str) -> Sequence[Row]:
    """Returns the rows if all of them have the score, else none."""
    return rows if all(score in row for row in rows) else []


def mean_bytes(rows: Sequence[Row], *ways: str) -> float:
    """Returns the mean of `wire_bytes` over rows; 0 without rows."""
    return mean([wire_bytes(row, *ways) for row in rows], 0.0)


def mean_flops(rows: Sequence[Row]) -> str:
    """Formats the mean FLOPs of a round; "-" where a row has none, as of an early version."""
    return human_flops(mean([row.get("flops", math.nan) for row in rows], math.nan))


def median(rows: Sequence[Row], key: str) -> str:
    """Formats the median over the rows that have the key; "-" where no row has."""
    numbers = values(rows, key)
    return f"{np.median(numbers):.2f}" if numbers else "-"


def sent(histories: Mapping[str, Runs]) -> Table:
    """Makes a table of what each entry sent, payload and metadata: means per round over rounds and
    trials, of all clients together and of one whose uplink arrived; and a trial's whole run."""
    head = ["entry", "up a round", "down a round", "up, one client", "the whole run"]
    rows = []
    for label, runs in histories.items():
        rounds = after_start(merged(runs))
        arrived = reporting(rounds, "arrived")
        uplinks = [wire_bytes(row, "uplink") / row["arrived"] for row in arrived]
        counts = [
            mean_bytes(rounds, "uplink"),
            mean_bytes(rounds, "downlink"),
            mean(uplinks, 0.0),
            math.fsum(map(wire_bytes, rounds)) / len(runs),
        ]
        rows.append([label, *map(human_bytes, counts)])
    return Table(head, rows)


def class_table(histories: Mapping[str, Runs], class_names: Sequence[str]) -> Table:
    """Makes a table of the accuracy on all clients' test samples of each class, in percent, in each
    entry's best round, mean over trials; "-" where no client has any. Entries whose rows do not
    have it are left out, and without any there are no rows."""
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
