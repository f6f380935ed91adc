import math

import numpy as np
import pytest

from fedjax_ht.runner.statistics import (
    beside_first,
    mean_interval,
    mean_ranks,
    paired_difference,
    ranked,
    read_trials,
    write_trials,
)


def test_an_interval_of_a_mean_is_students():
    mean, low, high = mean_interval([80.0, 81.0, 82.0])
    assert mean == 81 and high - mean == pytest.approx(mean - low) == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    alone = mean_interval([3.0])
    assert alone.mean == 3 and math.isnan(alone.low) and math.isnan(alone.high)


def test_it_holds_the_mean_nineteen_times_of_twenty():
    draws = np.random.default_rng(1).normal(5, 2, (2000, 4))
    held = np.mean([low <= 5 <= high for _, low, high in map(mean_interval, draws)])
    assert 0.93 < held < 0.97


def test_a_difference_is_paired_by_trial():
    """The trials of both differ by more than the two entries do."""
    values, others = [70.5, 80.4, 90.7, 60.2], [70.0, 80.0, 90.0, 60.0]
    found = paired_difference(values, others)
    assert found.interval.mean == pytest.approx(0.45) and (found.ahead, found.trials) == (4, 4)
    assert 0.2 <= found.interval.low < 0.45 < found.interval.high <= 0.7
    assert paired_difference(values, others) == found
    turned = paired_difference(others, values)
    assert turned.interval.mean == pytest.approx(-0.45) and turned.ahead == 0


def test_one_trial_has_a_difference_and_no_interval():
    found = paired_difference([0.5], [0.25])
    assert found.interval.mean == 0.25 and math.isnan(found.interval.low) and (found.ahead, found.trials) == (1, 1)
    with pytest.raises(ValueError, match="2 and 1 trials cannot be paired"):
        paired_difference([1.0, 2.0], [1.0])


def test_the_table_puts_every_entry_beside_the_first():
    def history(*trials):
        rows = [(n, t, a) for n, at in enumerate(zip(*trials)) for t, a in enumerate(at)]
        return [{"round": n, "trial": t, "accuracy": a} for n, t, a in rows]

    histories = {"a": history([0.1, 0.5], [0.2, 0.6]), "b": history([0.7, 0.4], [0.3, 0.8]), "c": history([0.5, 0.5])}
    lines = beside_first({name: histories[name] for name in "ab"}).splitlines()
    head = "| entry | best round % | minus a, points | ahead in "
    head += "| last round % | minus a, points, last round | ahead in, last round |"
    assert lines[0] == head and lines[2].startswith("| a | 55.00 (-8.53 to 118.53) |  |  | 55.00 (")
    assert lines[3].startswith("| b | 75.00 (11.47 to 138.53) | +20.00 (+20.00 to +20.00) | 2 of 2 | 60.00 (")
    assert lines[3].endswith("| +5.00 (-10.00 to +20.00) | 1 of 2 |")
    assert beside_first({"a": histories["a"]}) == ""
    alone = {"c": histories["c"], "d": history([0.1, 0.25])}
    assert "| d | 25.00 | -25.00 | 0 of 1 |" in beside_first(alone)


def test_ranks_are_within_trials_and_over_settings(tmp_path):
    def rows(accuracies):
        shown = [(r, t, a - 0.1 * (1 - r)) for r in (0, 1) for t, a in enumerate(accuracies)]
        return [{"round": r, "trial": t, "accuracy": a, "val_accuracy": a} for r, t, a in shown]

    histories = {"a": rows([0.5, 0.9]), "b": rows([0.6, 0.7]), "c": rows([0.6, 0.2])}
    one = write_trials(histories, 3, [1, 2], tmp_path / "x.csv")
    trials = read_trials(one, "best")
    assert trials == {"a": [0.5, 0.9], "b": [0.6, 0.7], "c": [0.6, 0.2]}
    assert read_trials(one, "by_validation") == trials
    assert mean_ranks(trials) == {"a": 2.0, "b": 1.75, "c": 2.25}  # 3 and 1, 1.5 and 2, 1.5 and 3
    text = ranked({"x": trials, "y": {"c": [0.9], "b": [0.8], "a": [0.1]}}).splitlines()
    assert [line.split("|")[1:3] for line in text[2:]] == [[" c ", " 1.62 "], [" b ", " 1.88 "], [" a ", " 2.50 "]]
    with pytest.raises(ValueError, match="y does not have the same entries as the others: c"):
        ranked({"x": trials, "y": {"a": [0.1], "b": [0.2]}})
    (tmp_path / "x.csv").write_text("entry,seed,split,best\na,1,1,0.5\nb,1,1,0.5\nb,2,1,0.5\n")
    with pytest.raises(ValueError, match="does not have the same trials"):
        read_trials(tmp_path / "x.csv", "best")
    with pytest.raises(ValueError, match="no last of every trial"):
        read_trials(tmp_path / "x.csv", "last")
