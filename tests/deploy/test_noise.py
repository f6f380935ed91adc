"""Noise of a deployment: the simulation's with known secrets, and what it costs and hides."""

import functools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.local_training import num_steps
from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.deploy import rounds
from fedjax_ht.deploy.answers import answer
from fedjax_ht.deploy.client import PLACEHOLDER_COUNTS, client_dataset, make_client
from fedjax_ht.deploy.command import serve
from fedjax_ht.deploy.messages import Envelope
from fedjax_ht.deploy.noise import (
    LEDGER_FILE,
    SECRET_WORDS,
    add_to_ledger,
    draw,
    fresh_secret,
    raise_in_ledger,
    read_ledger,
    training_noise,
    update_noise,
)
from fedjax_ht.deploy.plan import DeploymentEnded, description, difference, make_plan
from fedjax_ht.deploy.rounds import as_simulation
from fedjax_ht.deploy.server import make_server
from fedjax_ht.experiment.build import build
from fedjax_ht.simulation.history import round_row
from fedjax_ht.trust.epsilon import gaussian_epsilon, poisson_epsilon
from fedjax_ht.trust.privacy import Privacy
from tests.deploy.sites import (
    CLOCK,
    FIXED,
    called,
    fixed,
    moved,
    never,
    private_config,
    simulation_of,
    sites_of,
    transport,
    unchanged,
)
from tests.federations import TRAINING

pytest.importorskip("dp_accounting")

UNITS = ("client", "upload", "sample")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Returns unit -> (config, simulation with the fixed secret, its clients); compiled once."""
    made = {}

    def of(unit):
        if unit not in made:
            config = private_config(unit)
            experiment, simulation = simulation_of(
                config, privacy=Privacy(**config.privacy, secret=FIXED)
            )
            made[unit] = (
                config,
                simulation,
                sites_of(config, experiment, tmp_path_factory.mktemp(unit)),
            )
        return made[unit]

    return of


def fresh(sites, folder, **changes):
    return {i: moved(site, folder / f"home{i}", **changes) for i, site in sites.items()}


def server_of(config, sites, folder, lost=never, **options):
    return make_server(
        make_plan(config, **options), transport(sites, lost), "a", print, folder, fixed
    )


def rounds_of(simulation, rounds=2):
    """Runs rounds; returns the final state and a row for each round."""
    state, rows, flops = simulation.init(), [], simulation.client_flops()
    for _ in range(rounds):
        state, report = simulation.run_round(state)
        report = report[0] if simulation.trials else report
        rows.append(round_row(report, simulation.rules, np.reshape(flops, -1)))
    return state, rows


UNTOLD = {
    "client": (),
    "sample": ("loss",),
    "upload": ("loss", "flops", "seconds_client", "accuracy_participants"),
}


@pytest.mark.parametrize("unit", UNITS)
def test_with_the_same_secret_it_is_the_simulation(world, unit, tmp_path):
    """Bit for bit: an upload's noise in a process that compiles as a user's does, see the slow
    test."""
    config, simulation, sites = world(unit)
    simulated_end, simulated = rounds_of(simulation)
    server = server_of(config, fresh(sites, tmp_path), tmp_path)
    deployed_end, deployed = rounds_of(as_simulation(server))
    assert_close(deployed_end, simulated_end, 1e-6 if unit == "upload" else 0)
    left_out = {*CLOCK, *UNTOLD[unit]}
    for one_row, other_row in zip(simulated, deployed, strict=True):
        assert {name: x for name, x in other_row.items() if name not in left_out} == {
            name: x for name, x in one_row.items() if name not in left_out
        }
        assert not set(UNTOLD[unit]) - {"flops"} & other_row.keys()
    assert deployed[1]["epsilon"] > deployed[0]["epsilon"] > 0


def assert_close(deployed_end, simulated_end, atol):
    """Checks that the servers' states are equal up to `atol`."""

    def check(deployed, simulated):
        np.testing.assert_allclose(deployed, simulated, rtol=0, atol=atol)

    jax.tree.map(check, deployed_end.servers, simulated_end.servers)


@pytest.fixture(scope="module")
def train_request(world, tmp_path_factory):
    """Returns unit -> client 1's request of the first round, in which only client 3 replies."""

    @functools.cache
    def of(unit):
        requests, (config, _, sites) = {}, world(unit)

        def lost(client, request):
            requests[client, request.header["kind"]] = request
            return request.header["kind"] == "train" and client != 3

        folder = tmp_path_factory.mktemp("asking")
        simulation = as_simulation(server_of(config, fresh(sites, folder), folder, lost))
        simulation.run_round(simulation.init())
        return requests[1, "train"]

    return of


@pytest.mark.parametrize("unit", ["upload", "sample"])
def test_an_answer_has_noise_of_its_own_and_reports_nothing_without_noise(
    world, train_request, unit, tmp_path
):
    _, _, sites = world(unit)
    request, lines = train_request(unit), []
    site = moved(sites[1], tmp_path / "home", fresh_secret, lines.append)
    first, programs = called(answer(site, request)), site.programs.train._cache_size()
    again = called(answer(site, request))
    assert site.programs.train._cache_size() == programs  # another secret is no other program
    fixed_1, fixed_2 = (answer(moved(sites[1], tmp_path / f"fixed{i}"), request) for i in range(2))
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
    assert (
        sum(json.loads(files.pop(LEDGER_FILE)).values()) == 2 * site.noise.count_per_draw and files
    )


@pytest.mark.parametrize("unit", UNITS)
def test_secrets_are_arguments_of_programs(world, train_request, unit, tmp_path):
    config, _, sites = world(unit)
    site, calls = moved(sites[1], tmp_path / "home"), []

    def noted(run):
        def call(*args):
            calls.append((run, args))
            return run(*args)

        return call

    if unit == "client":
        server = server_of(config, fresh(sites, tmp_path), tmp_path / "server")
        simulation = as_simulation(server._replace(serve=noted(server.serve)))
        simulation.run_round(simulation.init())
    else:
        site = site._replace(programs=site.programs._replace(train=noted(site.programs.train)))
        answer(site, train_request(unit))
    ((run, args),) = calls
    texts = [
        f"{run.trace(*args).jaxpr}",
        run.lower(*args).as_text(),
        run.lower(*args).compile().as_text(),
    ]
    for word in FIXED:
        for form in (str(word), str(word - 2**32), f"{word:x}", f"{word:X}"):
            assert not any(form in text for text in texts)
    assert any(
        np.array_equal(np.ravel(x), FIXED) for x in jax.tree.leaves(args) if x.dtype == np.uint32
    )


def test_a_repeated_step_of_the_server_costs_epsilon(world, tmp_path):
    """The server ends after its second step, and continues after its first."""
    config, _, sites = world("client")
    homes, numbers = fresh(sites, tmp_path), iter(range(100))

    def entropy():
        return (next(numbers),) * SECRET_WORDS

    def end(client, request):
        if request.header["kind"] == "evaluate" and request.header["round"] == 2:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        serve(make_plan(config), tmp_path / "server", transport(homes, end), print, entropy)
    assert json.loads((tmp_path / "server" / LEDGER_FILE).read_text()) == {"client, noise 0.5": 2}
    lines = []
    rows = serve(make_plan(config), tmp_path / "server", transport(homes), lines.append, entropy)
    assert [row.get("epsilon") for row in rows] == [
        None,
        *(gaussian_epsilon(0.5, n, 1e-5) for n in (1, 3)),
    ]
    assert next(numbers) == 3 and f"epsilon {rows[-1]['epsilon']:.4g}" in lines[-1]


def test_a_repeated_answer_costs_epsilon_whatever_the_run_is_called(world, tmp_path, monkeypatch):
    """Clients report no accuracy, and a run ends without one."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    config, _, sites = world("upload")
    homes = fresh(sites, tmp_path)

    def count(client):
        return sum(json.loads(homes[client].noise.path.read_text()).values())

    def end(client, reply):
        if client == 2 and "finite" in reply.header and count(2) == 2:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        serve(make_plan(config), tmp_path / "server", transport(homes, changed=end), print, fixed)
    rows = serve(make_plan(config), tmp_path / "server", transport(homes), print, fixed)
    assert [count(client) for client in range(4)] == [3, 3, 3, 2]
    assert rows[-1]["epsilon"] == gaussian_epsilon(0.5, 3, 1e-5) and "accuracy" not in rows[-1]
    assert "| lg_fedavg | - |" in (tmp_path / "server" / "summary.md").read_text()

    # another run, without the clients with the highest counts, which they alone still know
    def loses_all(client, request):
        return request.header["kind"] == "train"

    def loses_three(client, request):
        return client < 3 and loses_all(client, request)

    few = server_of(config, homes, tmp_path / "other", loses_three)
    simulation = as_simulation(few)
    state, report = simulation.run_round(simulation.init())
    assert report.epsilon == gaussian_epsilon(0.5, 3, 1e-5)  # client 3 has answered twice before
    gone = server_of(config, homes, tmp_path / "other", loses_all)
    with pytest.raises(DeploymentEnded):
        as_simulation(gone).run_round(state)
    assert read_ledger(gone.ledger)["epsilon"] == report.epsilon  # it does not decrease


def test_a_client_may_stop_by_itself(world, train_request, tmp_path):
    """A refused answer is not counted."""
    config, _, sites = world("upload")
    lines = []
    site = moved(sites[1], tmp_path, tell=lines.append)
    once, twice = (
        gaussian_epsilon(config.privacy.noise, times, config.privacy.delta) for times in (1, 2)
    )
    site = site._replace(noise=site.noise._replace(max_epsilon=(once + twice) / 2))
    assert "error" not in answer(site, train_request("upload")).header
    for _ in range(2):
        error = answer(site, train_request("upload")).header["error"]
        assert error == (
            f"epsilon would be {twice:.4g} with this answer, and --most_epsilon is "
            f"{(once + twice) / 2:g}"
        )
        assert lines[-1] == f"round 1: no answer; {error}"
    nonsense = site._replace(noise=site.noise._replace(max_epsilon=math.nan))
    assert (
        answer(nonsense, train_request("upload")).header["error"].endswith("--most_epsilon is nan")
    )
    assert list(read_ledger(site.noise.path).values()) == [1]
    message = (
        "^--most_epsilon is 3, and with privacy.unit 'client' a client adds no noise of its own$"
    )
    with pytest.raises(ValueError, match=message):
        make_client(make_plan(private_config("client")), 0, None, None, tmp_path, max_epsilon=3.0)


def test_an_answer_counts_before_it_is_made(world, train_request, tmp_path):
    """A request that has no answer does not count."""
    _, _, sites = world("sample")
    request, path = train_request("sample"), tmp_path / "home" / LEDGER_FILE
    counts = []

    def train(*_):
        counts.append(path.read_text())
        raise ZeroDivisionError

    site = moved(sites[1], tmp_path / "home")
    site = site._replace(programs=site.programs._replace(train=train))
    assert (
        answer(site, request._replace(arrays={})).header["error"].startswith("the downlink lacks")
    )
    assert not path.exists()
    assert "ZeroDivisionError" in answer(site, request).header["error"]
    assert (
        counts == [json.dumps({site.noise.name: site.noise.count_per_draw})]
        and site.noise.count_per_draw > 0
    )


def test_a_client_whose_result_is_not_finite_sends_noise_alone(world, train_request, tmp_path):
    _, _, sites = world("upload")
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


def test_where_all_of_a_client_is_hidden_it_reports_what_every_client_reports(world, tmp_path):
    config, _, sites = world("upload")
    experiment = build(config)
    indices = experiment.partitions[0][2]
    for count in (0, 3):
        some = ClientIndices(indices.train[:count], indices.val, indices.test[:4])
        few = make_client(sites[2].plan, 2, *client_dataset(experiment.dataset, some), tmp_path)
        assert (
            few.hello == sites[2].hello
            and few.hello["counts"] == PLACEHOLDER_COUNTS
            and few.counts["train"] == count
        )
    broken = sites[0]._replace(programs=None, tell=(lines := []).append)
    header = {"kind": "train", "run": "a", "round": 0, "last_round": -1, "oldest": 0}
    assert answer(broken, Envelope(header, {})).header == {
        "error": "AttributeError; the client's own terminal says more",
        "client": 0,
    }
    assert lines == ["AttributeError: 'NoneType' object has no attribute 'init'"]


def test_a_count_outlives_programs_and_a_broken_one_stops_its_client(tmp_path):
    path = tmp_path / "a" / LEDGER_FILE
    assert [
        add_to_ledger(path, "x", 2),
        add_to_ledger(path, "y", 1),
        add_to_ledger(path, "x", 3),
    ] == [
        2,
        1,
        5,
    ]
    assert [raise_in_ledger(path, "z", x) for x in (1.5, 0.5, math.nan, math.inf)] == [
        1.5,
        1.5,
        1.5,
        math.inf,
    ]
    assert json.loads(path.read_text()) == {"x": 5, "y": 1, "z": math.inf}
    for wrong in ("", "[1]", '{"x": "5"}', '{"x": -1}'):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="is damaged: it must say how often noise was added"):
            add_to_ledger(path, "x", 1)


def test_what_noise_costs(tmp_path):
    privacy, path = Privacy("sample", 1.0, 2.0), tmp_path / LEDGER_FILE
    steps = training_noise(privacy, TRAINING, 100, path, fixed)
    secret, epsilon = draw(steps)
    each = num_steps(TRAINING, 100)
    assert secret.tolist() == list(FIXED) and secret.dtype == np.uint32
    assert epsilon == poisson_epsilon(2.0, TRAINING.batch_size, 100, each, 1e-5) > 0
    assert draw(steps)[1] == poisson_epsilon(2.0, TRAINING.batch_size, 100, 2 * each, 1e-5)
    assert draw(training_noise(privacy, TRAINING, 0, path, fixed))[1] == 0.0
    for sends, epsilon in ((True, gaussian_epsilon(2.0, 1, 1e-5)), (False, 0.0)):
        noise = update_noise(privacy._replace(unit="upload"), sends, tmp_path / f"{sends}", fixed)
        assert draw(noise)[1] == epsilon
    assert draw(None) == ((), None)
    drawn = [fresh_secret() for _ in range(50)]
    assert len(set(drawn)) == 50 and all(
        len(secret) == SECRET_WORDS and min(secret) >= 0 for secret in drawn
    )
    assert 2**31 < max(map(max, drawn)) < 2**32


def summing_server(config, sites, folder, changed=unchanged, tell=print):
    """Returns a server that gets sums alone; they are made here without a protocol."""
    secure = make_plan(config, secure_sums=True)
    homes = {}
    for i, site in fresh(sites, folder).items():
        homes[i] = site._replace(plan=secure, hello=site.hello | description(secure))

    def add(requests, groups, most):
        masked = {i: x._replace(header=x.header | {"masked": True}) for i, x in requests.items()}
        answers = {i: answer(homes[i], x) for i, x in masked.items()}
        sums = {
            name: sum(answers[i].arrays["vector"].astype(float) for i in ids)
            for name, ids in groups.items()
        }
        return {i: Envelope(changed(i, x.header), {}) for i, x in answers.items()}, sums

    return make_server(
        secure, transport(homes)._replace(add=add), "a", tell, folder / "server", fixed
    )


def test_a_sum_with_an_unknown_client_in_it_is_left_out(world, tmp_path, monkeypatch):
    """The sum would be divided by too few."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    config, simulation, sites = world("client")
    lines, once = [], iter([True])

    def changed(client, header):
        return header | {"metrics": None} if client == 2 and next(once, False) else header

    server = summing_server(config, sites, tmp_path, changed, lines.append)
    deployed_end, _ = rounds_of(as_simulation(server), 1)
    simulated_end, _ = rounds_of(simulation, 1)
    assert_close(deployed_end, simulated_end, 1e-5)
    assert lines == [
        "client 2, round 1: 'metrics' in its header is missing or invalid",
        "round 1: there is no sum of mlp: the header of a client in it is invalid",
        "round 1: no client took part, so the round does not count and is tried again",
    ]


@pytest.mark.parametrize("unit", UNITS)
def test_a_sum_has_the_noise(world, unit, tmp_path):
    """The server gets the sum of the uplinks alone."""
    config, simulation, sites = world(unit)
    server = summing_server(config, sites, tmp_path)
    deployed_end, deployed = rounds_of(as_simulation(server))
    simulated_end, simulated = rounds_of(simulation)
    assert_close(deployed_end, simulated_end, 1e-5)
    assert [row["epsilon"] for row in deployed] == [row["epsilon"] for row in simulated]


@pytest.mark.parametrize(
    ("unit", "change", "message"),
    [
        (
            "sample",
            {"evaluate.train": True},
            "evaluate.train is True; with privacy.unit='sample' clients do not send",
        ),
        ("upload", {"evaluate.train": True}, "evaluate.train is True"),
        ("upload", {"evaluate.patience": 3}, "evaluate.patience is 3"),
        ("client", {"robust": (("median",),)}, "robust must then be empty"),
        ("client", {"drop_rate": 0.5}, "drop_rate is 0.5"),
    ],
    ids=["sample", "upload", "patience", "robust", "drops"],
)
def test_what_does_not_go_together_is_refused(unit, change, message):
    config = private_config(unit)
    make_plan(config)
    config.update_from_flattened_dict(change)
    with pytest.raises(ValueError, match=message):
        make_plan(config)


def test_both_sides_have_the_same_noise():
    config = private_config("upload")
    before = description(make_plan(config))
    config.privacy.noise = 0.1
    assert (
        difference(before, description(make_plan(config)))
        == "has another config: privacy.noise 0.1, not 0.5"
    )


def test_an_accountant_is_asked_for_before_anything_is_compiled(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(
        ImportError, match=r"privacy needs dp-accounting; run pip install 'fedjax_ht\[privacy\]'"
    ):
        make_plan(private_config("client"))


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_equal_bit_for_bit(unit):
    """Runs in a process of its own, as `test_equal_to_the_simulation` of test_deployment."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    arguments = [sys.executable, "-m", "tests.deploy.equal", "lg_fedavg", unit]
    done = subprocess.run(
        arguments, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
