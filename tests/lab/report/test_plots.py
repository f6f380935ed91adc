"""Pictures that need no run."""

import numpy as np
import pytest

from fedjax_ht.lab.report.plots import (
    BLACK,
    COLOURS,
    FEW,
    VECTOR,
    accuracy_curves,
    client_accuracy,
    client_spread,
    image_grid,
    rendered,
    save,
    seconds,
    split_picture,
    styles,
)
from fedjax_ht.methods import METHODS
from tests.experiments.folders import history


def test_an_image_grid_titles_its_blocks_and_names_each_class_once():
    images = np.linspace(0, 1, 5 * 4 * 4).reshape(5, 4, 4, 1)
    blocks = {"made": images, "in colour": np.repeat(images[:2], 3, -1)}
    parts = image_grid(blocks, ("cat", "dog", "owl")).subfigs
    assert [part.get_suptitle() for part in parts] == ["made", "in colour"]
    expected = [["cat", "dog", "owl", "", "", ""], ["cat", "dog", ""]]
    assert [[cell.get_title() for cell in part.axes] for part in parts] == expected
    drawn = [cell.images[0].get_array().squeeze() for cell in parts[0].axes if cell.images]
    np.testing.assert_array_equal(drawn, images[..., 0])


def test_a_box_spans_the_clients_of_all_trials_at_their_best_rounds():
    """A client of one trial may have other data than that of the next."""
    untrained = {"round": 0, "accuracy": 0.1, "clients": [0.1, 0.1, 0.1, None]}
    runs = [
        [untrained, {"round": 1, "accuracy": 0.6, "clients": [0.2, 0.6, 1.0, None]}],
        [untrained, {"round": 1, "accuracy": 0.6, "clients": [0.9, 0.6, 0.3, None]}],
    ]
    (axes,) = client_spread({"local": runs}).axes
    lines = [line.get_xdata() for line in axes.lines]
    drawn = np.concatenate(lines)  # percent; who has no score is left out
    assert drawn.min() == 20 and drawn.max() == 100
    assert any(np.allclose(line, 60) and len(line) == 2 for line in lines)  # the median
    assert [label.get_text() for label in axes.get_yticklabels()] == ["local"]
    for line in axes.lines:  # those colours are of entries
        assert not {line.get_color(), line.get_markerfacecolor()} & set(COLOURS)


def rows_of(clients: int) -> list[dict]:
    accuracy = np.linspace(0.2, 0.9, clients)
    return [{"round": r, "accuracy": 0.5 + r / 9, "clients": list(accuracy)} for r in (0, 1)]


def test_trials_are_drawn_at_the_rounds_that_all_evaluate():
    rows = [{"round": r, "accuracy": a, "clients": [a]} for r, a in ((0, 0.1), (1, 0.4), (2, 0.6))]
    runs = [rows[::2], rows]  # the first was stopped elsewhere
    first, second = accuracy_curves({"a": runs, "b": runs}, "b").axes
    np.testing.assert_array_equal(first.lines[0].get_xdata(), [0, 2])
    np.testing.assert_allclose(first.lines[0].get_ydata(), [10, 60])
    np.testing.assert_array_equal(second.lines[1].get_ydata(), [0, 0])


@pytest.mark.parametrize("entries", [FEW, 3 * FEW])
def test_a_long_legend_covers_no_curve(entries):
    figure = accuracy_curves({str(i): [rows_of(3)] for i in range(entries)})
    (axes,) = figure.axes
    figure.draw_without_rendering()
    beside = axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1 - 1
    assert beside == (entries > FEW)


def looks(*labels):
    return {label: look["color"] for label, look in styles(labels).items()}


def test_a_method_has_its_colour_in_every_report():
    """Neither the order of the entries nor the others change it, unless two have the same."""
    few = looks("fedssa", "local", "fedtgp@tuned")
    assert few == looks("fedtgp@tuned", "local", "fedssa") and few["local"] == BLACK
    several = looks("fedproto", "fedtgp@tuned", "fedssa:mu=2", "lg_fedavg")
    assert several["fedssa:mu=2"] == few["fedssa"]
    assert several["fedtgp@tuned"] == few["fedtgp@tuned"]
    assert looks("mine")["mine"] == looks("local", "mine")["mine"] != BLACK
    variants = looks("local", "local:training.learning_rate=0.1", "local@tuned")
    assert variants["local"] == BLACK and len(set(variants.values())) == 3


@pytest.mark.parametrize("labels", [METHODS, [f"fedproto:weight={i}" for i in range(30)]])
def test_no_two_entries_look_alike(labels):
    seen = [(look["color"], look["ls"]) for look in styles(labels).values()]
    assert len(set(seen)) == len(seen) == len(labels)
    assert len({colour for colour, _ in seen[: len(COLOURS)]}) == len(COLOURS)


def test_a_panel_has_the_differences_to_the_baseline():
    """Curves that lie on each other are told apart there; the first rounds may leave the panel."""
    baseline = [history(0.1, 0.7, 0.75, 0.8, 0.8), history(*[0.1] * 5)]
    other = [history(0.5, 0.7, 0.76, 0.81), history(0.5, 0.1, 0.11, 0.13)]
    for run in other:  # evaluated in other rounds
        del run[1]["accuracy"]
    figure = accuracy_curves({"fedssa": other, "local": baseline}, "local")
    axes = figure.axes[1]
    zero, curve = axes.lines
    assert list(curve.get_xdata()) == [0, 2, 3]
    assert curve.get_ydata() == pytest.approx([40, 1, 2]) and zero.get_ydata()[0] == 0
    assert axes.get_ylim()[1] < 10 and axes.get_ylabel() == "points ahead of local"
    assert curve.get_color() == figure.axes[0].lines[0].get_color() and zero.get_color() == BLACK
    assert len(axes.collections) == 1  # the band over trials
    assert len(accuracy_curves({"fedssa": other, "local": baseline}).axes) == 1


def test_many_clients_are_shown_as_shares():
    rows = [row | {"clients": row["clients"][::-1]} for row in rows_of(1000)]
    (axes,) = client_accuracy({"local": [rows]}).axes
    (curve,) = axes.lines
    assert curve.get_xdata()[[0, -1]] == pytest.approx([0.05, 99.95])
    assert curve.get_ydata()[[0, -1]] == pytest.approx([20, 90])


def test_entries_of_other_clients_and_several_trials_are_shown_as_shares():
    (axes,) = client_accuracy({"local": [rows_of(5)], "fedssa": [rows_of(3)]}).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [5, 3]
    (axes,) = client_accuracy({"local": [rows_of(5)] * 2}).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [10]


def spent(accuracies, mebibytes) -> list[dict]:
    """Returns rows of a run, a row a round; the first has sent nothing."""
    costs = {"flops": 1e12, "seconds_round": 1.0, "uplink_payload_bytes": mebibytes << 20}
    rows = history(*accuracies)
    return [row | (costs if row["round"] else {"seconds_round": 0.0}) for row in rows]


def test_the_axis_of_accuracy_shows_the_late_rounds():
    """An entry that ended in the first rounds is seen, too."""
    rising = history(0.1, 0.3, *[0.7 + r / 100 for r in range(10)])
    (axes,) = accuracy_curves({"a": [rising], "b": [history(0.1, 0.6)]}).axes
    low, high = axes.get_ylim()
    assert 57 < low < 60 and 79 < high < 81


def test_seconds_leave_out_the_compilation_of_the_first_round():
    rows = spent([0.1, 0.4, 0.5, 0.6], 1)
    for row, value in zip(rows[1:], (60.0, 2.0, 4.0)):
        row["seconds_round"] = value
    assert seconds(rows) == pytest.approx([0, 3, 5, 9])
    assert seconds(rows[:2]) == pytest.approx([0, 60])  # there is no other round


def test_the_same_figure_is_the_same_file_in_every_format(tmp_path):
    names = [tmp_path / name for name in ("a.png", "b.png")]
    first, second = (save(accuracy_curves({"a": [rows_of(3)]}), x, VECTOR) for x in names)
    heads = {"png": b"\x89PNG\r", "svg": b"<?xml", "pdf": b"%PDF-"}
    assert list(heads) == ["png", *VECTOR]
    for kind, head in heads.items():
        written = first.with_suffix(f".{kind}").read_bytes()
        assert written.startswith(head), kind
        assert written == second.with_suffix(f".{kind}").read_bytes(), kind


@pytest.mark.parametrize(("clients", "classes"), [(51, 3), (3, 31)])
def test_a_split_is_cells_and_few_classes_are_named(clients, classes):
    counts, names = np.arange(clients * classes).reshape(clients, classes), "abc" * classes
    axes = split_picture(counts, list(names[:classes])).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), counts.T)
    named = [label.get_text() for label in axes.get_yticklabels()] == list(names[:classes])
    assert named == (classes <= 30)


@pytest.mark.parametrize("kind", ["png", *VECTOR])
def test_equal_figures_are_equal_files(kind, monkeypatch):
    files = set()
    for now in ("0", "86400"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", now)  # matplotlib's time
        files.add(rendered(accuracy_curves({"a": [rows_of(3)]}), kind))
    assert len(files) == 1


def test_names_are_drawn_as_they_are():
    """Also those that matplotlib would take for a formula, whose letters it would slant."""
    names = [r"$\frac{$", "$x^2$", "5 $ or 6 $"]
    curves = {name: [rows_of(3)] for name in names}
    figures = {
        "split": split_picture(np.ones((3, 3)), names),
        "images": image_grid({names[0]: np.zeros((3, 4, 4, 1))}, names),
        "curves": accuracy_curves(curves),
        "clients": client_accuracy({"$x$": [rows_of(3)]}),
        "spread": client_spread(curves),
    }
    for kind, figure in figures.items():
        drawn = rendered(figure, "svg").decode()
        assert "Oblique" not in drawn and "$" in drawn, kind
