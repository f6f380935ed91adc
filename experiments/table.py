"""The short table at the end of a run."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_ht.core.history import Row, best, wire_bytes

COLUMNS = ("method", "accuracy %", "± clients", "weighted %", "best round", "last %", "worst 10 %")
COLUMNS += ("uplink", "downlink", "s/round")


def markdown(histories: Mapping[str, Sequence[Row]]) -> str:
    """One line a method. Accuracies are those of the best round on the test sets, "last" of the last round.

    Where clients hold validation sets, a second column of accuracy gives the test accuracy of the round that is best on
    validation. Uplink and downlink are means per round over all clients together; seconds leave out the first round
    of a process, which compiles.
    """
    with_val = any(best(history).on_val is not None for history in histories.values())
    columns = [*COLUMNS[:2], *(["by validation %"] if with_val else []), *COLUMNS[2:]]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for name, history in histories.items():
        found = best(history)
        top, rounds = found.on_test, history[1:]
        mean = lambda way, rows=rounds: float(np.mean([wire_bytes(r, way) for r in rows])) if rows else 0.0  # noqa: E731
        seconds = [r["seconds_round"] for r in rounds]
        cells = [
            name,
            f"{100 * top['accuracy']:.2f}",
            *([f"{100 * found.on_val['accuracy']:.2f} (round {found.on_val['round']})"] if found.on_val else []),
            f"{100 * top['accuracy_std']:.2f}",
            f"{100 * top['accuracy_weighted']:.2f}",
            str(top["round"]),
            f"{100 * found.last['accuracy']:.2f}",
            f"{100 * top['accuracy_worst10']:.2f}",
            human_bytes(mean("uplink")),
            human_bytes(mean("downlink")),
            f"{np.median(seconds):.2f}" if seconds else "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def human_bytes(count: float) -> str:
    """1536 -> "1.50 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
