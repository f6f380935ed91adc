"""Margins of a run's prototypes: the command, its file and its refusals."""

import csv

import numpy as np
import pytest

from experiments.prototype_margins import (
    GLOBAL,
    Row,
    client_prototypes,
    global_prototypes,
    picture,
    rows_of,
    table_of,
)
from fedjax_ht.lab.runs.evaluate import load_run

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


def test_the_picture_has_an_axis_for_each_entry():
    figure = picture([*ROWS, *(row._replace(method="fedtgp") for row in ROWS)])
    assert [axes.get_title() for axes in figure.axes] == ["fedproto", "fedtgp"]


@pytest.mark.slow
def test_margins_of_a_run(run_module, tiny_config, tmp_path):
    """FedProto's global prototypes are the means of the prototypes that the clients' trained models
    have, where all clients take part: the clients have uploaded them."""
    run = f"--workdir={tmp_path / 'run'}"
    entries = ["--config.entries=('local','fedproto','fedtgp:server_epochs=2')"]
    done = run_module("main", f"--config={tiny_config}:runlocal", run, *entries)
    assert done.returncode == 0, done.stderr
    table, drawn = tmp_path / "a.csv", tmp_path / "a.png"
    done = run_module("prototype_margins", run, f"--csv={table}", f"--picture={drawn}", drawn=True)
    assert done.returncode == 0, done.stderr
    assert "local has no global prototypes" in done.stdout and drawn.exists()

    loaded = load_run(tmp_path / "run", "fedproto")
    values, present = client_prototypes(loaded, 0)
    means = [values[present[:, label], label].mean(0) for label in range(4)]
    got, sent = global_prototypes(loaded)
    assert sent.all() and values.shape[:2] == (4, 4)
    np.testing.assert_allclose(got, means, rtol=1e-4, atol=1e-6)

    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"fedproto", "fedtgp:server_epochs=2"}
    assert [row["client"] for row in rows if row["method"] == "fedproto"] == [
        r.client for r in rows_of(loaded, 0)
    ]
    first = min(np.linalg.norm(got[0] - got[other]) for other in (1, 2, 3))
    (row,) = [
        r for r in rows if (r["method"], r["client"], r["label"]) == ("fedproto", GLOBAL, "0")
    ]
    np.testing.assert_allclose(float(row["nearest"]), first, rtol=1e-5)

    only = run_module("prototype_margins", run, "--method=local", f"--csv={table}")
    assert only.returncode == 2 and "no entry of the run in" in only.stderr
    missing = run_module("prototype_margins", run)
    assert missing.returncode == 2 and "give --workdir and --csv; see --help" in missing.stderr
