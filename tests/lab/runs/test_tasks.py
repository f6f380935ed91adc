"""Runs of tasks other than classification, from a config to the folder, the page and the search."""

import csv
import re

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.data.client_data import arranged
from fedjax_ht.lab.config.base import base_config, partition_config, typed_config
from fedjax_ht.lab.config.entries import only
from fedjax_ht.lab.report.results import Aim, check_aim
from fedjax_ht.lab.report.rows import PARTICIPANTS, Score
from fedjax_ht.lab.runs.evaluate import load_run, print_scores
from fedjax_ht.lab.runs.plan import fitting, plan
from fedjax_ht.lab.runs.search import searched, table
from fedjax_ht.lab.runs.train import train_and_evaluate
from fedjax_ht.lab.safe.torch_files import noted_classes
from tests.lab.runs.folders import refused


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    x = np.random.default_rng(0).normal(size=(90, 3))
    path = tmp_path_factory.mktemp("homes") / "homes.csv"
    rows = [",".join(map(str, [*row, 50 + 9 * row[0]])) for row in x.round(3)]
    path.write_text("\n".join(["a,b,c,price", *rows]) + "\n")
    return path


def config_of(homes):
    config = base_config()
    config.dataset.name, config.dataset.task = f"csv:{homes}:price", "regression"
    config.partition = partition_config("iid", num_clients=3, val_share=0.2)
    config.model.group = "mlp2"
    config.training.batch_size = 10
    config.rounds, config.trials = 2, 1
    config.report.maps = "none"
    return config


def test_a_run_shows_its_error(homes, tmp_path, capsys, blank_pictures):
    labels = ["local", "local:training.learning_rate=0.02"]  # by one program
    config = only(typed_config(config_of(homes)), labels)
    result = train_and_evaluate(config, tmp_path / "run")
    assert re.search(r"is ahead of|level: RMSE|\(RMSE [\d.]+\) and", result.summary)
    assert "| method | RMSE | MAE | R2 |" in result.summary
    page = (tmp_path / "run/report.html").read_text()
    assert "RMSE is the mean over clients" in page and " groups of targets, and tests" in page
    (_, *_, last) = csv.DictReader((tmp_path / "run/local/clients.csv").open())
    row = fl.best(result.histories["local"][0]).last
    assert float(last["client_2"]) == pytest.approx(row["clients"][2])
    print_scores(load_run(tmp_path / "run", "local"), client=2)
    assert f"test RMSE by head: {row['clients'][2]:.4g} of" in capsys.readouterr().out
    again = train_and_evaluate(config, tmp_path / "run")
    assert again.histories == result.histories and again.summary == result.summary


def test_a_method_of_classes_is_refused_before_any_entry_trains(homes):
    config, skipped = only(typed_config(config_of(homes)), ["local", "fedproto"]), []
    with refused("fedproto compares samples by class"):
        plan(config)
    assert len(fitting(config, skipped.append).entries) == 1
    assert len(skipped) == 1


def test_test_samples_set_no_units(homes):
    (run,) = plan(only(typed_config(config_of(homes)), ["local"])).runs.values()
    train = np.concatenate([client.train for client in run.partitions[0]])
    centre = run.federation.task.predictions(np.zeros((1, 1)))
    np.testing.assert_allclose(centre, run.dataset.targets[train].mean(), rtol=1e-5)
    assert abs(centre - run.dataset.targets.mean()) > 1e-3


def test_a_trial_with_a_split_of_its_own_has_the_features_of_that_run(homes):
    """Other trials' training samples are its test samples."""
    config, moments = typed_config(config_of(homes)), []
    config.partition.per_trial = True
    for config.trials, config.partition.seed, trial in ((2, 1, 1), (1, 2, 0), (1, 1, 0)):
        (run,) = plan(only(config, ["local"])).runs.values()
        data = arranged(run.dataset, run.partitions[trial], run.federation)
        moments.append(data.buckets[run.federation.buckets[0].name].preprocess.mean)
    np.testing.assert_array_equal(moments[0], moments[1])
    assert not np.array_equal(moments[0], moments[2])


def test_a_search_minimises_the_error(homes, tmp_path):
    config, lines = config_of(homes), []
    labels = [f"local:training.learning_rate={rate}" for rate in (0.0001, 0.05)]
    result = searched(typed_config(config), labels, 0, workdir=tmp_path, tell=lines.append)
    assert result.best == labels[1] and max(result.scores[2].values()) < 0
    assert "validation RMSE" in table(result) and "-" not in table(result).splitlines()[-1][2:]
    assert any("on validation" in line for line in lines)


RMSE, F1 = Score("rmse", -1), Score("micro_f1")


@pytest.mark.parametrize(
    ("aim", "score", "line"),
    [
        (Aim(share=0.9), RMSE, "--target_share and --target_score are for accuracies"),
        (Aim(PARTICIPANTS), RMSE, "--target_share and --target_score are for accuracies"),
        (Aim(target=-1.0), RMSE, "must be a finite RMSE above 0"),
        (Aim(PARTICIPANTS), F1, "'accuracy_participants', but these data are scored by micro F1"),
        (Aim(target=20.0), F1, "--target is 20.0; it must be above 0 and at most 1"),
        (Aim(share=0.0), F1, "--target_share is 0.0; it must be above 0 and at most 1"),
    ],
)
def test_targets_of_a_comparison(aim, score, line):
    check_aim(Aim(target=20.0), RMSE)
    check_aim(Aim(share=0.9), F1)
    with refused(line):
        check_aim(aim, score)


def test_a_target_that_no_run_reaches_is_refused_before_training(homes, tmp_path):
    config = only(typed_config(config_of(homes)), ["local"])
    with refused("--target_score are for accuracies"):
        train_and_evaluate(config, tmp_path / "run", aim=Aim(PARTICIPANTS))
    assert not (tmp_path / "run").exists()


@pytest.fixture
def marks(tmp_path):
    """Rows with two labels, "cat" and "dog"."""
    x, path = np.random.default_rng(0).normal(size=(60, 3)).round(3), tmp_path / "marks.csv"
    rows = [",".join(map(str, [*row, *(row[:2] > 0).astype(int)])) for row in x]
    path.write_text("\n".join(["a,b,c,cat,dog", *rows]) + "\n")
    return path


def test_an_exported_head_starts_on_its_labels_alone(marks, tmp_path, evaluated, no_results):
    file = tmp_path / "client.safetensors"
    config = config_of(marks)
    config.dataset.name, config.dataset.task = f"csv:{marks}:cat,dog", "multi-label"
    config.rounds = 1
    train_and_evaluate(only(typed_config(config), ["local"]), tmp_path / "run")
    evaluated(WORKDIR=tmp_path / "run", CLIENT=0, EXPORT=str(file))
    assert noted_classes(file) == ("cat", "dog")
    config.model.update({"weights": {"mlp_narrow": str(file)}, "weights_head": True})
    plan(only(typed_config(config), ["local"]))
    config.dataset.name = f"csv:{marks}:dog,cat"
    with refused("the rows of its head are cat, dog, the data's classes dog, cat"):
        plan(only(typed_config(config), ["local"]))


def test_an_exported_head_of_numbers_names_no_classes(homes, tmp_path, evaluated, no_results):
    file = tmp_path / "client.safetensors"
    train_and_evaluate(only(typed_config(config_of(homes)), ["local"]), tmp_path / "run")
    evaluated(WORKDIR=tmp_path / "run", CLIENT=0, EXPORT=str(file))
    assert noted_classes(file) is None
