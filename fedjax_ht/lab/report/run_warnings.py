"""Warnings that stand beside the result of a run."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedjax_ht.lab.report.bad_clients import named, outliers
from fedjax_ht.lab.report.compared import Compared, unequal_lines
from fedjax_ht.lab.report.plots import evaluated_ids, mean_of_clients
from fedjax_ht.lab.report.rows import reporting, values
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.history import merged
from fedjax_ht.simulation.rows import Row, Runs

FAR = 3  # Tukey's "far out", in lengths of the box
LEAST_POINTS = 5.0  # percentage points that a client must be outside the box
WASTED = 0.3  # share of lanes' steps
FALL = 0.03  # of accuracy, from the best round to the last
MOST_NAMED = 5  # clients


def to_watch(shown: Compared) -> list[str]:
    """Returns the lines that a reader of a result should not miss: how rows are unequal, and
    `warnings`."""
    return [*unequal_lines(shown.unequal), *warnings(shown.histories)]


def warnings(histories: Mapping[str, Runs]) -> list[str]:
    """Returns a line for each trouble of the entries' rounds."""
    lines = []
    for label, runs in histories.items():
        for check in (*TROUBLES, idle_lanes, far_clients, falls):
            for line in check(runs):
                lines.append(f"{label}: {line}")
    return lines


def events(runs: Runs, key: str) -> tuple[list[Row], int]:
    """Returns the rows in which a list is not empty, round by round, and in how many rounds they
    are, which the runs share."""
    rows = reporting(merged(runs), key)
    return rows, len(set(values(rows, "round")))


def clients_in(rows: Sequence[Row], key: str) -> str:
    """Names the clients that appear in any of the rows."""
    return named(sorted(set().union(*values(rows, key))))


def not_finite(runs: Runs) -> Iterator[str]:
    """Yields a line where results of clients were not finite."""
    rows, rounds = events(runs, "not_finite")
    if rows:
        first = rows[0]
        yield (
            f"results that were not finite were left out in {rounds} rounds, first of "
            f"{named(first['not_finite'])} in round {first['round']} (trial {first['trial']})"
        )


def outlying(runs: Runs) -> Iterator[str]:
    """Yields a line where uploads were outliers."""
    rows, rounds = events(runs, "far_off")
    if rows:
        ids = sorted({int(client) for row in rows for client, _ in row["far_off"]})
        yield (
            f"outlying uploads of {named(ids)} in {rounds} rounds; first in round "
            f"{rows[0]['round']}: {outliers(rows[0]['far_off'])}"
        )


def refused(runs: Runs) -> Iterator[str]:
    """Yields a line where outlying uploads were refused."""
    rows, rounds = events(runs, "refused")
    if rows:
        clients = clients_in(rows, "refused")
        yield f"outlying uploads of {clients} were refused in {rounds} rounds"


def miscounted(runs: Runs) -> Iterator[str]:
    """Yields a line where uploads were refused for their counts."""
    rows, rounds = events(runs, "miscounted")
    if rows:
        clients = clients_in(rows, "miscounted")
        yield (
            f"uploads of {clients} counted more samples than the clients have, and were refused in "
            f"{rounds} rounds"
        )


def late(runs: Runs) -> Iterator[str]:
    """Yields a line where uploads missed the deadline."""
    rows, rounds = events(runs, "late")
    if rows:
        used = values(merged(runs), "arrived_late")
        outcome = "arrived in a later round" if used else "were lost"
        yield (
            f"uploads of {clients_in(rows, 'late')} came after the deadline in {rounds} rounds and "
            f"{outcome}"
        )


def kept_server(runs: Runs) -> Iterator[str]:
    """Yields a line where the server kept its last state."""
    rounds = [row["round"] for row in merged(runs) if not row.get("server_finite", True)]
    if rounds:
        yield (
            f"the server's step was not finite in {len(set(rounds))} rounds, first in round "
            f"{rounds[0]}; its last state was kept"
        )


def collapsed(runs: Runs) -> Iterator[str]:
    """Yields a line where accuracy fell back to that of the untrained federation."""
    for history in runs:
        divergence = Divergence(None)
        for row in history:
            for line in divergence.notes(row):
                yield f"round {row['round']} (trial {row['trial']}): {line}"
                return


TROUBLES = (not_finite, outlying, refused, miscounted, late, kept_server, collapsed)


def idle_lanes(runs: Runs) -> Iterator[str]:
    """Yields a line where lanes waited for long."""
    wasted = values(merged(runs), "wasted_lane_steps")
    if wasted and np.mean(wasted) > WASTED:
        share = f"{100 * np.mean(wasted):.0f} %"
        yield f"{share} of the steps of lanes waited for a longer client"


def far_clients(runs: Runs) -> Iterator[str]:
    """Yields a line for clients whose accuracy at the best round is far below the quartiles of all
    clients, and one for clients far above."""
    accuracy = mean_of_clients(runs)
    if np.isnan(accuracy).all():
        return
    low, high = np.nanquantile(accuracy, [0.25, 0.75])
    reach = max(FAR * (high - low), LEAST_POINTS)
    ids = evaluated_ids(runs)
    for distance, end in ((low - accuracy, "less"), (accuracy - high, "more")):
        order = np.argsort(-distance, kind="stable").tolist()
        far = [f"{ids[i]} ({accuracy[i]:.0f} %)" for i in order if distance[i] > reach]
        if far:
            more = f" and {len(far) - MOST_NAMED} others" if len(far) > MOST_NAMED else ""
            yield f"{named(far[:MOST_NAMED])}{more} reached far {end} than the others"


def falls(runs: Runs) -> Iterator[str]:
    """Yields a line where the last round is far below the best, on average over runs."""
    drops = []
    for history in runs:
        accuracies = values(history, "accuracy")
        if len(accuracies) > 1:
            drops.append(max(accuracies) - accuracies[-1])
    if drops and np.mean(drops) > FALL:
        yield f"the last round is {100 * np.mean(drops):.1f} points below the best"
