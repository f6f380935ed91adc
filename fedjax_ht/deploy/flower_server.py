"""The rounds of a deployment as a Flower app. Needs the extra `flower`."""

import json
import logging
from pathlib import Path
from typing import Any

import jax
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from ml_collections import ConfigDict

from fedjax_ht.deploy.flower import grid_nodes
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.serve import serve
from fedjax_ht.deploy.server import Transport
from fedjax_ht.runner.cli import fail
from fedjax_ht.runner.run_folder import completed
from fedjax_ht.runner.train import enable_compilation_cache, use_all_cores


def server_app() -> ServerApp:
    """A Flower app that runs the deployment's server, by the run's "config", "workdir", "patience" and "timeout", and
    "secure_sums" and "sum_range"."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        run_server(grid, dict(context.run_config))

    app.main()(main)
    return app


def run_server(grid: Grid, run_config: dict[str, Any]) -> None:
    """The rounds, in the process that Flower starts for its ServerApp."""
    flowers = logging.getLogger("flwr")
    flowers.propagate = False  # the root's handler would say all a second time
    flowers.setLevel(logging.WARNING)
    use_all_cores()
    enable_compilation_cache()
    plan = make_plan(ConfigDict(completed(json.loads(run_config["config"]))), run_config["secure_sums"])
    tell = lambda line: print(line, flush=True)  # noqa: E731
    nodes = grid_nodes(grid, run_config["patience"], run_config["timeout"], tell, run_config["sum_range"])
    try:
        with jax.default_matmul_precision(plan.config.precision):
            serve(plan, Path(run_config["workdir"]), Transport(*nodes), tell)
    except (ValueError, OSError) as error:
        fail(error)
