"""Noise of a deployment: the simulation's with known secrets, and what it costs and hides."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.deploy.client import PLACEHOLDER_COUNTS, answer, make_client
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.deploy.noise import LEDGER_FILE, fresh_secret
from fedjax_ht.deploy.plan import description, make_plan
from fedjax_ht.deploy.rounds import as_rounds
from fedjax_ht.deploy.samples import client_dataset
from fedjax_ht.deploy.server import make_server
from fedjax_ht.lab.runs.plan import plan
from tests.deploy.sites import (
    CLOCK,
    FIXED,
    UNSENT,
    called,
    fresh,
    moved,
    rounds_of,
    server_of,
    transport,
)

pytest.importorskip("dp_accounting")

UNITS = ("client", "upload", "sample")

UNTOLD = {"client": (), "sample": ("loss",)}
UNTOLD["upload"] = ("loss", "flops", "seconds_client", "accuracy_participants")


@pytest.mark.parametrize("unit", UNITS)
def test_with_the_same_secret_it_is_the_simulation(private_federation, unit, tmp_path):
    """Equality is bit for bit; of an upload's noise only as XLA compiles for users, test_equal."""
    config, simulation, sites = private_federation(unit)
    simulated_end, simulated = rounds_of(simulation)
    server = server_of(config, fresh(sites, tmp_path), tmp_path)
    deployed_end, deployed = rounds_of(as_rounds(server))
    assert_close(deployed_end, simulated_end, 1e-6 if unit == "upload" else 0)
    left_out = {*CLOCK, *UNSENT, *UNTOLD[unit]}
    for one_row, other_row in zip(simulated, deployed, strict=True):
        kept = one_row.keys() - left_out
        assert kept == other_row.keys() - left_out
        for name in kept:
            assert one_row[name] == other_row[name], name
        assert not set(UNTOLD[unit]) - {"flops"} & other_row.keys()
    assert deployed[1]["epsilon"] > deployed[0]["epsilon"] > 0


def assert_close(deployed_end, simulated_end, atol):
    def check(deployed, simulated):
        np.testing.assert_allclose(deployed, simulated, rtol=0, atol=atol)

    jax.tree.map(check, deployed_end.server, simulated_end.server)


@pytest.mark.parametrize("unit", ["upload", "sample"])
def test_an_answer_has_noise_of_its_own(
    private_federation, train_request, unit, tmp_path, monkeypatch
):
    _, _, sites = private_federation(unit)
    request, lines = train_request(unit), []
    site = moved(sites[1], tmp_path / "home", lines.append)
    fixed_1, fixed_2 = (answer(moved(sites[1], tmp_path / f"fixed{i}"), request) for i in range(2))
    monkeypatch.setattr("fedjax_ht.deploy.noise.fresh_secret", fresh_secret)
    first, programs = called(answer(site, request)), site.programs.train._cache_size()
    again = called(answer(site, request))
    assert site.programs.train._cache_size() == programs  # another secret is no other program
    differ = [(first.arrays[name] != again.arrays[name]).mean() for name in first.arrays]
    assert differ and min(differ) > 0.9
    for name, array in fixed_1.arrays.items():
        np.testing.assert_array_equal(array, fixed_2.arrays[name])
    assert first.header["metrics"] == {} and again.header["epsilon"] > first.header["epsilon"] > 0
    names = {"client", "finite", "metrics", "scores", "epsilon"}
    assert first.header.keys() == names | ({"seconds"} if unit == "sample" else set())
    assert first.header["scores"].keys() == ({"test"} if unit == "sample" else set())
    assert f"round 1: epsilon {again.header['epsilon']:.4g} with this answer" in lines
    assert any("accuracy" in line for line in lines) == (unit == "upload")
    files = {
        path.name: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()
    }
    assert sum(json.loads(files.pop(LEDGER_FILE)).values()) == 2 * site.noise.count_per_draw
    assert files


@pytest.mark.parametrize("unit", UNITS)
def test_secrets_are_arguments_of_programs(private_federation, train_request, unit, tmp_path):
    config, _, sites = private_federation(unit)
    site, calls = moved(sites[1], tmp_path / "home"), []

    def noted(run):
        def call(*args):
            calls.append((run, args))
            return run(*args)

        return call

    if unit == "client":
        server = server_of(config, fresh(sites, tmp_path), tmp_path / "server")
        simulation = as_rounds(server._replace(serve=noted(server.serve)))
        simulation.run_round(simulation.init())
    else:
        site = site._replace(programs=site.programs._replace(train=noted(site.programs.train)))
        answer(site, train_request(unit))
    ((run, args),) = calls
    lowered = run.lower(*args)
    texts = [f"{run.trace(*args).jaxpr}", lowered.as_text(), lowered.compile().as_text()]
    for word in FIXED:
        for form in (str(word), str(word - 2**32), f"{word:x}", f"{word:X}"):
            assert not any(form in text for text in texts)
    words = [np.ravel(x) for x in jax.tree.leaves(args) if x.dtype == np.uint32]
    assert any(np.array_equal(x, FIXED) for x in words)


def test_a_result_that_is_not_finite_is_noise_alone(private_federation, train_request, tmp_path):
    _, _, sites = private_federation("upload")
    request, black = train_request("upload"), sites[1].data.preprocess
    broken = sites[1].data._replace(preprocess=jax.tree.map(lambda x: x * jnp.nan, black))
    not_finite = answer(moved(sites[1], tmp_path / "a")._replace(data=broken), request)
    splits = {}
    for name, split in sites[1].data.splits.items():
        splits[name] = split._replace(count=0 * split.count)
    empty = sites[1].data._replace(splits=splits)
    untrained = answer(moved(sites[1], tmp_path / "b")._replace(data=empty), request)
    assert not_finite.header["finite"] and not_finite.arrays.keys() == untrained.arrays.keys()
    for name, array in not_finite.arrays.items():
        np.testing.assert_allclose(array, untrained.arrays[name], atol=1e-6)


def test_a_hidden_client_reports_what_every_client_reports(private_federation, tmp_path):
    config, _, sites = private_federation("upload")
    experiment = plan(config)
    indices = experiment.partitions[0][2]
    for count in (0, 3):
        some = ClientIndices(indices.train[:count], indices.val, indices.test[:4])
        few = make_client(sites[2].plan, 2, *client_dataset(experiment.dataset, some), tmp_path)
        assert few.hello == sites[2].hello and few.hello["counts"] == PLACEHOLDER_COUNTS
        assert few.counts["train"] == count
    broken = sites[0]._replace(programs=None, tell=(lines := []).append)
    header = {"kind": "train", "run": "a", "round": 0, "last_round": -1, "oldest": 0}
    error = "AttributeError; see the client's own terminal"
    assert answer(broken, Envelope(header, {})).header == {"error": error, "client": 0}
    assert lines == ["AttributeError: 'NoneType' object has no attribute 'init'"]


def summing_server(config, sites, folder):
    """Returns a server that gets sums alone; they are made here without a protocol."""
    secure = make_plan(config, secure_sums=True)
    homes = {}
    for i, site in fresh(sites, folder).items():
        homes[i] = site._replace(plan=secure, hello=site.hello | description(secure))

    def add(requests, groups, lengths, problem_of):
        replies, vectors = {}, {}
        for i, request in requests.items():
            masked = request._replace(header=request.header | {"masked": True})
            reply = answer(homes[i], masked)
            assert problem_of(i, reply.header) == ""
            bad = problem_of(i, reply.header | {"metrics": None})
            assert bad == "'metrics' in its header is missing or invalid"
            replies[i] = Envelope(reply.header, {})
            vectors[i] = reply.arrays["vector"].astype(float)
        totals = {}
        for name, ids in groups.items():
            totals[name] = sum(vectors[i] for i in ids)
        return replies, totals

    reached = transport(homes)._replace(add=add)
    return make_server(secure, reached, "a", folder / "server")


@pytest.mark.parametrize("unit", UNITS)
def test_a_sum_has_the_noise(private_federation, unit, tmp_path):
    """The server gets the sum of the uplinks alone."""
    config, simulation, sites = private_federation(unit)
    server = summing_server(config, sites, tmp_path)
    deployed_end, deployed = rounds_of(as_rounds(server))
    simulated_end, simulated = rounds_of(simulation)
    assert_close(deployed_end, simulated_end, 1e-5)
    assert [row["epsilon"] for row in deployed] == [row["epsilon"] for row in simulated]
