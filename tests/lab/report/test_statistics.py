import math

import numpy as np
import pytest
from scipy.stats import bootstrap

from fedjax_ht.lab.report.compared import headline, ranking, winner
from fedjax_ht.lab.report.document import Document
from fedjax_ht.lab.report.statistics import (
    differences_to,
    mean_interval,
    paired_difference,
    write_trials,
)
from tests.lab.runs.test_compare import runs


def test_an_interval_of_a_mean_is_students():
    mean, low, high = mean_interval([80.0, 81.0, 82.0, 81.0])
    half = 3.182446 * math.sqrt(2 / 3 / 4)
    assert mean == 81 and high - mean == pytest.approx(mean - low) == pytest.approx(half, rel=1e-6)


@pytest.mark.parametrize("values", [[3.0], [60.0, 100.0], [60.0, 80.0, 100.0]])
def test_fewer_than_four_trials_have_no_interval(values):
    """Student's of 60 % and 100 % would end at 334 %; a bootstrap of two trials is the two."""
    difference = paired_difference(values, [0.0] * len(values))
    for interval in (mean_interval(values), difference.interval):
        assert interval.mean == np.mean(values) and math.isnan(interval.low)
        assert math.isnan(interval.high)


def test_a_difference_is_paired_by_trial():
    """The trials of both differ by more than the two entries do."""
    values, baseline = [70.5, 80.4, 90.7, 60.2], [70.0, 80.0, 90.0, 60.0]
    difference = paired_difference(values, baseline)
    assert difference.interval.mean == pytest.approx(0.45)
    assert (difference.ahead, difference.trials) == (4, 4)
    assert 0.2 <= difference.interval.low < 0.45 < difference.interval.high <= 0.7
    assert paired_difference(values, baseline) == difference
    turned = paired_difference(baseline, values)
    assert turned.interval.mean == pytest.approx(-0.45) and turned.ahead == 0
    with pytest.raises(ValueError, match="2 and 1 trials cannot be paired"):
        paired_difference([1.0, 2.0], [1.0])


def test_the_interval_of_a_difference_is_that_of_scipy():
    values = np.random.default_rng(1).normal(1, 2, 6)
    interval = paired_difference(values, np.zeros(6)).interval
    options = {"method": "percentile", "random_state": np.random.default_rng(0)}
    theirs = bootstrap([values], np.mean, n_resamples=10_000, **options).confidence_interval
    assert (interval.low, interval.high) == pytest.approx(tuple(theirs), rel=1e-12)


def test_the_table_puts_every_entry_beside_the_baseline():
    histories = {"a": runs([0.1, 0.5], [0.2, 0.6]), "b": runs([0.7, 0.4], [0.3, 0.8])}
    text = differences_to("a", histories).markdown()
    head, _, *rows = text.partition("\n\n")[0].splitlines()
    note = " ".join(text.partition("\n\n")[2].split())
    assert head == "| entry | round | accuracy % | minus a, points | ahead in |"
    assert rows == [
        "| a | best | 55.00 (50.00, 60.00) |  |  |",
        "| b | best | 75.00 (70.00, 80.00) | +20.00 (+20.00, +20.00) | 2 of 2 |",
        "| a | last | 55.00 (50.00, 60.00) |  |  |",
        "| b | last | 60.00 (40.00, 80.00) | +5.00 (-10.00, +20.00) | 1 of 2 |",
    ]
    assert note.startswith('"best" is each trial\'s best round on the test sets. In brackets the ')
    assert note.endswith("have no interval.")
    assert differences_to("a", {"a": histories["a"]}) == Document()


def test_rounds_of_equal_accuracies_are_shown_once():
    a, b = (runs([0.1, 0.5], val_accuracy=[0.2, 0.4]), runs([0.1, 0.25], val_accuracy=[0.3, 0.4]))
    _, _, *rows, _, note = differences_to("a", {"a": a, "b": b}).markdown().splitlines()
    assert rows == [
        "| a | best, by validation and last | 50.00 |  |  |",
        "| b | best, by validation and last | 25.00 | -25.00 | 0 of 1 |",
    ]
    assert "on validation sets" in note and "rackets" not in note  # of one trial there are none
    b = runs([0.1, 0.25], val_accuracy=[0.5, 0.4])
    rows = differences_to("a", {"a": a, "b": b}).markdown().splitlines()[2:-2]
    found = [row.split("|")[2].strip() for row in rows]
    assert found == ["best and last"] * 2 + ["by validation"] * 2


def test_four_trials_have_intervals():
    a = runs(*([0.1, 0.50 + t / 100] for t in range(4)))
    b = runs(*([0.1, 0.60 + t / 50] for t in range(4)))
    row = differences_to("a", {"a": a, "b": b}).markdown().splitlines()[3]
    cells = "| 63.00 (58.89 to 67.11) | +11.50 (+10.50 to +12.50) | 4 of 4 |"
    assert row.startswith(f"| b | best and last {cells}")


@pytest.mark.parametrize(
    "percents, sentence",
    [
        ((61, 61, 61, 62), "b is ahead of a by 1.2 points, in 4 of 4 trials (95 % interval 1.0 to"),
        ((61, 59, 61, 60), "b and a are level: 60.2 %, difference 0.2, ahead in 2 of 4 trials (95"),
    ],
)
def test_a_lead_is_one_whose_interval_leaves_out_zero(percents, sentence):
    histories = {"a": runs(*[[0.1, 0.6]] * 4), "b": runs(*([0.1, x / 100] for x in percents))}
    assert headline(histories, "a").startswith(sentence)
    assert winner(histories) == ("b" if "ahead of a" in sentence else None)


def test_the_result_in_a_sentence():
    a = runs([0.1, 0.5], [0.1, 0.6])
    b = runs([0.1, 0.7], [0.1, 0.58])
    c = runs([0.1, 0.55], [0.1, 0.56])
    mixed = (
        "b (64.0 %) and a are not distinguishable: b leads by 9.0 points on average, in 1 of 2 "
        "trials (2 trials: no"
    )
    both = headline({"a": a, "b": b, "c": c}, "a")
    assert both.startswith(mixed) and both == headline({"b": b, "a": a}, "a")
    ahead = "b is ahead of c by 8.5 points, in 2 of 2 trials (2 trials: no interval), but not dis"
    assert headline({"b": b, "a": a, "c": c}, "b") == f"{ahead}tinguishable from a."
    assert winner({"b": b, "a": a, "c": c}) is None
    ahead = "b is ahead of all others, and of c by 8.5 points, in 2 of 2 trials (2 trials: no int"
    assert headline({"b": b, "c": c, "d": c}, "b").startswith(ahead)
    assert ranking({"a": a, "c": c, "b": b}) == ["b", "c", "a"]
    assert winner({"b": b, "c": c}) == "b" and winner({"a": a, "b": b}) is None
    one, other = runs([0.1, 0.5]), runs([0.2, 0.7])
    assert headline({"a": one, "b": other}, "a").endswith("by 20.0 points, in one trial.")
    level = "a and same are level: 55.0 %, difference 0.0, ahead in 0 of 2 trials (2 trials: no "
    assert headline({"a": a, "same": a}, "same").startswith(level)
    level = "a and b are level: 50.0 %, difference 0.0, in one trial."
    assert headline({"a": one, "b": one}, "a") == level
    assert winner({"a": a, "same": a}) is winner({"a": a}) is None
    expected = "a reaches 55.0 % in its best round, on average over clients and 2 trials."
    assert headline({"a": a}, "a") == expected
    wanted = "a reaches 25.0 % in its best round, on average over clients."
    assert headline({"a": runs([0.25])}, "a") == wanted
    assert headline({"a": a, "none": runs([math.nan], [math.nan])}, "a") == ""


def test_a_file_of_trials_has_their_scores(tmp_path):
    both = [0.4, 0.5]
    histories = {"a": runs(both, val_accuracy=both, macro_f1=both, auc=both)}
    path = write_trials(histories, 3, [1], tmp_path / "x.csv")
    head = "entry,seed,split,best,by_validation,last,best_round,macro_f1,auc"
    assert path.read_text().splitlines() == [head, "a,3,1,0.5,0.5,0.5,1,0.5,0.5"]
