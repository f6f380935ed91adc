"""Accuracy against one setting: its table, its picture and its refusals."""

from pathlib import Path

import pytest

from experiments.accuracy_by_setting import picture, points_of, table_of
from experiments.rows import read_rows
from experiments.run_folders import chosen_score, unfinished
from experiments.setting_points import (
    Point,
    check_settings,
    points_of_file,
    points_of_folders,
    refuse_repeated,
)
from fedjax_ht.lab.config.entries import preset
from fedjax_ht.lab.runs.folder import read_folder
from tests.experiments.folders import history, write_run

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "results"
ALPHA = "partition.options.alpha"


def comparison(folder, alpha: float, local: tuple, fedssa: tuple, **fields):
    """A comparison of two entries by `alpha`, two trials each: the accuracies after two rounds."""
    histories = {"local": [], "fedssa": []}
    for label, lasts in (("local", local), ("fedssa", fedssa)):
        for trial, last in enumerate(lasts):
            more = {"every": 2, "accuracy_participants": last + 0.1}
            histories[label] += history(0.1, last, trial=trial, **more)
    fields = {"rounds": 2, "trials": 2} | fields
    return read_folder(write_run(folder, histories, partition__options__alpha=alpha, **fields))


@pytest.fixture
def folders(tmp_path):
    return [
        comparison(tmp_path / "b", 0.5, (0.3, 0.4), (0.5, 0.5)),
        comparison(tmp_path / "a", 0.1, (0.6, 0.6), (0.7, 0.8)),
    ]


def test_late_is_the_mean_over_the_last_third_of_the_rounds():
    rows = history(0.1, 0.9, 0.2, 0.3, 0.5, 0.3, 0.4)
    assert chosen_score(rows, "accuracy", "late") == (6, pytest.approx(0.35))
    assert chosen_score(rows, "accuracy", "best") == (1, 0.9)
    assert chosen_score(rows, "accuracy_head", "late") is None


def test_the_table_has_a_row_an_entry_and_a_column_a_value(folders):
    points = points_of_folders(folders, [ALPHA], "accuracy", "best")
    assert len(points) == 8
    assert points[0] == Point(ALPHA, "0.5", "local", "0", "1", "accuracy", "best", 0.3)
    table = table_of(points)
    assert table.head == [ALPHA, "0.1", "0.5"]
    assert table.rows == [
        ["local", "60.00 ± 0.00", "35.00 ± 5.00"],
        ["fedssa", "75.00 ± 5.00", "50.00 ± 0.00"],
    ]


def test_another_score_and_another_round_can_be_taken(folders):
    points = points_of_folders(folders, [ALPHA], "accuracy_participants", "last")
    assert [point.accuracy for point in points[:2]] == pytest.approx([0.4, 0.5])
    with pytest.raises(ValueError, match="unknown score 'accuracy_head'; did you mean 'accuracy'"):
        points_of_folders(folders, [ALPHA], "accuracy_head", "last")
    assert not points_of_folders(folders, [ALPHA], "accuracy", "by_validation")


def test_the_picture_has_a_line_an_entry_with_bars_from_the_lowest_trial_to_the_highest(folders):
    figure = picture(points_of_folders(folders, [ALPHA], "accuracy", "best"))
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["local", "fedssa"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.1", "0.5"]
    assert axes.get_ylabel() == "accuracy, best round (%)"
    line, _, (bars,) = axes.containers[0]
    assert list(line.get_ydata()) == pytest.approx([60, 35])
    ends = [end for bar in bars.get_segments() for end in bar[:, 1]]
    assert ends == pytest.approx([60, 60, 30, 40])


def test_runs_that_differ_in_another_field_are_refused_by_its_name(folders, tmp_path):
    longer = comparison(tmp_path / "c", 1.0, (0.5, 0.5), (0.5, 0.5), rounds=3)
    with pytest.raises(ValueError, match=r"b and .*c differ in rounds, 2 and 3, and not in part"):
        check_settings([*folders, longer], [ALPHA])
    check_settings([*folders, longer], [ALPHA, "rounds"])
    fixed = (preset("fedssa:mu=0.25"),)
    other = comparison(tmp_path / "d", 1.0, (0.5, 0.5), (0.5, 0.5), entries=fixed)
    with pytest.raises(ValueError, match=r"differ in fedssa\.mu, 0\.5 and 0\.25"):
        check_settings([*folders, other], [ALPHA])


def test_seeds_and_places_may_differ_and_are_pooled(folders, tmp_path):
    fields = {"seed": 7, "dataset__data_dir": "elsewhere", "checkpoint__every": 3}
    more = comparison(tmp_path / "c", 0.1, (0.9, 0.9), (0.9, 0.9), **fields)
    points = points_of_folders([*folders, more], [ALPHA], "accuracy", "best")
    refuse_repeated(points)
    assert table_of(points).rows[0] == ["local", "75.00 ± 15.00 (4)", "35.00 ± 5.00 (2)"]
    with pytest.raises(ValueError, match=r"local has seed 7 twice at .*alpha 0\.1"):
        refuse_repeated(points + points[-4:])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("partition.options.alfa", "unknown field .*did you mean 'partition.options.alpha'"),
        ("drop_rate", "differ in partition.options.alpha, 0.5 and 0.1, and not in drop_rate alone"),
    ],
)
def test_the_setting_must_be_the_one_that_differs(folders, setting, message):
    with pytest.raises(ValueError, match=message):
        check_settings(folders, [setting])
    with pytest.raises(ValueError, match=r"all of --of have partition.options.alpha 0\.5"):
        check_settings(folders[:1], [ALPHA])


def test_runs_that_are_not_finished_are_named(folders, tmp_path):
    begun = comparison(tmp_path / "c", 1.0, (0.5,), (0.5,), rounds=9)
    lacks = ("has 1 of 2 trials", "has 2 of 9 rounds")
    expected = [f"{label} {reason}" for label in ("local", "fedssa") for reason in lacks]
    assert [line.partition(": ")[2] for line in unfinished(begun)] == expected
    assert not unfinished(folders[0])
    early = comparison(
        tmp_path / "d", 1.0, (0.1,), (0.1,), rounds=9, trials=1, evaluate__patience=1
    )
    assert not unfinished(early)  # patience is an end that the config asks for


def test_files_of_a_comparison_and_of_evaluations_are_read():
    how = {"score": "accuracy", "by": "by_validation"}
    trials = points_of_file(RESULTS / "fair_dirichlet.csv", "split", "a", **how)
    assert trials[0].entry == "local@tuned" and trials[0].accuracy == 0.6836563622886087
    points = []
    for shots, name in (("2", "two"), ("9", "nine"), ("23", "23")):
        file = RESULTS / f"fedktl_{name}_images.csv"
        points += points_of_file(file, "shots", shots, score="accuracy", by="best")
    rows = {row[0]: row[1:] for row in table_of(points).rows}
    assert rows["fedktl"] == ["52.95 ± 3.10", "67.71 ± 1.99", "72.98 ± 1.38"]
    assert rows["fedktl mu=4.0"] == ["52.09 ± 5.97", "-", "-"]
    kept = read_rows(RESULTS / "fedktl_shots.csv", Point)  # the example of docs/comparisons.md
    assert [point._replace(setting="shots") for point in kept] == points
    with pytest.raises(ValueError, match="is of cifar10 and fashion_mnist and npz:tiny"):
        points_of_file(RESULTS / "few_shot_2.csv", "shots", "2", score="accuracy", by="best")
    with pytest.raises(ValueError, match=r"has no accuracy best; it must be trials.csv"):
        points_of_file(RESULTS / "leaks.csv", "shots", "2", score="accuracy", by="best")


@pytest.mark.parametrize(
    ("of", "settings", "message"),
    [
        (["a"], [], "give --setting, such as partition.options.alpha"),
        (["a", "2=b.csv"], ["rounds"], "it must be folders alone, or files alone as VALUE=FILE"),
        (["b.csv"], ["rounds"], "it must be folders alone, or files alone as VALUE=FILE"),
        (["nowhere"], ["rounds"], "no run in nowhere: config.json is missing"),
    ],
)
def test_what_is_named_wrong_is_refused(of, settings, message):
    with pytest.raises((ValueError, OSError), match=message):
        points_of(of, settings, "accuracy", "best")


def test_runs_without_the_round_that_counts_are_refused(folders):
    of = [str(folder.path) for folder in folders]
    with pytest.raises(ValueError, match="no run of --of has accuracy by validation"):
        points_of(of, [ALPHA], "accuracy", "by_validation")


def test_the_command_writes_both_and_refuses_in_one_line(run_module, folders, tmp_path):
    of = f"--of={folders[0].path},{folders[1].path}"
    table, drawn = f"--csv={tmp_path / 'a.csv'}", f"--picture={tmp_path / 'a.png'}"
    done = run_module("accuracy_by_setting", f"--setting={ALPHA}", of, table, drawn, drawn=True)
    assert done.returncode == 0, done.stderr
    assert "| fedssa | 75.00 ± 5.00 | 50.00 ± 0.00 |" in done.stdout
    assert (tmp_path / "a.png").exists()
    points = points_of_folders(folders, [ALPHA], "accuracy", "best")
    assert read_rows(tmp_path / "a.csv", Point) == points
    refused = run_module("accuracy_by_setting", "--setting=drop_rate", of, table)
    assert refused.returncode == 2 and "differ in partition.options.alpha" in refused.stderr
    assert refused.stderr.count("\n") == 1
