"""The accuracy of each client on each class, as tables of coloured cells for report.html."""

import html
from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_ht.lab.report.document import folded
from fedjax_ht.lab.report.html_page import caption
from fedjax_ht.simulation.history import best
from fedjax_ht.simulation.rows import Runs, evaluated

CLIENTS, CLASSES = 50, 30  # at most, that a page shows
READING = (
    "Percent of a client's test samples of a class that are classified correctly in the best "
    "round, of several trials all samples together. A pointer over a cell shows the number of "
    "samples; a cell is empty where there are none. classes.csv has these numbers of all "
    "evaluations."
)
TOO_MANY = (
    f"Of more than {CLIENTS} clients or {CLASSES} classes, accuracy by client and class stands in "
    "the classes.csv of each entry's folder alone."
)


def counts_of_clients(runs: Runs) -> dict[int, dict[int, np.ndarray]]:
    """Returns client id -> class -> int [2], test samples and those classified correctly, in the
    best rounds of an entry's runs together; {} where nothing was counted by class."""
    sums: dict[int, dict[int, np.ndarray]] = {}
    for history in runs:
        if not evaluated(history):
            continue
        row = best(history).on_test
        counts = row.get("client_class_counts", ())
        for client, of_client in zip(row.get("client_ids", range(len(counts))), counts):
            known = sums.setdefault(client, {})
            for label, pair in of_client.items():
                known[int(label)] = known.get(int(label), 0) + np.array(pair)
    return sums


def client_class_tables(histories: Mapping[str, Runs], class_names: Sequence[str]) -> str:
    """Returns a folded table for each entry, clients by classes, in HTML; a line that names the
    file where there is no room for them, and "" where nothing was counted by class.

    Args:
      histories: label of an entry -> its runs.
      class_names: names of all classes.
    """
    tables = {}
    for label, runs in histories.items():
        counts = counts_of_clients(runs)
        if len(counts) > CLIENTS or (counts and len(class_names) > CLASSES):
            return caption(TOO_MANY)
        if counts:
            tables[label] = _table(counts, class_names)
    if not tables:
        return ""
    shown = [folded(label, table) for label, table in tables.items()]
    return folded("Accuracy by client and class", caption(READING) + "".join(shown))


def _table(counts: Mapping[int, Mapping[int, np.ndarray]], class_names: Sequence[str]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("client", "all", *class_names))
    lines = [f"<tr>{head}</tr>"]
    for client in sorted(counts):
        of_client = counts[client]
        cells = [_cell(f"client {client}", sum(of_client.values(), np.zeros(2, int)))]
        for label, name in enumerate(class_names):
            pair = of_client.get(label, np.zeros(2, int))
            cells.append(_cell(f"client {client}, {name}", pair))
        lines.append(f"<tr><td>{client}</td>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table class="cells">{"".join(lines)}</table></div>'


def _cell(of: str, counts: np.ndarray) -> str:
    samples, correct = counts
    if not samples:
        return "<td></td>"
    share = f"{100 * correct / samples:.0f}"
    title = html.escape(f"{of}: {correct} of {samples} test samples")
    return f'<td style="--share: {share}%" title="{title}">{share}</td>'
