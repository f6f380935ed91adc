"""Margins of a run's prototypes, and a server's training in other orders: commands and files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.margins import prototype_margins
from experiments.prototype_margins import (
    GLOBAL,
    Row,
    client_prototypes,
    global_prototypes,
    rows_of,
    table_of,
)
from experiments.server_orders import training
from fedjax_ht.lab.runs.evaluate import load_run
from tests.experiments.folders import read_csv
from tests.reference.margins import nearest_and_mean

ROWS = [
    Row("fedproto", 0, 5, "0", 0, 1.0, 2.0),
    Row("fedproto", 0, 5, "0", 1, 1.0, 2.0),
    Row("fedproto", 0, 5, "1", 0, 3.0, 4.0),
    Row("fedproto", 0, 5, GLOBAL, 0, 2.0, 2.5),
    Row("fedproto", 0, 5, GLOBAL, 1, 2.0, 3.5),
]


def test_the_table_compares_clients_with_the_global_prototypes():
    """Class 1's global margin is above all its clients', class 0's is not."""
    (row,) = table_of(ROWS).rows
    assert row == ["fedproto", "5", "1.67", "2", "2", "2", "2.67", "3", "1 of 2"]


@pytest.mark.slow
def test_margins_of_a_run(run_module, played, tmp_path):
    """FedProto's global prototypes are the means of those of the clients' trained models."""
    run, table, drawn = f"--workdir={played}", tmp_path / "a.csv", tmp_path / "a.png"
    done = run_module("prototype_margins", run, f"--csv={table}", f"--picture={drawn}", drawn=True)
    assert done.returncode == 0, done.stderr
    assert "local has no global prototypes" in done.stdout and drawn.exists()

    loaded = load_run(played, "fedproto")
    values, present = client_prototypes(loaded, 0)
    means = [values[present[:, label], label].mean(0) for label in range(4)]
    got, sent = global_prototypes(loaded)
    assert sent.all() and values.shape[:2] == (4, 4)
    np.testing.assert_allclose(got, means, rtol=1e-4, atol=1e-6)

    rows = read_csv(table)
    assert {row["method"] for row in rows} == {"fedproto", "fedtgp:server_epochs=2"}
    shown = [row["client"] for row in rows if row["method"] == "fedproto"]
    assert shown == [row.client for row in rows_of(loaded, 0)]
    first = min(np.linalg.norm(got[0] - got[other]) for other in (1, 2, 3))
    place = {"method": "fedproto", "client": GLOBAL, "label": "0"}
    (row,) = [row for row in rows if place.items() <= row.items()]
    np.testing.assert_allclose(float(row["nearest"]), first, rtol=1e-5)

    only = run_module("prototype_margins", run, "--method=local", f"--csv={table}")
    assert only.returncode == 2 and "no entry of the run in" in only.stderr
    missing = run_module("prototype_margins", run)
    assert missing.returncode == 2 and "give --workdir and --csv; see --help" in missing.stderr


@pytest.mark.slow
def test_a_server_trains_again_in_other_orders(run_module, played, tmp_path):
    run, table = f"--workdir={played}", tmp_path / "orders.csv"
    chosen = [run, "--method=fedtgp:server_epochs=2", f"--csv={table}", "--orders=2"]
    done = run_module("server_orders", *chosen)
    assert done.returncode == 0, done.stderr
    rows = read_csv(table)
    settings = [row["setting"] for row in rows]
    assert settings[:2] == ["as it was", "class means"] and settings[-1] == "own heads"
    assert len(rows) == 3 + 2 * 4 + 1
    clients = [[float(row[f"client_{i}"]) for i in range(4)] for row in rows]
    np.testing.assert_allclose([float(row["accuracy"]) for row in rows], np.mean(clients, 1), 1e-5)
    assert all(int(row["astray"]) <= int(row["uploads"]) <= 16 for row in rows)
    few = [int(row["uploads"]) for row in rows if row["setting"] == "uploads of 20 samples"]
    assert few[0] == few[1] < int(rows[0]["uploads"])

    loaded = load_run(played, "fedtgp:server_epochs=2")
    before = loaded.state.server.prototypes
    values, present = map(jnp.asarray, client_prototypes(loaded, 0))
    one, same, two = (training(loaded)(values, present, jax.random.key(i)) for i in (0, 0, 1))
    np.testing.assert_array_equal(one.prototypes, same.prototypes)
    assert (one.prototypes != two.prototypes).any() and (one.prototypes != before).any()
    still = training(loaded, server_lr=1e-12)(values, present, jax.random.key(0))
    np.testing.assert_allclose(still.prototypes, before, rtol=1e-6)

    other = run_module("server_orders", run, "--method=local", f"--csv={table}")
    assert other.returncode == 2 and "only FedTGP's server trains prototypes" in other.stderr


@pytest.mark.parametrize("seed", range(3))
def test_margins_equal_the_reference(seed):
    """Five clients have different classes, some one or none; absent prototypes are never read."""
    rng = np.random.default_rng(seed)
    present = rng.random((5, 6)) < 0.5
    present[0], present[1] = False, np.arange(6) == 2
    prototypes = np.where(present[..., None], rng.normal(size=(5, 6, 4)), np.nan).astype(np.float32)
    got = prototype_margins(prototypes, present)
    for client in range(5):
        labels = np.flatnonzero(present[client]).tolist()
        want = nearest_and_mean({label: prototypes[client, label].tolist() for label in labels})
        for label in range(6):
            found = got.nearest[client, label], got.mean[client, label]
            np.testing.assert_allclose(found, want.get(label, (np.nan, np.nan)), rtol=1e-6)


def test_the_global_prototypes_are_one_set():
    corners = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    got = prototype_margins(corners, np.ones(3, bool))
    np.testing.assert_allclose(got.nearest, [3, 3, 4])
    np.testing.assert_allclose(got.mean, [3.5, 4, 4.5])
