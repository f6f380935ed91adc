"""Compares a deployment with its simulation, in a process that compiles as a user's does.

python -m tests.deploy.equal METHOD
python -m tests.deploy.equal METHOD CODE    with a code of uploads, such as top_k
python -m tests.deploy.equal METHOD UNIT    with privacy, and secrets of noise that both know
"""

import sys
import tempfile
from pathlib import Path
from unittest import mock

import jax
import numpy as np

from fedjax_ht.deploy.command import serve
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.rounds import as_rounds
from fedjax_ht.deploy.server import make_server
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.simulation.history import run
from fedjax_ht.trust.options import Privacy
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
    with_public_file,
)


def main(method: str, code: str | None = None) -> None:
    """Compares all columns but those of the server's model: a deployment's server has no samples."""
    config = small_config(method)
    if code is not None:
        config.uplink = ((code,),)
    made, simulation = simulation_of(config)
    with tempfile.TemporaryDirectory() as folder, jax.default_matmul_precision("float32"):
        config = with_public_file(config, made, Path(folder))
        sites = sites_of(config, made, Path(folder))
        deployed = serve(make_plan(config), Path(folder) / "server", transport(sites))
        _, simulated = run(simulation, 2)
    for row in simulated:
        for name in ("global_accuracy_head", "global_macro_f1_head"):
            row.pop(name, None)
    assert_same_rows(simulated, deployed)


def private(unit: str) -> None:
    """Compares the servers' states, and the columns that both have."""
    config = private_config(unit)
    made, simulation = simulation_of(config, privacy=Privacy(**vars(config.privacy), secret=FIXED))
    with tempfile.TemporaryDirectory() as folder, jax.default_matmul_precision("float32"):
        sites = sites_of(config, made, Path(folder))
        sites = {i: moved(site, Path(folder) / f"home{i}") for i, site in sites.items()}
        server = make_server(make_plan(config), transport(sites), "a", Path(folder))
        with mock.patch("fedjax_ht.deploy.noise.fresh_secret", fixed):
            deployed_end, deployed = run(as_rounds(server), 2)
        simulated_end, simulated = run(simulation, 2)
    jax.tree.map(np.testing.assert_array_equal, deployed_end.server, simulated_end.server)
    left_out = {"flops"} if unit == "upload" else set()  # a client reports those of one sample
    for one_row, other_row in zip(simulated, deployed, strict=True):
        names = (one_row.keys() & other_row.keys()) - left_out
        assert_same_rows(
            [{name: one_row[name] for name in names}], [{name: other_row[name] for name in names}]
        )


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] not in CODES:
        private(sys.argv[2])
    else:
        main(*sys.argv[1:])
