"""python -m tests.deploy.equal METHOD [UNIT]: a deployment and its simulation, in a process that
compiles as a user's does; with the unit of `Privacy`, and words of noise that both have."""

import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.rounds import as_simulation
from fedjax_ht.deploy.serve import serve
from fedjax_ht.deploy.server import make_server
from fedjax_ht.simulation.history import run
from fedjax_ht.trust.privacy import Privacy
from tests.deploy.sites import (
    FIXED,
    assert_same_rows,
    fixed,
    moved,
    private_config,
    simulation_of,
    sites_of,
    small_config,
    transport,
)


def main(method: str) -> None:
    """All columns but the server's own model's accuracy, which a deployment's server has no samples
    for."""
    config = small_config(method)
    experiment, simulation = simulation_of(config)
    with tempfile.TemporaryDirectory() as folder, jax.default_matmul_precision("float32"):
        sites = sites_of(config, experiment, Path(folder))
        rows = serve(make_plan(config), Path(folder) / "server", transport(sites), print)
        own = [
            {k: v for k, v in row.items() if k != "global_accuracy_head"}
            for row in run(simulation, 2)[1]
        ]
    assert_same_rows(own, rows)


def private(unit: str) -> None:
    """The server's state, and the columns that there are."""
    config = private_config(unit)
    experiment, simulation = simulation_of(config, privacy=Privacy(**config.privacy, secret=FIXED))
    with tempfile.TemporaryDirectory() as folder, jax.default_matmul_precision("float32"):
        sites = sites_of(config, experiment, Path(folder))
        sites = {i: moved(site, Path(folder) / f"home{i}") for i, site in sites.items()}
        server = make_server(make_plan(config), transport(sites), "a", print, Path(folder), fixed)
        (end, rows), (own_end, own_rows) = run(as_simulation(server), 2), run(simulation, 2)
    jax.tree.map(np.testing.assert_array_equal, end.servers, own_end.servers)
    left = {"flops"} if unit == "upload" else set()  # of one sample
    same = [(mine.keys() & theirs.keys()) - left for mine, theirs in zip(rows, own_rows)]
    assert_same_rows(
        *(
            [{k: row[k] for k in names} for names, row in zip(same, each)]
            for each in (own_rows, rows)
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 2 else private(sys.argv[2])
