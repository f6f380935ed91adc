"""Messages about trouble in a run's rounds: non-finite results, outlying uploads, and silence."""

import operator
from collections.abc import Hashable, Iterator, Sequence

from fedjax_ht.check.names import listed_clients
from fedjax_ht.lab.report.rows import reporting, values
from fedjax_ht.simulation.history import merged
from fedjax_ht.simulation.rows import Row, Runs
from fedjax_ht.simulation.runs import silent

MOST_NAMED = 3
"""Maximum number of outlying uploads that a message about a round names."""


def why_silent(name: str, runs: Runs, rounds: int | None) -> str | None:
    """Explains in one line why an entry stopped; None if any run still received uploads.

    It names the round since which nothing has arrived, and outlying uploads before it.

    Args:
      name: the entry's label.
      runs: the entry's runs.
      rounds: number of consecutive rounds without uploads after which runs stop; None for no limit.
    """
    if not rounds or not all(silent(history, rounds) for history in runs):
        return None
    rows = merged(runs)
    last = max(values(reporting(rows, "arrived"), "round"), default=0)
    accepted, suspects = "finite", ""
    for row in rows:
        if row.get("late") and row["round"] > last:
            accepted = "finite and in time"
        if row.get("far_off") and row["round"] <= last:
            suspects = f"; outlying uploads in round {row['round']}: {outliers(row['far_off'])}"
    return (
        f"{name} stopped in round {rows[-1]['round']}: since round {last} nothing has arrived "
        f"that is {accepted}{suspects}; "
        "raise give_up to continue, or set robust to defend the server"
    )


def outliers(far_off: Sequence[tuple[int, float]], most: int = MOST_NAMED) -> str:
    """Lists clients with the size of their uploads.

    For example "client 2 (21.8x the median norm), client 15 (14.8x)".

    Args:
      far_off: (id, factor) of each client, see `trust.outliers.size_ratios`.
      most: maximum number of clients, those with the largest factors.
    """
    by_factor = operator.itemgetter(1)
    # sorted() is stable: equal factors stay in the order of ids.
    largest = sorted(far_off, key=by_factor, reverse=True)[:most]
    names, unit = [], " the median norm"
    for client, factor in sorted(largest):
        names.append(f"client {int(client)} ({factor:.3g}x{unit})")
        unit = ""  # only the first client names the unit
    if len(far_off) > most:
        names.append(f"and {len(far_off) - most} more")
    return ", ".join(names)


TROUBLES = {
    "not_finite": "not finite, excluded from the round: {}",
    "server_finite": "the server's step was not finite; its last state was kept",
    "far_off": "outlying uploads: {}",
    "refused": "outlying uploads refused, by refuse_outliers: {}",
    "miscounted": "uploads refused, with counts beyond their samples: {}",
}
"""Field of a row -> the message about its clients."""


def clients_of(row: Row, key: str) -> list[int]:
    """Returns the ids of the clients in a field of `TROUBLES`; [0] for the server."""
    if key == "server_finite":
        return [] if row.get(key, True) else [0]
    if key == "far_off":
        return [int(client) for client, _ in row.get(key, ())]
    return list(row.get(key, ()))


class Notes:
    """Notes on faults in the rounds of a run, once per client, trial and kind."""

    def __init__(self):
        self.noted: set[Hashable] = set()

    def of(self, label: str, row: Row) -> list[str]:
        """Returns a message for each kind of trouble that is new in a row; mostly none."""
        lines = []
        for key, text in TROUBLES.items():
            new = []
            for client in clients_of(row, key):
                note = label, row["trial"], key, client
                if note not in self.noted:
                    self.noted.add(note)
                    new.append(client)
            if not new:
                continue
            names = listed_clients(new, None)
            if key == "far_off":
                names = outliers([pair for pair in row[key] if int(pair[0]) in new], len(new))
            lines.append(text.format(names))
        return lines


def in_rounds(rows: Sequence[Row]) -> str:
    """Counts the distinct rounds of rows of all runs: "in 2 rounds"."""
    count = len(set(values(rows, "round")))
    return f"in {count} rounds" if count > 1 else "in 1 round"


def troubles(runs: Runs) -> Iterator[str]:
    """Yields a message for each kind of trouble in an entry's rounds, over all its runs."""
    for key, text in TROUBLES.items():
        rows = [row for row in merged(runs) if clients_of(row, key)]
        if not rows:
            continue
        clients = sorted({client for row in rows for client in clients_of(row, key)})
        first = rows[0]
        place = f"{in_rounds(rows)}, first in round {first['round']} (trial {first['trial']})"
        factors = f": {outliers(first[key])}" if key == "far_off" else ""
        yield f"{text.format(listed_clients(clients, None))}; {place}{factors}"


def place_of(label: str, row: Row, trials: int) -> str:
    """Names an entry's round, and its trial if there are several."""
    if trials > 1:
        label += f", trial {row['trial']}"
    return f"{label}, round {row['round']}"
