"""The result of a run in words and tables, which a command prints and a page shows."""

from collections.abc import Iterable

from fedjax_ht.lab.config.entries import Entry, described
from fedjax_ht.lab.report.compared import Compared
from fedjax_ht.lab.report.costs import Aim, costs
from fedjax_ht.lab.report.document import Block, Bullets, Document, Paragraph
from fedjax_ht.lab.report.gains import gain_table
from fedjax_ht.lab.report.results import run_results
from fedjax_ht.lab.report.run_warnings import to_watch
from fedjax_ht.lab.report.statistics import differences_to


def results(shown: Compared, aim: Aim | None) -> Document:
    """Makes the first table: of a comparison with the cost of an accuracy, else of a run."""
    if aim is None:
        return run_results(shown.histories, shown.winner)
    return costs(shown.histories, *aim, winner=shown.winner).text


def remarks(shown: Compared) -> list[str]:
    """Returns the sentences below the first table: settings that all rows share, and entries that
    ended early."""
    return [sentence for sentence in (shown.shared, shown.ended) if sentence]


def comparisons(shown: Compared) -> Document:
    """Makes the tables of the entries beside the baseline; empty where nothing is compared."""
    if not shown.compares:
        return Document()
    return Document([differences_to(shown.baseline, shown.histories), gain_table(shown.histories)])


def entry_settings(entries: Iterable[Entry]) -> Bullets:
    """Lists each entry's changes to the defaults, and its tuning."""
    return Bullets([described([entry]).removeprefix("* ") for entry in entries])


def text_of(shown: Compared, aim: Aim | None) -> Document:
    """Makes the text that a command prints: the result in a sentence, warnings, tables, the
    settings that all rows share, and each entry's."""
    blocks: list[Block] = []
    if sentence := shown.headline:
        blocks.append(Paragraph(sentence))
    if lines := to_watch(shown):
        blocks += [Paragraph("To watch:"), Bullets(lines)]
    blocks += [results(shown, aim), *map(Paragraph, remarks(shown))]
    if aim is not None:
        blocks += comparisons(shown).blocks
    return Document([*blocks, entry_settings(shown.entries)])
