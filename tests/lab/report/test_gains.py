"""Gains of single clients over local training."""

import csv
import math

import numpy as np
import pytest

from fedjax_ht.lab.report.document import Document
from fedjax_ht.lab.report.results import scored, write_csv
from fedjax_ht.lab.report.statistics import beyond_noise, client_gains, gain_table, gains_of_run


def runs(*scores, samples=100, **columns):
    """An untrained row and a trained one of each run, given by its clients' accuracies."""
    made = []
    for trial, clients in enumerate(scores):
        rows = []
        for number, accuracies in enumerate(([0.0] * len(clients), clients)):
            known = [a for a in accuracies if a is not None]
            row = {"round": number, "trial": trial, "accuracy": float(np.mean(known))}
            row |= {"clients": list(accuracies), "accuracy_samples": [samples] * len(clients)}
            row |= {"seconds_round": 1.0, "seconds_evaluation": 0.0, "arrived": 1}
            rows.append(row | {"uplink_payload_elements": 0, "participants": 1} | columns)
        made.append(rows)
    return made


@pytest.mark.parametrize(
    "right, right_alone, total, sign",
    [
        (80, 60, 100, 1),
        (60, 80, 100, -1),
        (80, 70, 100, 0),
        (800, 700, 1000, 1),
        # one sample says nothing, although both shares have no spread of their own
        (1, 0, 1, 0),
        (100, 100, 100, 0),
        (100, 90, 100, 1),
        (0, 0, 0, 0),
    ],
)
def test_noise_is_that_of_a_clients_test_samples(right, right_alone, total, sign):
    a, b = (right + 1) / (total + 2), (right_alone + 1) / (total + 2)
    error = math.sqrt((a * (1 - a) + b * (1 - b)) / (total + 2))
    assert (abs(a - b) > 2 * error) == (sign != 0)
    shares = [np.array([x / max(1, total)]) for x in (right, right_alone)]
    assert beyond_noise(*shares, np.array([total])) == [sign]


def test_gains_of_a_run():
    alone = np.linspace(0.3, 0.6, 20)
    accuracy = alone.copy()
    accuracy[:5] += 0.3
    accuracy[5:7] -= [0.25, 0.01]
    gains = gains_of_run(accuracy, alone, np.full(20, 100))
    assert gains.median == 0 and (gains.gaining, gains.losing) == (5 / 20, 1 / 20)
    assert gains.worst_tenth == pytest.approx((-0.25 - 0.01) / 2)  # two of twenty
    unknown = gains_of_run(accuracy, alone, None)
    assert unknown.median == 0 and math.isnan(unknown.gaining) and math.isnan(unknown.losing)


def test_clients_are_paired_with_local_training_trial_by_trial():
    """Local training is the second entry, and a client without test samples is left out."""
    histories = {
        "fedproto": runs([0.9, 0.5, None], [0.2, 0.9, None]),
        "local:training.learning_rate=0.1": runs([0.5, 0.5, None], [0.7, 0.8, None]),
    }
    gains = client_gains(histories)
    assert list(gains) == ["fedproto"]
    assert gains["fedproto"] == pytest.approx((np.mean([0.2, -0.2]), 0.25, 0.25, -0.25))
    text = " ".join(gain_table(histories).markdown().split())
    title = "median gain over local:training.learning_rate=0.1, points"
    assert f"| entry | {title} | clients that gain % | clients that lose % |" in text
    assert "| fedproto | +0.00 | 25 | 25 | -25.00 |" in text and "2 standard errors" in text


def test_without_local_training_nothing_is_shown_and_a_line_says_why():
    histories = {"fedproto": runs([0.9]), "fedtgp": runs([0.5])}
    assert client_gains(histories) == {}
    assert "no entry is 'local'" in " ".join(gain_table(histories).markdown().split())
    assert gain_table({"local": runs([0.5])}) == Document()


def test_rows_that_cannot_be_paired_have_no_gains():
    local = runs([0.5, 0.5])
    others = [runs([0.9, 0.5], [0.9, 0.5]), runs([0.9, 0.5], client_ids=[3, 4]), runs([0.9])]
    for other in (*others, [[{"round": 0, "trial": 0, "accuracy": 0.5}]]):
        assert client_gains({"local": local, "fedproto": other}) == {}
        assert gain_table({"local": local, "fedproto": other}) == Document()


def test_rows_of_an_earlier_version_do_not_say_what_is_noise():
    histories = {"local": runs([0.5, 0.5]), "fedproto": runs([0.9, 0.7])}
    for row in histories["fedproto"][0]:
        del row["accuracy_samples"]
    assert "| fedproto | +30.00 | - | - | +20.00 |" in gain_table(histories).markdown()


def test_the_csv_has_gains_where_local_training_is_an_entry(tmp_path):
    histories = {"local": runs([0.5, 0.5]), "fedproto": runs([0.9, 0.4])}
    lines = {label: scored(entry, 0.2) for label, entry in histories.items()}
    path = write_csv(lines, 0.2, tmp_path / "x.csv", gains=client_gains(histories))
    local, fedproto = csv.DictReader(path.open())
    assert local["gain_median"] == local["gain_losing"] == ""
    assert float(fedproto["gain_median"]) == pytest.approx(0.15)
    assert float(fedproto["gain_gaining"]) == 0.5 and float(fedproto["gain_losing"]) == 0
    assert float(fedproto["gain_worst_tenth"]) == pytest.approx(-0.1)
    path = write_csv(lines, 0.2, tmp_path / "x.csv", gains={})
    assert "gain" not in path.read_text()
