import chex
import jax

from fedjax_ht.core import compiling
from fedjax_ht.core.compiling import compiler_options
from fedjax_ht.methods import METHODS
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import TRAINING, federation_data, mixed_federation, to_host

OPTIONS = SimulationOptions(participation=0.6, lanes=2, devices=1)


def two_rounds():
    federation = mixed_federation()
    sim = make_simulation(METHODS["fedtgp"](TRAINING), federation, federation_data(federation), OPTIONS)
    state, reports = sim.init(), []
    for _ in range(2):
        state, report = sim.run_round(state)
        reports.append((report.metrics, report.accuracy))
    return to_host(state), reports


def test_all_buckets_in_one_program_give_the_same(monkeypatch):
    """As on GPUs, where they are one graph."""
    apart, reports = two_rounds()
    compiled = []
    monkeypatch.setattr(compiling, "platform_of", lambda mesh: "gpu")
    monkeypatch.setattr(compiling, "compiler_options", compiled.append)
    together, reports_together = two_rounds()
    assert compiled == ["gpu"] * 2  # training and scoring, of both buckets together
    chex.assert_trees_all_close((apart.server, apart.clients), (together.server, together.clients), rtol=0, atol=1e-6)
    chex.assert_trees_all_close(reports, reports_together, rtol=1e-5)


def test_loops_are_graphed_on_gpus_alone():
    assert compiler_options("cpu") is None and compiler_options("tpu") is None
    if (0, 10) <= jax.__version_info__ < (0, 12):
        options = compiler_options("gpu")
        assert {"WHILE", "CONDITIONAL", "FUSION"} <= set(options["xla_gpu_enable_command_buffer"].split(","))
        assert options["xla_gpu_command_buffer_scheduling_mode"] == "CONCURRENT"
