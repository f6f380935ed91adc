"""Experiments of objects in place of names: the same run, a folder that knows them, refusals."""

import dataclasses
import json

import flax.linen as nn
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.runs.evaluate import load_run
from fedjax_ht.lab.runs.method import local_training
from tests.lab.runs.folders import refused
from tests.runs import metrics

RECIPE = fl.LocalTraining(optax.sgd(0.1))
TABLE = fl.Dataset("table", np.eye(6, 4, dtype=np.float32), np.arange(6) % 2, ("a", "b"))
PAIR = {"narrow": fl.mlp(2, (8, 4)), "wide": fl.mlp(2, (16, 4))}


def objects_of(config, rate=None):
    """Returns the objects that a config names; of another learning rate where it is given."""
    dataset = fl.load_dataset(config.dataset.name)
    models = fl.model_group(config.model.group, dataset.num_classes, dataset.input_shape)
    training = typed_config(config).training
    training = dataclasses.replace(training, learning_rate=rate or training.learning_rate)
    methods = {"local": fl.local(local_training(training))}
    return {"dataset": dataset, "models": models, "methods": methods}


@pytest.fixture(scope="module")
def begun(config, tmp_path_factory):
    """A folder in which objects have run for one round of three."""
    folder = tmp_path_factory.mktemp("objects")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedjax_ht.lab.report.plots.rendered", lambda figure, kind: b"<svg></svg>")
        config = dataclasses.replace(config, rounds=1)
        fl.train_and_evaluate(fl.make_experiment(config, **objects_of(config)), folder)
    return folder


def test_a_run_of_objects_is_the_run_of_their_names(config, begun, finished, blank_pictures):
    """The later rounds are of another call, with objects that were made anew."""
    experiment = fl.make_experiment(config, **objects_of(config))
    result = fl.train_and_evaluate(experiment, begun)
    assert metrics(begun, "local") == metrics(finished, "local")
    assert result.files[-1] == begun / "report.html"
    noted = json.loads((begun / "config.json").read_text())
    assert noted["dataset"]["name"] == f"object:{config.dataset.name}"
    assert noted["model"]["group"] == "object:mlp_narrow+mlp_wide"
    names = ["object:mlp_narrow+mlp_wide", f"object:{config.dataset.name}"]
    assert sorted(noted["run"]["objects"])[1:] == names


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ("methods", r"run of another local \(method\.sha256 \w{12} instead of \w{12}\);"),
        ("models", r"run of another config \(model\.sha256 \w{12} instead of \w{12}\);"),
        ("rules", r"run of another config \(dataset\.rules\.sha256 \w{12} instead of \w{12}\);"),
        ("dataset", r"run of another config \(dataset\.sha256 \w{12} instead of \w{12}\);"),
        ("rate", r"another local \(.*training\.optimizer 'object:\w+' instead of 'object:"),
    ],
)
def test_a_folder_refuses_other_objects(config, begun, changed, line):
    objects = objects_of(config, rate=0.5 if changed == "rate" else None)
    dataset, method = objects["dataset"], objects["methods"]["local"]
    substitutes = {
        "methods": {"local": method._replace(rules=("head", "more"))},
        "models": objects["models"] | {"mlp_wide": fl.mlp(4, (65, 32))},
        "dataset": dataclasses.replace(dataset, inputs=dataset.inputs // 2),
    }
    substitutes["rules"] = dataclasses.replace(dataset, class_names=tuple("abcd"))
    if changed == "rules":
        objects["dataset"] = substitutes["rules"]
    elif changed in substitutes:
        objects[changed] = substitutes[changed]
    with refused(line):
        fl.train_and_evaluate(fl.make_experiment(config, **objects), begun)


def test_a_folder_of_objects_is_read_with_its_experiment(config, begun, blank_pictures):
    line = r"config\.json: object:.*, object:local: this run was given objects from Python"
    for call in (fl.report_run, load_run):
        with refused(line):
            call(begun)
    experiment = fl.make_experiment(config, **objects_of(config))
    text, written = fl.report_run(begun, experiment)
    assert "| local |" in text and written[-1] == begun / "report.html"
    assert load_run(begun, experiment=experiment).run.label == "local"
    other = fl.make_experiment(config, **objects_of(config, rate=0.5))
    with pytest.raises(ValueError, match=r"another local \(.*training\.optimizer"):
        fl.report_run(begun, other)


def test_methods_run_beside_the_entries_of_compare():
    config = fl.base_config()
    config.partition = fl.partition_config("iid", num_clients=2)
    config.entries = ("fedproto:weight=3.0",)
    experiment = fl.make_experiment(
        config, dataset=TABLE, models=PAIR, methods={"mine": fl.local(RECIPE)}
    )
    assert list(experiment.runs) == ["mine", "fedproto:weight=3.0"]
    assert experiment.runs["mine"].method.training is RECIPE
    assert experiment.runs["mine"].entry.training["optimizer"].startswith("object:")
    buckets = experiment.runs["mine"].federation.buckets
    assert [bucket.name for bucket in buckets] == ["narrow", "wide"]


@pytest.mark.parametrize(
    ("objects", "changes", "line"),
    [
        ({"dataset": [1, 2]}, {}, r"dataset is \[1, 2\]; it must be a fl\.Dataset"),
        ({"models": [nn.Dense(2)]}, {}, "models is a list; it must be a dict, name -> a Flax"),
        ({"methods": {}}, {}, "methods is empty; omit it, or give one"),
        ({"methods": {"a": fl.local}}, {}, r"methods\['a'\] is the function local; it must be a"),
        ({"methods": {"../a": fl.local(RECIPE)}}, {}, "methods has the name '../a'; it must be"),
        ({"dataset": TABLE}, {"dataset.label": "x"}, r"dataset\.label is 'x', which is not read"),
        ({"models": PAIR}, {"model.feature_dim": 8}, r"model\.feature_dim is 8, which is not read"),
        (
            {"models": PAIR},
            {"entries": ("fd:model.norm=group",)},
            r"'fd:\S+ sets model\.norm, which",
        ),
        (
            {"models": PAIR},
            {"entries": ("fd:model.group=cnn4",)},
            r"'fd:\S+ sets model\.group, whi",
        ),
        ({}, {"dataset.name": "object:gone"}, "object:gone: this run was given objects from Pyth"),
        ({}, {"model.group": "object:gone"}, "object:gone: this run was given objects from Python"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(objects, changes, line):
    config = fl.base_config()
    config.update(changes)
    with refused(line):
        fl.make_experiment(config, **objects)
