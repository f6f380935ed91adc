import numpy as np
import pytest

from experiments.prototype_drift import measures
from tests.experiments.folders import read_csv


def test_measures_of_three_points():
    corners = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [np.nan, 9.0]])
    present = np.array([True, True, True, False])
    got = measures(corners, present, corners + np.array([3.0, 4.0]))
    assert got == pytest.approx({"norm": 7 / 3, "nearest": 10 / 3, "drift": 5.0})
    assert measures(corners, present, None).keys() == {"norm", "nearest"}


@pytest.mark.slow
def test_a_run_is_followed_by_new_prototypes_and_by_those_before(run_module, tiny_config, tmp_path):
    table = tmp_path / "drift.csv"
    chosen = [f"--config={tiny_config}:runlocal", "--config.entries=()", f"--csv={table}"]
    evaluated = ["--config.evaluate.every=2", "--config.rounds=4"]
    done = run_module("prototype_drift", *chosen, "--config.method.name=fedtgp", *evaluated)
    assert done.returncode == 0, done.stderr
    rows = read_csv(table)
    assert [row["round"] for row in rows] == [str(i + 1) for i in range(len(rows))]
    assert rows[0]["drift"] == "" and all(float(row["drift"]) > 0 for row in rows[1:])
    scored = [row for row in rows if row["new_prototype"]]
    assert len(rows) == 4 and [row["round"] for row in scored] == ["2", "4"]
    assert all(0 <= float(row["before_prototype"]) <= 1 for row in scored)

    both = run_module("prototype_drift", chosen[0], chosen[2])
    assert both.returncode == 2 and "fedtgp, local: name one method" in both.stderr
