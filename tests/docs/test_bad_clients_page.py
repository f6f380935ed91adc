"""docs/bad_clients.md: no honest upload was refused or named where it was measured."""

import csv
from pathlib import Path

from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.report import FAR_OFF

FILE = Path(__file__).parents[2] / "benchmarks/results/honest_uploads.csv"


def test_no_honest_upload_was_refused_or_named():
    with FILE.open() as file:
        rows = list(csv.DictReader(file))
    sizes, scores = ([row for row in rows if row["measure"] == x] for x in ("size", "score"))
    assert max(float(row["largest"]) for row in sizes) < 30
    assert SimulationOptions().refuse_outliers == 1000
    assert max(float(row["largest"]) for row in scores) < FAR_OFF
    assert not any(int(row["beyond 30"]) for row in sizes)
    assert sum(int(row["beyond 10"]) for row in sizes) == 2
