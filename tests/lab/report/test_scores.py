"""Tables and sentences of tasks other than classification, whose lower scores may be better."""

import math
import warnings

import numpy as np
import pytest

from fedjax_ht.lab.report.compared import headline, ranking
from fedjax_ht.lab.report.plots import accuracy_curves, late_range, paired_points, rendered
from fedjax_ht.lab.report.plots import costs as cost_curves
from fedjax_ht.lab.report.report import warnings as to_watch
from fedjax_ht.lab.report.results import Aim, costs, run_results
from fedjax_ht.lab.report.rows import Score, score_in
from fedjax_ht.lab.report.statistics import client_gains, differences_to

LOWER = Score("rmse", -1)


def history(*errors, trial=0):
    rows = []
    for number, error in enumerate(errors):
        row = {"round": number, "trial": trial, "score": "rmse", "better": "lower"}
        row |= {"rmse": error, "rmse_pooled": error, "mae": error / 2, "mae_pooled": error / 2}
        row |= {"rmse_std": 0.5, "rmse_worst10": 2 * error, "clients": [error - 1, error + 1]}
        row |= {"participants": 2, "arrived": 2, "flops": 10.0, "seconds_round": 1.0}
        row |= {"seconds_evaluation": 0.0}
        for way in ("uplink", "downlink"):
            row |= {f"{way}_payload_elements": 4, f"{way}_payload_bytes": 16}
        rows.append(row)
    return rows


def entries(*lasts):
    trials = [history(60.0, 50.0 + i, last, trial=i) for i, last in enumerate(lasts)]
    local = [history(60.0, 58.0, 54.0 + i, trial=i) for i in range(len(lasts))]
    return {"local": local, "fedper": trials}


def test_the_score_is_that_of_the_rows():
    assert score_in(entries(40.0)) == LOWER and score_in({"a": [[{"round": 0}]]}) == Score()
    assert Score("micro_f1").text(0.5) == "50.00" and LOWER.text(0.5) == "0.5"


def test_lower_errors_lead():
    histories = entries(41.0, 42.0, 43.0, 44.0)
    assert ranking(histories) == ["fedper", "local"]
    assert headline(histories, "local") == (
        "fedper is ahead of local by 13 of RMSE, in 4 of 4 trials (95 % interval 13 to 13)."
    )
    text = differences_to("local", histories).markdown()
    assert "better than local by" in text and "+13 (+13 to +13) | 4 of 4" in text
    assert client_gains(histories)["fedper"].median == pytest.approx(13)
    _, points = paired_points(histories["fedper"], histories["local"])
    assert points[0].tolist() == [0, 8, 13]
    assert late_range(histories, LOWER)[0] < 41


@pytest.mark.parametrize("errors", [[60.0, 58.0, math.inf], [math.inf] * 3])
def test_a_diverged_entry_is_shown(errors):
    """Its errors are infinite, and have no finite deviation over clients."""
    diverged = history(*errors)
    for row in diverged:
        if row["rmse"] == math.inf:
            del row["rmse_std"]
    histories = entries(41.0) | {"fedper": [diverged]}
    for figure in (accuracy_curves(histories, "local"), cost_curves(histories)):
        assert rendered(figure, "png") and np.isfinite(figure.axes[0].get_ylim()).all()
    assert late_range({"fedper": [history(*[math.inf] * 3)]}, LOWER) == (-0.5, 0.5)
    assert "| inf |" in run_results(histories).markdown()
    assert headline(histories, "local").startswith("local is ahead of fedper")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (
            paired_points([diverged], [diverged]),
            differences_to("local", histories | {"b": [diverged]}),
        )


def test_errors_that_rise_or_never_fall_are_pointed_at():
    (risen,) = to_watch({"a": [history(60.0, 40.0, 70.0)]})
    assert risen == "a: the last round's RMSE is 70, the best round's 40"
    (infinite,) = to_watch({"a": [history(60.0, 40.0, math.inf)]})
    assert infinite.endswith("RMSE is inf, the best round's 40")
    assert to_watch({"a": [history(60.0, 40.0, 50.0)]}) == []
    histories = {"a": [history(60.0, 61.0)], "b": [history(62.0, 60.5)]}
    assert to_watch(histories) == ["a: the best round is 0, before training"]
    assert (
        headline(histories, "b") == "No entry is better in a trained round than a before training."
    )


def test_the_target_is_reached_from_above():
    histories = entries(40.0, 41.0)
    lines, target, text = costs(histories, Aim())
    assert target == 55 and lines["fedper"].cost.rounds == 1 and lines["local"].cost.rounds == 2
    assert "the highest best RMSE of all trials" in text.markdown()
    assert costs(histories, Aim(target=41.5))[0]["local"].cost is None


def test_further_metrics_have_columns():
    text = run_results(entries(40.0, 42.0)).markdown()
    assert "| method | RMSE | MAE |" in text and "| fedper | 41 ± 1 | 20.5 |" in text


def test_a_multi_label_run_has_its_metrics_in_percent_and_its_new_clients():
    row = {"round": 1, "trial": 0, "score": "micro_f1", "better": "higher", "micro_f1": 0.5}
    row |= {"micro_f1_std": 0.1, "micro_f1_worst10": 0.4, "micro_f1_pooled": 0.5, "map": 0.25}
    row |= {"macro_f1": 0.4, "macro_f1_pooled": 0.4}
    row |= {"map_pooled": 0.3, "new_micro_f1": 0.125, "clients": [0.4, 0.6]}
    text = run_results({"a": [[row]]}).markdown()
    assert "| method | micro F1 % | mAP % | new clients |" in text
    assert "| a | 50.00 | 25.00 | 12.50 |" in text and text.splitlines()[0].count("macro") == 1
    del row["new_micro_f1"]
    assert "new clients" not in run_results({"a": [[row]]}).markdown()
