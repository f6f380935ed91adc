"""Heat maps of two options: of a search, of a comparison, and refusals; what a search chose."""

import json
import math
from pathlib import Path

import pytest

from experiments.heat_map import Cell, cells_in, cells_of_search, picture, table_of
from experiments.rows import read_rows, write_rows
from experiments.searches import choice, read_search
from tests.experiments.folders import history, write_run

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "results"
RATE = "training.learning_rate"
POINTS = [f"fedtgp:weight={w}:{RATE}={r}" for w in ("0.1", "10") for r in ("0.01", "0.1")]
FIRST = dict(zip(POINTS, (0.5, math.nan, 0.7, 0.6)))
LAST = {POINTS[2]: 0.71, POINTS[3]: 0.8}


def search(folder, scores, labels=POINTS):
    """The folder of a search that stands at these scores."""
    write_run(folder, dict.fromkeys(labels, ()), rounds=4)
    (folder / "search.json").write_text(json.dumps(scores))
    return read_search(folder)


def test_a_search_is_shown_after_the_most_rounds_that_all_points_have(tmp_path):
    heat_table = search(tmp_path / "a", {2: FIRST, 4: LAST})
    cells = cells_of_search(heat_table, RATE, "weight")
    assert {cell.score for cell in cells} == {"validation accuracy after 2 rounds"}
    table = table_of(cells)
    assert table.head == [f"weight \\ {RATE}", "0.01", "0.1"]
    assert table.rows == [["0.1", "50.00", "not finite"], ["10", "70.00", "60.00"]]


def test_the_picture_has_a_number_in_each_cell_and_the_best_in_bold(tmp_path):
    labels = POINTS[:3]
    heat_table = search(tmp_path / "a", {4: {label: FIRST[label] for label in labels}}, labels)
    figure = picture(cells_of_search(heat_table, RATE, "weight"))
    axes, _ = figure.axes
    texts = {text.get_position(): text for text in axes.texts}
    assert texts[0, 0].get_text() == "50.00" and texts[1, 0].get_text() == "not finite"
    assert texts[1, 1].get_text() == "-"  # no point
    assert [text.get_text() for text in axes.texts if text.get_weight() == "bold"] == ["70.00"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0.1", "10"]


def test_the_search_chooses_the_best_of_the_points_that_trained_for_all_rounds(tmp_path):
    assert choice(search(tmp_path / "a", {2: FIRST, 4: LAST})) == POINTS[3]
    dead = dict.fromkeys(POINTS, math.nan)
    with pytest.raises(ValueError, match=r"no point of the search in .* stayed finite"):
        choice(search(tmp_path / "b", {4: dead}))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, f"{POINTS[0]} has no score after 4 rounds"),
        ({2: {POINTS[0]: 0.5}}, f"{POINTS[1]} has no score after 2 rounds"),
        ({2: FIRST}, f"{POINTS[2]} has no score after 4 rounds"),
        ({2: FIRST, 4: {POINTS[2]: 0.7}}, f"{POINTS[3]} has no score after 4 rounds"),
    ],
)
def test_a_search_that_is_not_finished_has_chosen_nothing(tmp_path, scores, message):
    with pytest.raises(ValueError, match=f"is not finished: {message}; give the same sweep again"):
        choice(search(tmp_path / "a", scores))


def test_a_search_without_all_points_has_no_map(tmp_path):
    heat_table = search(tmp_path / "a", {2: {POINTS[0]: 0.5}})
    with pytest.raises(ValueError, match="has not scored all of its 4 points"):
        cells_of_search(heat_table, RATE, "weight")


def comparison(folder, *entries):
    """A comparison of entries, two trials each, whose server's model is better in later entries."""
    histories = {}
    for place, label in enumerate(entries):
        score = 0.1 * place
        rows = history(0.2, 0.2, global_accuracy_head=score)
        histories[label] = rows + history(0.2, 0.2, trial=1, global_accuracy_head=score + 0.02)
    return write_run(folder, histories, rounds=1, trials=2)


def test_a_comparison_is_shown_by_any_score(tmp_path, capsys):
    options = ("b_tran=0.5:b_div=0.5", "b_tran=1.0:b_div=0.5", "b_tran=1.0:b_div=1.0")
    entries = [f"fedavg+dfrd:{option}" for option in options]
    folder = comparison(tmp_path / "a", "fedavg", *entries)
    cells = cells_in(folder, "b_tran", "b_div", score="global_accuracy_head", by="best")
    assert table_of(cells).rows == [["0.5", "11.00", "21.00"], ["1", "-", "31.00"]]
    assert cells[0].trials == 2 and cells[0].score == "global_accuracy_head, best round"
    assert "left out, without b_tran, b_div or a score: fedavg\n" in capsys.readouterr().err
    write_rows(tmp_path / "a.csv", type(cells[0])._fields, cells)
    assert table_of(read_rows(tmp_path / "a.csv", Cell)).rows == table_of(cells).rows


def test_entries_that_differ_in_a_third_setting_are_refused_by_its_name(tmp_path):
    folder = comparison(tmp_path / "a", "fedtgp:weight=1.0", "fedtgp:weight=2.0:margin=3.0")
    with pytest.raises(ValueError, match=r"differ in margin, None and 3, and not in tau"):
        cells_in(folder, "tau", "weight", score="accuracy", by="best")
    cells_in(folder, "margin", "weight", score="accuracy", by="best")
    alike = comparison(tmp_path / "b", "fedtgp:weight=1.0", "fedtgp:weight=1")
    with pytest.raises(ValueError, match=r"fedtgp:weight=1.0 and .* both have tau 100 and use_f"):
        cells_in(alike, "tau", "use_f", score="accuracy", by="best")


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ("tau", "tau", "give --x and --y, two options of the entries"),
        ("tau", "wait", "unknown option 'wait'; did you mean 'weight'"),
        ("tau", "mu", "no entry has both tau and mu"),
    ],
)
def test_options_must_be_two_that_an_entry_has(tmp_path, x, y, message):
    folder = comparison(tmp_path / "a", "fedtgp", "fedssa")
    with pytest.raises(ValueError, match=message):
        cells_in(folder, x, y, score="accuracy", by="best")


def test_the_committed_map_is_drawn_again():
    cells = read_rows(RESULTS / "few_samples_search.csv", Cell)
    assert len(table_of(cells).rows) == 3 and len(picture(cells).axes) == 2
    with pytest.raises(ValueError, match="must have rows with the columns x, x_value, "):
        read_rows(RESULTS / "leaks.csv", Cell)
