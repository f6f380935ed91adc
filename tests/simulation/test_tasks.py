"""Runs of other tasks: rows beside NumPy on the predictions, the best round, patience, refusals."""

import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.data.augment import flip
from fedjax_ht.simulation.runs import Ending
from fedjax_ht.trust.options import Attack
from tests.reference import task_metrics

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3)).astype(np.float32)
IMAGES = RNG.integers(0, 255, (90, 2, 3)).astype(np.uint8)
SETS = {
    "regression": fl.regression_dataset("toy", X, 4 * X[:, :2] + (900, -2), bins=3),
    "multi_label": fl.multi_label_dataset("toy", X, X > 0.2),
    "per_pixel": fl.per_pixel_dataset("toy", IMAGES, IMAGES // 90),
}


def parts(kind: str, augmentation=None, **options):
    dataset = SETS[kind]
    models = {f"mlp{i}": fl.mlp(dataset.num_outputs, (8,)) for i in (0, 1)}
    shape, outputs = dataset.input_shape, dataset.num_outputs
    federation = fl.make_federation(models, shape, outputs, num_clients=3, task=dataset.task)
    partition = fl.make_partition("iid", dataset, 3, seed=0, val_share=0.2)
    data = fl.make_federation_data(dataset, partition, federation)
    training = fl.LocalTraining(optax.adam(0.01), batch_size=8, augmentation=augmentation)
    method = fl.local(training)
    options = fl.SimulationOptions(**options)
    return dataset, partition, fl.make_simulation(method, federation, data, options)


@pytest.mark.parametrize("kind", SETS)
def test_rows_are_those_of_the_predictions(kind):
    dataset, partition, simulation = parts(kind, scoring=Scoring(state="both"))
    state, history = fl.run(simulation, rounds=2)
    reference, row = getattr(task_metrics, kind), history[-1]
    for prefix, split in (("", "test"), ("val_", "val")):
        said, true, clients = [], [], []
        for i, client in enumerate(partition):
            samples = getattr(client, split)
            outputs = simulation.predict(state, i, dataset.inputs[samples])
            said.append(dataset.task.predictions(outputs))
            true.append(dataset.targets[samples])
            clients.append(reference(said[-1], true[-1]))
        pooled = reference(np.concatenate(said), np.concatenate(true))
        if split == "test":
            scores = [each[row["score"]] for each in clients]
            np.testing.assert_allclose(row["clients"], scores, rtol=1e-4)
            assert row["client_samples"] == list(map(len, true))
        for name, expected in pooled.items():
            np.testing.assert_allclose(row[f"{prefix}{name}_pooled"], expected, rtol=1e-4)
            mean = np.nanmean([each[name] for each in clients])
            np.testing.assert_allclose(row[f"{prefix}{name}"], mean, rtol=1e-4)
    score = row["score"]
    worst = max if row["better"] == "lower" else min
    assert row[f"{score}_worst10"] == pytest.approx(worst(row["clients"]))
    assert row[f"trained_{score}"] == row[score] and "accuracy" not in row


def test_the_best_round_and_patience_go_by_the_better_end():
    rows = [
        {"round": i, "score": "rmse", "better": "lower", "rmse": x, "val_rmse": y}
        for i, (x, y) in enumerate([(3.0, 2.0), (1.0, 1.0), (2.0, 1.5), (2.5, 1.6)])
    ]
    best = fl.best(rows)
    assert best.on_test["round"] == best.on_val["round"] == 1
    assert repr(best).startswith("<Best rmse: by test 1 (round 1)")
    assert Ending(patience=2).reason(rows) == "patience"
    assert Ending(patience=3).reason(rows) is None


@pytest.mark.parametrize(
    "options, words",
    [
        ({"scoring": Scoring(auc=True)}, "scoring.auc is for classes, not for regression"),
        ({"attack": Attack("label_flip", 0.4)}, "'label_flip' is for classes"),
    ],
)
def test_options_of_classes_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        parts("regression", **options)


def test_images_do_not_move_without_their_masks():
    with pytest.raises(ValueError, match="augmentation moves the pixels of images but not their"):
        parts("per_pixel", flip)
