"""docs/bad_clients.md: how often an honest upload is refused is what was measured."""

import csv
from pathlib import Path

from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.report import FAR_OFF

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/bad_clients.md").read_text().split())


def measured(measure: str) -> list[dict]:
    """Reads the lines of a measure."""
    with (ROOT / "benchmarks/results/honest_uploads.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["measure"] == measure]


def test_no_honest_upload_was_refused_or_named():
    sizes, scores = measured("size"), measured("score")
    uploads = sum(int(row["uploads"]) for row in sizes)
    largest = max(float(row["largest"]) for row in sizes)
    assert f"Of {uploads:,} uploads of honest clients ({len(sizes)} methods" in PAGE
    assert f"none was larger than {largest:.2g} times its round's median" in PAGE
    assert f"fewer than one in {uploads // 3000 * 1000:,} with 95 % confidence" in PAGE
    assert largest < 30 and SimulationOptions().refuse_outliers == 1000
    highest = max(float(row["largest"]) for row in scores)
    assert f"the largest was at {highest:.2g}." in PAGE and highest < FAR_OFF
    assert not any(int(row["beyond 30"]) for row in sizes)
    assert sum(int(row["beyond 10"]) for row in sizes) == 2
