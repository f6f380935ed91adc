"""A server's training in other orders, from a run's checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.prototype_margins import client_prototypes
from experiments.server_orders import training
from fedjax_ht.lab.runs.evaluate import load_run
from tests.experiments.folders import read_csv


@pytest.mark.slow
def test_a_server_trains_again(run_module, tiny_config, tmp_path):
    run, table = f"--workdir={tmp_path / 'run'}", tmp_path / "orders.csv"
    entries = "--config.entries=('local','fedtgp:server_epochs=2')"
    done = run_module("main", f"--config={tiny_config}:runlocal", run, entries)
    assert done.returncode == 0, done.stderr
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

    loaded = load_run(tmp_path / "run", "fedtgp:server_epochs=2")
    before = loaded.state.server.prototypes
    values, present = map(jnp.asarray, client_prototypes(loaded, 0))
    one, same, two = (training(loaded)(values, present, jax.random.key(i)) for i in (0, 0, 1))
    np.testing.assert_array_equal(one.prototypes, same.prototypes)
    assert (one.prototypes != two.prototypes).any() and (one.prototypes != before).any()
    still = training(loaded, server_lr=1e-12)(values, present, jax.random.key(0))
    np.testing.assert_allclose(still.prototypes, before, rtol=1e-6)

    other = run_module("server_orders", run, "--method=local", f"--csv={table}")
    assert other.returncode == 2 and "only FedTGP's server trains prototypes" in other.stderr
    missing = run_module("server_orders", run)
    assert missing.returncode == 2 and "give --workdir and --csv; see --help" in missing.stderr
