"""The table of clients by classes in a run's page."""

import re

from fedjax_ht.lab.report.report import client_class_tables


def run_of(*counts, accuracy=0.5, **fields):
    start = {"round": 0, "trial": 0, "accuracy": 0.0, "clients": [0.0] * len(counts)}
    row = {"round": 1, "accuracy": accuracy, "client_class_counts": list(counts)}
    return [start, start | row | fields]


def test_a_cell_is_the_share_of_all_trials_and_names_its_samples():
    trials = [
        run_of({"0": [3, 2]}, {"0": [2, 0], "1": [4, 4]}, client_ids=[70, 3]),
        run_of({"0": [1, 1]}, {"0": [2, 1], "1": [4, 4]}, client_ids=[70, 3]),
    ]
    shown = client_class_tables({"a": trials}, ("cat", "<owl>"))
    rows = re.findall("<tr>(.*?)</tr>", shown)
    assert [re.findall("<t[hd][^>]*>(.*?)</t", row) for row in rows] == [
        ["client", "all", "cat", "&lt;owl&gt;"],
        ["3", "75", "25", "100"],
        ["70", "75", "75", ""],
    ]
    assert 'title="client 3, cat: 1 of 4 test samples">25<' in rows[1]
    assert 'title="client 3: 9 of 12 test samples">75<' in rows[1]
    assert rows[2].endswith("<td></td>")


def test_what_has_no_room_or_was_not_counted_has_no_table():
    many = {"a": [run_of(*[{"0": [1, 1]}] * 51)]}
    assert client_class_tables(many, ("cat",)).count("<td") == 0
    assert "classes.csv" in client_class_tables(many, ("cat",))
    assert client_class_tables({"a": [run_of({"0": [1, 1]})]}, ["c"] * 31).count("<td") == 0
    assert client_class_tables({"a": [run_of()]}, ["c"] * 31) == ""
