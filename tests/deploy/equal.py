"""python -m tests.deploy.equal METHOD: a deployment and its simulation, in a process that compiles as a user's does."""

import sys
import tempfile
from pathlib import Path

import jax

from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.serve import serve
from fedjax_ht.simulation.history import run
from tests.deploy.sites import assert_same_rows, simulation_of, sites_of, small_config, transport


def main(method: str) -> None:
    """All columns but the server's own model's accuracy, which a deployment's server has no samples for."""
    config = small_config(method)
    experiment, simulation = simulation_of(config)
    with tempfile.TemporaryDirectory() as folder, jax.default_matmul_precision("float32"):
        sites = sites_of(config, experiment, Path(folder))
        rows = serve(make_plan(config), Path(folder) / "server", transport(sites), print)
        own = [{k: v for k, v in row.items() if k != "global_accuracy_head"} for row in run(simulation, 2)[1]]
    assert_same_rows(own, rows)


if __name__ == "__main__":
    main(sys.argv[1])
