"""Tables and texts in each of their forms."""

import csv
import doctest
import io
import itertools
import re

import pytest

from fedjax_ht.lab.report import document
from fedjax_ht.lab.report.results import run_results
from tests.lab.runs.test_compare import runs

SHORT = document.Table(
    ["method", "accuracy %", "± clients", "note"],
    [["local", "79.33", "3.10", "[bold]"], ["fedtgp@tuned", "80.44 ± 0.60", "2.90", "-"]],
    importance=["accuracy %", "note"],
    winner="local",
)


def test_the_example_runs():
    assert doctest.testmod(document).failed == 0


def test_a_row_has_as_many_cells_as_the_head():
    with pytest.raises(ValueError, match="the row a, b has 2 cells; the head has 1"):
        document.Table(["x"], [["a", "b"]])


def test_columns_are_aligned():
    lines = SHORT.terminal(80).splitlines()
    assert lines[0] == "method          accuracy %  ± clients    note"
    assert set(lines[1]) == {"─"} and len(lines[1]) == len(lines[0])
    assert lines[2] == "local                79.33       3.10  [bold]"
    assert lines[3] == "fedtgp@tuned  80.44 ± 0.60       2.90       -"


def test_columns_without_room_are_named():
    lines = SHORT.terminal(38).splitlines()
    assert lines[0].split() == ["method", "accuracy", "%", "note"]
    assert lines[-1] == "(no room for ± clients)" and all(len(line) <= 38 for line in lines)


def test_a_runs_table_fits_into_eighty_columns():
    three = runs([0.1, 0.5, 0.8], [0.2, 0.5, 0.7], [0.1, 0.6, 0.9])
    for row in itertools.chain(*three):
        row |= {"accuracy_std": 0.1, "accuracy_weighted": 0.5, "accuracy_worst10": 0.0}
    text = run_results({"fedproto:weight=3.0": three, "local": three}).terminal(80)
    assert max(map(len, text.splitlines())) <= 80
    head = text.splitlines()[0]
    assert "accuracy %" in head and "best round" in head and "last %" in head


def test_a_page_shows_six_columns_and_folds_the_others():
    titles = ["name", *"abcdefg"]
    page = document.Table(titles, [titles], importance=["g", "f"], winner="name").html()
    shown, _, folded = page.partition("<details><summary>More columns</summary>")
    assert re.findall("<th>(.*?)</th>", shown) == ["name", "a", "b", "c", "f", "g"]
    assert len(re.findall("<th>", shown)) == document.MAIN_COLUMNS
    assert re.findall("<td>(.*?)</td>", folded) == ["name", "d", "e"]
    # the cell in which it is best, not the row: elsewhere it may lose
    assert re.findall('<td class="best">(.*?)</td>', page) == ["g"] and "<tr>" in page
    assert "<details>" not in SHORT.html() and "<td>[bold]</td>" in SHORT.html()
    assert "<td>1 &lt; 2</td>" in document.Table(["a"], [["1 < 2"]]).html()


def test_a_csv_has_every_cell():
    rows = list(csv.reader(io.StringIO(document.Table(["a", "b"], [["1, 2", 'say "x"']]).csv())))
    assert rows == [["a", "b"], ["1, 2", 'say "x"']]


def test_rows_may_lack_columns():
    table = document.table_of([{"a": "1"}, {"a": "2", "c": "3"}], ["a", "b", "c"])
    assert table == document.Table(["a", "c"], [["1", "-"], ["2", "3"]])


def test_a_document_is_its_blocks():
    table = document.Table(["a", "b"], [["c", ""]])
    folded = document.Document([document.Bullets(["one", "two"])], "Why")
    text = document.Document([document.Paragraph("Words & more."), table, folded])
    written = "Words & more.\n\n| a | b |\n| --- | --- |\n| c |  |\n\n* one\n* two"
    assert text.markdown() == written
    assert text.html() == (
        '<p>Words &amp; more.</p><div class="scroll"><table><tr><th>a</th><th>b</th></tr>'
        "<tr><td>c</td><td></td></tr></table></div>"
        "<details><summary>Why</summary><ul><li>one</li><li>two</li></ul></details>"
    )
    assert text.terminal(8).startswith("Words &\nmore.\n\na  b\n────\nc\n\n* one")


def test_bytes_and_counts_have_a_prefix():
    sizes = [document.human_bytes(x) for x in (1023, 1536, 2**41)]
    assert sizes == ["1023 B", "1.50 KiB", "2048.00 GiB"]
    assert [document.human_count(x) for x in (250, 1.5e9, 2e18)] == ["250", "1.50 G", "2000.00 P"]
