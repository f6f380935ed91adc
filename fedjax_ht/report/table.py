"""The short table at the end of a run."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_ht.simulation.history import (
    Row,
    best,
    best_by,
    by_trial,
    evaluated,
    has_clock,
    wire_bytes,
)

COLUMNS = ("method", "accuracy %", "± clients", "weighted %", "best round", "last %", "worst 10 %")
COLUMNS += ("uplink", "downlink", "FLOPs", "s/round")
GLOBAL = "global_accuracy_head"  # of a model that the server has
STAGES = ("train", "score", "serve", "host")  # see `RoundReport.stages`
PARTICIPANTS = "accuracy_participants"
NOTE = """\
"participants": the mean over one round's participants, freshly trained, in the round where it is \
highest. FedSSA's
code reports this score; as a maximum over rounds and over who was drawn it is biased upwards \
(docs/results.md)."""


def markdown(histories: Mapping[str, Sequence[Row]]) -> str:
    """One line a method. Accuracies are those of the best round on the test sets, "last" of the
    last round.

    Several trials: means over them, with the standard deviation (of the population) behind the
    accuracies, and the best round of each. Where clients hold validation sets, a second column of
    accuracy gives the test accuracy of the round that is best on validation; then the participants'
    accuracy in the round where it is highest, see NOTE; where a server has a model, one more gives
    that model's on all test samples, in its own best round. Uplink, downlink and FLOPs (of the
    clients, see `fedjax_ht.metrics.flops`) are means per round over all clients together; seconds
    are the median round, of all trials together, by stage where they were measured. Where devices
    are simulated, their seconds until the best round follow.
    """
    found = {
        name: [best(t) for t in by_trial(history) if evaluated(t)]
        for name, history in histories.items()
    }
    with_val = any(b.on_val is not None for trials in found.values() for b in trials)
    servers = {name: tops_of(history, GLOBAL) for name, history in histories.items()}
    drawn = {name: tops_of(history, PARTICIPANTS) for name, history in histories.items()}
    columns = [*COLUMNS[:2], *(["by validation %"] if with_val else [])]
    columns += ["participants %"] if any(drawn.values()) else []
    columns += [*(["server's model %"] if any(servers.values()) else []), *COLUMNS[2:]]
    stages = [
        name
        for name in STAGES
        if any(f"seconds_{name}" in row for rows in histories.values() for row in rows)
    ]
    columns += [f"{name} s" for name in stages]
    columns += ["simulated s to best"] if (timed := has_clock(histories)) else []
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for name, trials in found.items():
        rounds = [row for row in histories[name] if row["round"] > 0]
        tops, lasts = [b.on_test for b in trials], [b.last for b in trials]
        by_val = [b.on_val for b in trials if b.on_val is not None]

        def mean(way, rows=rounds):
            return float(np.mean([wire_bytes(r, way) for r in rows])) if rows else 0.0

        # a run begun before they were counted has none
        flops = [r.get("flops", math.nan) for r in rounds]
        cells = [
            name,
            percent(tops, "accuracy"),
            *(
                [f"{percent(by_val, 'accuracy')} (round {rounds_of(by_val)})" if by_val else "-"]
                if with_val
                else []
            ),
            *([percent(drawn[name], PARTICIPANTS)] if any(drawn.values()) else []),
            *([percent(servers[name], GLOBAL)] if any(servers.values()) else []),
            percent(tops, "accuracy_std", spread=False),
            percent(tops, "accuracy_weighted"),
            rounds_of(tops) or "-",
            percent(lasts, "accuracy"),
            percent(tops, "accuracy_worst10"),
            human_bytes(mean("uplink")),
            human_bytes(mean("downlink")),
            human_flops(np.mean(flops)) if flops else "-",
            *(median(rounds, f"seconds_{name}") for name in ("round", *stages)),
            *(
                [f"{np.mean([top.get('simulated_clock', 0.0) for top in tops]):.4g}"]
                if timed
                else []
            ),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, *(["", NOTE] if any(drawn.values()) else [])])


def median(rows: Sequence[Row], key: str) -> str:
    """Of those that have the key; "-" without any."""
    values = [row[key] for row in rows if key in row]
    return f"{np.median(values):.2f}" if values else "-"


def sent(histories: Mapping[str, Sequence[Row]]) -> str:
    """What each entry sent, payload and metadata: means per round over rounds and trials, of all
    clients together and of one whose uplink arrived; and a trial's whole run. A table in
    Markdown."""
    lines = [
        "| entry | up a round | down a round | up, one client | the whole run |",
        "|---|---|---|---|---|",
    ]
    for name, history in histories.items():
        rounds = [row for row in history if row["round"] > 0]

        def mean(*ways, rows=rounds):
            return float(np.mean([wire_bytes(r, *ways) for r in rows])) if rows else 0.0

        one = [wire_bytes(row, "uplink") / row["arrived"] for row in rounds if row.get("arrived")]
        whole = math.fsum(map(wire_bytes, rounds)) / len(by_trial(history))
        cells = [mean("uplink"), mean("downlink"), np.mean(one) if one else 0.0, whole]
        lines.append(f"| {name} | {' | '.join(map(human_bytes, cells))} |")
    return "\n".join(lines)


def tops_of(history: Sequence[Row], score: str) -> list[Row]:
    """Each trial's row in which a score is highest; [] where none has it."""
    return [row for trial in by_trial(history) if (row := best_by(trial, score)) is not None]


def percent(rows: Sequence[Row], key: str, spread: bool = True) -> str:
    """A mean over trials, with its standard deviation where there are several: "80.44 ± 0.60"; "-"
    without any."""
    if not rows:
        return "-"
    values = [100 * row[key] for row in rows]
    return f"{np.mean(values):.2f}" + (
        f" ± {np.std(values):.2f}" if spread and len(values) > 1 else ""
    )


def rounds_of(rows: Sequence[Row]) -> str:
    """The round of each trial."""
    return ", ".join(str(row["round"]) for row in rows)


def human_flops(count: float) -> str:
    """1.5e9 -> "1.50 GFLOP"; NaN -> "-"."""
    if math.isnan(count):
        return "-"
    text = human_count(count)
    return f"{text}FLOP" if text[-1].isalpha() else f"{text} FLOP"


def human_count(count: float) -> str:
    """1.5e9 -> "1.50 G", 250 -> "250"."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if count < 1000 or unit == "P":
            return f"{count:.2f} {unit}" if unit else f"{count:.0f}"
        count /= 1000
    raise AssertionError("unreachable")


def human_bytes(count: float) -> str:
    """1536 -> "1.50 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
