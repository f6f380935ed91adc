from fedjax_ht.report import table
from fedjax_ht.report.terminal import fitted
from tests.runner.test_compare import history

TEXT = """\
Before.

| method | accuracy % | ± clients | note |
|---|---|---|---|
| local | 79.33 | 3.10 | [bold] |
| fedtgp@tuned | 80.44 ± 0.60 | 2.90 | - |

After | not a table.
"""


def test_columns_are_aligned_and_all_else_stays():
    lines = fitted(TEXT, 80).splitlines()
    assert lines[0] == "Before." and lines[-1] == "After | not a table."
    assert lines[2] == "method          accuracy %  ± clients    note"
    assert lines[4] == "local                79.33       3.10  [bold]"
    assert lines[5] == "fedtgp@tuned  80.44 ± 0.60       2.90       -"


def test_columns_without_room_are_named():
    lines = fitted(TEXT, 38).splitlines()
    assert lines[2].split() == ["method", "accuracy", "%", "note"]
    assert "(no room for ± clients)" in lines and all(len(line) <= 38 for line in lines)


def test_a_runs_table_fits_into_eighty_columns():
    rows = history([0.1, 0.5, 0.8], [0.2, 0.5, 0.7], [0.1, 0.6, 0.9])
    for row in (row for row in rows if "accuracy" in row):
        row |= {"accuracy_std": 0.1, "accuracy_weighted": 0.5, "accuracy_worst10": 0.0}
    text = fitted(table.markdown({"fedproto:weight=3.0": rows, "local": rows}), 80)
    assert max(map(len, text.splitlines())) <= 80
    head = text.splitlines()[0]
    assert "accuracy %" in head and "best round" in head and "last %" in head
