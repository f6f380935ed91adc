"""Features of all clients' own samples: the command, its picture and its refusals."""

import numpy as np
import pytest

from experiments.own_samples import OwnSamples, agreement, own_samples, table_of
from fedjax_ht.lab.runs.evaluate import load_run
from tests.experiments.folders import read_csv

# Clients 0 and 1 agree on class 0, client 2's class 1 lies beside the others' class 0.
OWN = OwnSamples(
    round=3,
    clients=np.array([0, 0, 1, 1, 2]),
    labels=np.array([0, 1, 0, 1, 1]),
    features=np.float32([[0, 0], [9, 0], [0, 1], [9, 1], [0, 3]]),
)


def test_samples_are_compared_with_those_of_other_clients():
    """Nearest: all but client 2's sample. At random: 1 of 3, 2 of 3 (twice each), 2 of 4."""
    shares = agreement(OWN)
    assert shares.nearest == pytest.approx(4 / 5)
    assert shares.random == pytest.approx((1 / 3 + 2 / 3 + 1 / 3 + 2 / 3 + 2 / 4) / 5)
    assert np.isnan(agreement(OWN._replace(clients=np.zeros(5, int)))).all()
    (row,) = table_of({"fedssa": OWN}).rows
    assert row == ["fedssa", "3", "3", "5", "80.0", "50.0"]


@pytest.mark.slow
def test_own_samples_of_a_run(run_module, played, tmp_path):
    run, table, drawn = f"--workdir={played}", tmp_path / "a.csv", tmp_path / "a.png"
    files = f"--csv={table}", f"--picture={drawn}"
    done = run_module("own_samples", run, *files, "--samples=5", drawn=True)
    assert done.returncode == 0, done.stderr
    assert "| fedproto | 1 | 4 |" in done.stdout and drawn.exists()
    assert {row["client"] for row in read_csv(table) if row["method"] == "fedproto"} == set("0123")

    loaded = load_run(played, "fedproto")
    samples = own_samples(loaded, "train", 5)
    partition, labels = loaded.run.partitions[0], loaded.run.dataset.labels
    for client, sets in enumerate(partition):
        shown = samples.clients == client
        assert shown.sum() == min(5, len(sets.train))
        assert set(samples.labels[shown]) <= set(labels[sets.train])
    assert samples.features.std(0).any() and samples.round == 1

    missing = run_module("own_samples", run)
    assert missing.returncode == 2 and "give --workdir, and --picture" in missing.stderr
    empty = run_module("own_samples", run, f"--csv={table}", "--split=val")
    assert empty.returncode == 2 and "no client of the run has val samples" in empty.stderr
