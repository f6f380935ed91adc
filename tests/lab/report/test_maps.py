"""Maps of features: what is shown, that it is computed once, and how it is kept and drawn."""

import dataclasses

import jax
import numpy as np
import pytest

from fedjax_ht.core.method import View
from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.lab.report import maps
from fedjax_ht.lab.report.maps import (
    CLASSES,
    CLIENTS,
    FeatureMap,
    feature_picture,
    load_map,
    one_space,
    placed,
    principal,
    remember_map,
    save_map,
    shown_clients,
    shown_images,
)
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.play import simulate
from tests.federations import ASSIGNMENT, TRAIN_COUNTS, mixed_federation
from tests.runs import config_of


def a_map(clients: int = 2, widths=(4, 4), prototypes: int = 0, **changes) -> FeatureMap:
    rng = np.random.default_rng(0)
    labels = np.array([0, 1, 2, 0, 1, 2], np.int32)
    of_clients = [widths[i % len(widths)] for i in range(clients)]
    features = tuple(rng.normal(size=(6, width)).astype(np.float32) for width in of_clients)
    of_server, ids = np.arange(prototypes, dtype=np.int32), np.arange(clients, dtype=np.int32)
    values = rng.normal(size=(prototypes, widths[0])).astype(np.float32)
    trains_on = np.array([[True, True, False]] * clients)
    feature_map = FeatureMap(3, labels, ids, trains_on, features, values, of_server)
    return feature_map._replace(**changes)


@pytest.fixture(scope="module")
def entry(tiny_config):
    """FedTGP's run, its simulation, and a state."""
    run = plan(config_of(tiny_config)).runs["fedtgp"]
    simulation = simulate(run)
    return run, simulation, simulation.run_round(simulation.init())[0]


def test_a_map_is_computed_once_a_round(entry, tmp_path, monkeypatch):
    run, simulation, state = entry
    messages = []
    remember_map(run, simulation, state, tmp_path, write=True, warn=messages.append)
    feature_map = load_map(tmp_path)
    assert feature_map.round == 1 and len(feature_map.clients) == 4
    assert len(feature_map.labels) <= maps.IMAGES
    test = np.concatenate([client.test for client in run.partitions[0]])
    assert np.isin(feature_map.labels, run.dataset.labels[test]).all()
    shape = (len(feature_map.labels), feature_map.prototypes.shape[1])
    assert {x.shape for x in feature_map.features} == {shape}
    sent = state.server.prototypes[feature_map.prototype_labels]
    np.testing.assert_array_equal(feature_map.prototypes, sent)
    calls = []
    monkeypatch.setattr(maps, "feature_map", lambda *arguments: calls.append(arguments[-1].round))
    remember_map(run, simulation, state, tmp_path, write=True, warn=messages.append)
    assert not calls
    later = state._replace(round=2)
    remember_map(run, simulation, later, tmp_path, write=True, warn=messages.append)
    assert calls == [2] and not messages


def test_only_one_process_writes(entry, tmp_path):
    run, simulation, state = entry
    remember_map(run, simulation, state, tmp_path, write=False, warn=print)
    assert load_map(tmp_path) is None


def test_a_method_whose_features_fail_ends_no_run(entry, tmp_path):
    run, simulation, state = entry
    messages = []

    def fail(*arguments):
        raise KeyError("params")

    failing = dataclasses.replace(simulation, features=fail)
    remember_map(run, failing, state, tmp_path, write=True, warn=messages.append)
    assert messages == ["fedtgp: no map of its features (KeyError: 'params')"]
    assert load_map(tmp_path) is None
    without = run._replace(method=run.method._replace(view=View(features=None)))
    remember_map(without, None, state, tmp_path, write=True, warn=messages.append)
    assert len(messages) == 1


def test_a_map_is_read_as_it_was_written(tmp_path):
    written = a_map(3, (4, 5), 2)
    save_map(written, tmp_path)
    read = load_map(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, read, written)
    (tmp_path / maps.MAP).write_bytes(b"PK half a file")
    assert load_map(tmp_path) is None and load_map(tmp_path / "nowhere") is None


def test_clients_of_all_architectures_are_shown_and_those_with_training_images_first():
    federation = mixed_federation()
    # all three wide ones; 3 trains on nothing
    assert shown_clients(federation, TRAIN_COUNTS) == [0, 1, 2, 4, 6, 7]
    assert [ASSIGNMENT[i] for i in (4, 6, 7)] == ["wide"] * 3 and CLIENTS == 6


def test_images_are_test_images_of_the_classes_that_weigh_most():
    labels = np.tile(np.arange(20), 40)
    none, tests = np.array([], int), [np.arange(400 + i, 800, 2) for i in (0, 1)]
    partition = tuple(ClientIndices(np.arange(i, 400), none, tests[i]) for i in (0, 1))
    weight = np.arange(20) % 15
    shown = shown_images(labels, partition, weight)
    assert shown.min() >= 400 and len(set(shown.tolist())) == len(shown) == maps.IMAGES
    assert sorted(set(labels[shown].tolist())) == list(range(5, 15)) and CLASSES == 10
    # mixed, as models that normalise by batch see them
    assert len(set(labels[shown[:20]].tolist())) > 5
    nobody = tuple(client._replace(test=np.array([], int)) for client in partition)
    assert len(shown_images(labels, nobody, weight)) == 0


def test_the_principal_plane_is_found():
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(5, 5)))[0][:2]
    plane = rng.normal(size=(40, 2)) * (3, 1)
    rows = plane @ axes + 7
    project, share = principal(rows)
    assert share == pytest.approx(1)

    def gaps(x):
        return np.linalg.norm(x[:, None] - x, axis=-1)

    np.testing.assert_allclose(gaps(project(rows)), gaps(rows), atol=1e-9)
    assert project(rows)[:, 0].var() > project(rows)[:, 1].var()
    assert principal(np.ones((4, 1)))[1] == 0
    assert principal(np.ones((4, 1)))[0](np.ones((4, 1))).shape == (4, 2)


def test_t_sne_that_fails_is_replaced_by_pca_with_a_word(monkeypatch):
    def fail(rows):
        raise ModuleNotFoundError("No module named 'joblib'")

    messages = []
    monkeypatch.setattr(maps.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(maps, "tsne", fail)
    assert placed(np.eye(3), messages.append)[0].startswith("PCA, ")
    assert messages == ["no t-SNE of the features (ModuleNotFoundError: No module named 'joblib')"]
    monkeypatch.setattr(maps, "tsne", lambda rows: rows[:, :2])
    assert placed(np.eye(3), pytest.fail)[0] == "t-SNE"


def test_all_clients_are_in_one_picture():
    figure = feature_picture(a_map(prototypes=2), ("a", "b", "c"))
    (axes,) = figure.axes
    points, *means, stars = axes.collections
    assert len(points.get_offsets()) == 12 and len(means) == 2 and len(stars.get_offsets()) == 2
    np.testing.assert_allclose(means[0].get_offsets()[0], points.get_offsets()[[0, 3]].mean(0))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    expected = ["client 0", "client 1", "prototype"]
    assert [t.get_text() for t in figure.legends[1].get_texts()] == expected


def test_features_of_several_widths_or_that_are_not_finite_have_no_picture():
    assert one_space(a_map()) and not one_space(a_map(widths=(4, 5)))
    broken = a_map()
    broken.features[1][0, 0] = np.nan
    assert not one_space(broken)
