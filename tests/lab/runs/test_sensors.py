"""The quickstart on sensor windows, and what a config with them can be told wrongly."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.configs import quickstart_sensors
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.report.report import setting
from fedjax_ht.lab.runs.evaluate import LoadedRun, print_scores
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.train import train_and_evaluate
from fedjax_ht.models.registry import SENSORS
from tests.lab.runs.folders import refused


def test_persons_are_clients_and_the_second_time_tests():
    config = quickstart_sensors.get_config()
    experiment, dataset = plan(config), load_dataset("har_10persons")
    for person, client in enumerate(experiment.partitions[0], 1):
        windows = np.flatnonzero(dataset.groups == person)
        np.testing.assert_array_equal(np.concatenate([client.train, client.test]), windows)
        assert len(client.val) == 0 and 0 <= len(client.test) - len(client.train) <= 1
        for part in (client.train, client.test):
            assert set(dataset.labels[part]) == set(range(6))
    assert list(experiment.runs) == ["fedtgp", "local"]
    names = [bucket.name for bucket in experiment.runs["fedtgp"].federation.buckets]
    assert tuple(names) == SENSORS[config.model.group]
    text = setting(experiment)
    assert "10 clients on har_10persons. A client trains on 38 to 62 windows of 6 classes" in text


def test_a_client_is_scored_on_windows(capsys):
    """`evaluate` names samples as the data set does: they are no images."""
    run = plan(quickstart_sensors.get_config()).runs["local"]
    accuracy, counts = {"test": {"head": np.full(10, 0.5)}}, {"test": np.full(10, 7)}
    evaluation = SimpleNamespace(accuracy=accuracy, counts=counts, measured=None)
    simulation = SimpleNamespace(evaluate=lambda state, clients: evaluation)
    run = LoadedRun(run, simulation, SimpleNamespace(round=3))
    print_scores(run, client=2)
    assert capsys.readouterr().out.endswith("  test accuracy by head: 50.00 % of 7 windows\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset.image_size": 32}, "image_size is 32, but har_10persons has no images"),
        ({"dataset.normalisation": "dataset"}, "the moments of har_10persons are unknown"),
        ({"training.augmentation": ("flip",)}, "training.augmentation is .* har_10persons"),
        ({"partition.num_clients": 11}, "num_clients is 11; har_10persons has 10 groups"),
    ],
    ids=str,
)
def test_wrong_fields_are_one_line(changes, message):
    config = quickstart_sensors.get_config()
    config.update(changes)
    with refused(message):
        plan(config)


@pytest.mark.slow
def test_the_first_check_of_the_quickstart(tmp_path):
    """Also with products in half precision, and clients that the host keeps."""
    config = quickstart_sensors.get_config("runlocal")
    config.update({"precision": "bfloat16", "client_store": "host"})
    done = train_and_evaluate(config, tmp_path, lambda *_: None, stage=lambda line: None)
    for (history,) in done.histories.values():
        assert history[-1]["accuracy"] > 0
        assert all(np.isfinite(row.get("accuracy", 0)) for row in history)
    assert (tmp_path / "report.html").exists()
