"""A call of the system that fails at one side of a deployment loses nothing, and ends no other."""

import itertools
import json

import jax
import numpy as np
import pytest

from fedjax_ht.deploy import rounds
from fedjax_ht.deploy.audit import open_audit
from fedjax_ht.deploy.client import answer, load_state
from fedjax_ht.deploy.command import serve
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.lab.checkpoints.writers import read_runs
from fedjax_ht.simulation.history import run
from tests.deploy.sites import assert_same_rows, moved, transport
from tests.faults import some_or_all, try_faults


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True], ids=["new", "goes on"])
def test_a_fault_in_the_folder_of_a_server(federation, tmp_path, monkeypatch, begun):
    """The run ends with the simulation's rows, at once or by the same command."""
    monkeypatch.setattr(rounds, "RETRY_SECONDS", 0.01)
    config, simulation, sites = federation
    simulated = run(simulation, 2)[1]
    homes, numbers = {}, itertools.count()

    def serve_in(folder, lost=lambda *_: False):
        lines = []
        rows = serve(
            make_plan(config),
            folder / "run",
            transport(homes, lost, tell=lines.append)._replace(
                audit=open_audit(folder / "run", lines.append)
            ),
        )
        assert not any("\n" in line for line in lines)
        return rows

    def end_in_round_2(client, request):
        if request.header["kind"] == "train" and request.header["round"] == 1:
            raise KeyboardInterrupt
        return False

    def prepare(folder):
        attempt = tmp_path / f"homes{next(numbers)}"
        homes.update({i: moved(site, attempt / f"{i}") for i, site in sites.items()})
        if begun:
            with pytest.raises(KeyboardInterrupt):
                serve_in(folder, end_in_round_2)

    def check(folder, is_through):
        if is_through:
            assert_same_rows(simulated, *read_runs(folder / "run"))
            assert (folder / "run" / "summary.md").exists()

    tried = try_faults(tmp_path, prepare, serve_in, check, every=3)
    assert tried.faults > 10 and tried.ended < tried.faults


@some_or_all
def test_a_fault_in_the_folder_of_a_client(private_federation, train_request, tmp_path, which):
    """The ledger counts every reply that was sent, and states are those of a run without faults."""
    pytest.importorskip("dp_accounting")
    _, _, sites = private_federation("upload")
    first, sent = train_request("upload"), []
    header = first.header | {"round": 1, "last_round": 0, "oldest": 1}

    def train_in(folder):
        site = moved(sites[1], folder / "states")
        for request in (first, first._replace(header=header)):
            reply = answer(site, request)
            if "error" in reply.header:
                raise ValueError(reply.header["error"])
            sent.append(reply)
        return site

    site, name = train_in(tmp_path / "whole"), first.header["run"]
    whole = sent[-1]
    template = site.programs.init(jax.random.key(0), site.initial_weights, np.int32(site.init_id))
    state = load_state(tmp_path / "whole" / "states" / name, 2, template)

    def prepare(folder):
        sent.clear()

    def check(folder, is_through):
        path = folder / "states" / "told.json"
        count = sum(json.loads(path.read_text()).values()) if path.exists() else 0
        assert count >= len(sent)
        if is_through:
            jax.tree.map(np.testing.assert_array_equal, sent[-1].arrays, whole.arrays)
            kept = load_state(folder / "states" / name, 2, template)
            jax.tree.map(np.testing.assert_array_equal, kept, state)

    tried = try_faults(tmp_path, prepare, train_in, check, **which)
    assert tried.faults > 10, tried
