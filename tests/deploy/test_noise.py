"""Privacy where nobody knows the noise but who adds it: the simulation, where words are known, and
what is told."""

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
from fedjax_ht.deploy import ledger, rounds
from fedjax_ht.deploy.data import alone
from fedjax_ht.deploy.ended import Ended
from fedjax_ht.deploy.envelope import Envelope
from fedjax_ht.deploy.noise import LEDGER, WORDS, draw, fresh_words, noise_of_steps, noise_of_sums
from fedjax_ht.deploy.plan import about, difference, make_plan
from fedjax_ht.deploy.rounds import as_simulation
from fedjax_ht.deploy.serve import serve
from fedjax_ht.deploy.server import make_server
from fedjax_ht.deploy.site import HIDDEN, answer, make_site
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
    private_config,
    simulation_of,
    sites_of,
    transport,
)
from tests.federations import TRAINING

pytest.importorskip("dp_accounting")

UNITS = ("client", "upload", "sample")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """unit -> (config, its simulation with fixed words, its clients); compiled once."""
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


def server_of(config, sites, folder, lost=lambda *_: False, **options):
    return make_server(
        make_plan(config, **options), transport(sites, lost), "a", print, folder, fixed
    )


def rounds_of(simulation, rounds=2):
    """(final state, a row for each round)."""
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
def test_with_the_same_words_it_is_the_simulation(world, unit, tmp_path):
    """Bit for bit: an upload's noise in a process that compiles as a user's does, see the slow
    test."""
    config, simulation, sites = world(unit)
    own, own_rows = rounds_of(simulation)
    end, rows = rounds_of(as_simulation(server_of(config, fresh(sites, tmp_path), tmp_path)))
    far = 1e-6 if unit == "upload" else 0
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=far), end.servers, own.servers
    )
    left = {*CLOCK, *UNTOLD[unit]}
    for mine, theirs in zip(rows, own_rows, strict=True):
        assert {name: x for name, x in mine.items() if name not in left} == {
            name: x for name, x in theirs.items() if name not in left
        }
        assert not set(UNTOLD[unit]) - {"flops"} & mine.keys()
    assert rows[1]["epsilon"] > rows[0]["epsilon"] > 0


@pytest.fixture(scope="module")
def letter(world, tmp_path_factory):
    """unit -> what client 1 is asked in the first round, in which client 3 alone is heard of."""

    @functools.cache
    def of(unit):
        found, (config, _, sites) = {}, world(unit)

        def seen(client, letter):
            found[client, letter.head["kind"]] = letter
            return letter.head["kind"] == "train" and client != 3

        folder = tmp_path_factory.mktemp("asking")
        simulation = as_simulation(server_of(config, fresh(sites, folder), folder, seen))
        simulation.run_round(simulation.init())
        return found[1, "train"]

    return of


@pytest.mark.parametrize("unit", ["upload", "sample"])
def test_an_answer_has_noise_of_its_own_and_says_nothing_without(world, letter, unit, tmp_path):
    _, _, sites = world(unit)
    asked, lines = letter(unit), []
    site = moved(sites[1], tmp_path / "home", fresh_words, lines.append)
    first, programs = called(answer(site, asked)), site.programs.train._cache_size()
    again = called(answer(site, asked))
    assert site.programs.train._cache_size() == programs  # other words are no other program
    known, too = (answer(moved(sites[1], tmp_path / f"known{i}"), asked) for i in range(2))
    differ = [(first.arrays[name] != again.arrays[name]).mean() for name in first.arrays]
    assert differ and min(differ) > 0.9
    assert all((known.arrays[name] == too.arrays[name]).all() for name in known.arrays)
    assert first.head["metrics"] == {} and again.head["epsilon"] > first.head["epsilon"] > 0
    names = {"client", "finite", "metrics", "scores", "epsilon"}
    assert first.head.keys() == names | ({"seconds"} if unit == "sample" else set())
    assert first.head["scores"].keys() == ({"test"} if unit == "sample" else set())
    assert f"round 1: epsilon {again.head['epsilon']:.4g} with this answer" in lines
    assert any("accuracy" in line for line in lines) == (unit == "upload")
    files = {
        path.name: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()
    }
    assert sum(json.loads(files.pop(LEDGER)).values()) == 2 * site.noise.times and files


@pytest.mark.parametrize("unit", UNITS)
def test_words_are_arguments_of_programs(world, letter, unit, tmp_path):
    config, _, sites = world(unit)
    site, calls = moved(sites[1], tmp_path / "home"), []

    def noted(run):
        return lambda *args: calls.append((run, args)) or run(*args)

    if unit == "client":
        server = server_of(config, fresh(sites, tmp_path), tmp_path / "server")
        simulation = as_simulation(server._replace(serve=noted(server.serve)))
        simulation.run_round(simulation.init())
    else:
        site = site._replace(programs=site.programs._replace(train=noted(site.programs.train)))
        answer(site, letter(unit))
    ((run, args),) = calls
    texts = [
        f"{run.trace(*args).jaxpr}",
        run.lower(*args).as_text(),
        run.lower(*args).compile().as_text(),
    ]
    for word in FIXED:
        forms = (str(word), str(word - 2**32), f"{word:x}", f"{word:X}")
        assert not [form for form in forms for text in texts if form in text]
    assert any(
        np.array_equal(np.ravel(x), FIXED) for x in jax.tree.leaves(args) if x.dtype == np.uint32
    )


def test_a_repeated_step_of_the_server_costs_epsilon(world, tmp_path):
    """The server dies behind its second step, and begins anew behind its first."""
    config, _, sites = world("client")
    homes, words = fresh(sites, tmp_path), iter(range(100))

    def entropy():
        return (next(words),) * WORDS

    def end(client, letter):
        if letter.head["kind"] == "evaluate" and letter.head["round"] == 2:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        serve(make_plan(config), tmp_path / "server", transport(homes, end), print, entropy)
    assert json.loads((tmp_path / "server" / LEDGER).read_text()) == {"client, noise 0.5": 2}
    lines = []
    rows = serve(make_plan(config), tmp_path / "server", transport(homes), lines.append, entropy)
    assert [row.get("epsilon") for row in rows] == [
        None,
        *(gaussian_epsilon(0.5, n, 1e-5) for n in (1, 3)),
    ]
    assert next(words) == 3 and f"epsilon {rows[-1]['epsilon']:.4g}" in lines[-1]


def test_a_repeated_answer_costs_epsilon_whatever_the_run_is_called(world, tmp_path, monkeypatch):
    """Nobody tells an accuracy, and a run ends without one."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    config, _, sites = world("upload")
    homes = fresh(sites, tmp_path)

    def told(client):
        return sum(json.loads(homes[client].noise.path.read_text()).values())

    def end(client, reply):
        if client == 2 and "finite" in reply.head and told(2) == 2:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        serve(make_plan(config), tmp_path / "server", transport(homes, changed=end), print, fixed)
    rows = serve(make_plan(config), tmp_path / "server", transport(homes), print, fixed)
    assert [told(client) for client in range(4)] == [3, 3, 3, 2]
    assert rows[-1]["epsilon"] == gaussian_epsilon(0.5, 3, 1e-5) and "accuracy" not in rows[-1]
    assert "| lg_fedavg | - |" in (tmp_path / "server" / "summary.md").read_text()

    # Another run, without the clients that have told most: theirs is known no more, but to
    # themselves.
    def asked(letter):
        return letter.head["kind"] == "train"

    few = server_of(
        config, homes, tmp_path / "other", lambda client, letter: client < 3 and asked(letter)
    )
    simulation = as_simulation(few)
    state, report = simulation.run_round(simulation.init())
    assert report.epsilon == gaussian_epsilon(0.5, 3, 1e-5)  # client 3 has answered twice before
    gone = server_of(config, homes, tmp_path / "other", lambda _, letter: asked(letter))
    with pytest.raises(Ended):
        as_simulation(gone).run_round(state)
    assert ledger.read(gone.ledger)["epsilon"] == report.epsilon  # what was said stays said


def test_a_client_may_stop_by_itself(world, letter, tmp_path):
    """What it does not say is not counted either."""
    config, _, sites = world("upload")
    lines = []
    site = moved(sites[1], tmp_path, tell=lines.append)
    once, twice = (
        gaussian_epsilon(config.privacy.noise, times, config.privacy.delta) for times in (1, 2)
    )
    site = site._replace(noise=site.noise._replace(most=(once + twice) / 2))
    assert "error" not in answer(site, letter("upload")).head
    for _ in range(2):
        said = answer(site, letter("upload")).head["error"]
        assert (
            said
            == f"epsilon would be {twice:.4g} with this answer, and --most_epsilon is {(once + twice) / 2:g}"
        )
        assert lines[-1] == f"round 1: no answer; {said}"
    nonsense = site._replace(noise=site.noise._replace(most=math.nan))
    assert answer(nonsense, letter("upload")).head["error"].endswith("--most_epsilon is nan")
    assert list(ledger.read(site.noise.path).values()) == [1]
    words = "^--most_epsilon is 3, and privacy.unit 'client', with which a client adds no noise of its own$"
    with pytest.raises(ValueError, match=words):
        make_site(make_plan(private_config("client")), 0, None, None, tmp_path, most_epsilon=3.0)


def test_an_answer_counts_before_it_is_made(world, letter, tmp_path):
    """But no message counts that has none."""
    _, _, sites = world("sample")
    asked, path = letter("sample"), tmp_path / "home" / LEDGER
    counts = []
    site = moved(sites[1], tmp_path / "home")
    site = site._replace(
        programs=site.programs._replace(train=lambda *_: counts.append(path.read_text()) or 1 / 0)
    )
    assert answer(site, asked._replace(arrays={})).head["error"].startswith("the downlink lacks")
    assert not path.exists()
    assert "ZeroDivisionError" in answer(site, asked).head["error"]
    assert counts == [json.dumps({site.noise.name: site.noise.times})] and site.noise.times > 0


def test_a_client_whose_result_is_not_finite_sends_noise_alone(world, letter, tmp_path):
    _, _, sites = world("upload")
    asked, black = letter("upload"), sites[1].data.preprocess
    broken = sites[1].data._replace(preprocess=jax.tree.map(lambda x: x * jnp.nan, black))
    found = answer(moved(sites[1], tmp_path / "a")._replace(data=broken), asked)
    none = {
        name: split._replace(count=0 * split.count) for name, split in sites[1].data.splits.items()
    }
    nothing = answer(
        moved(sites[1], tmp_path / "b")._replace(data=sites[1].data._replace(splits=none)), asked
    )
    assert found.head["finite"] and found.arrays.keys() == nothing.arrays.keys()
    for name in found.arrays:
        np.testing.assert_allclose(found.arrays[name], nothing.arrays[name], atol=1e-6)


def test_where_all_of_a_client_is_hidden_it_says_what_every_client_says(world, tmp_path):
    config, _, sites = world("upload")
    experiment = build(config)
    own = experiment.partitions[0][2]
    for count in (0, 3):
        some = ClientIndices(own.train[:count], own.val, own.test[:4])
        few = make_site(sites[2].plan, 2, *alone(experiment.dataset, some), tmp_path)
        assert (
            few.hello == sites[2].hello
            and few.hello["counts"] == HIDDEN
            and few.counts["train"] == count
        )
    broken = sites[0]._replace(programs=None, tell=(lines := []).append)
    head = {"kind": "train", "run": "a", "round": 0, "last_round": -1, "oldest": 0}
    assert answer(broken, Envelope(head, {})).head == {
        "error": "AttributeError, as the client itself is told",
        "client": 0,
    }
    assert lines == ["AttributeError: 'NoneType' object has no attribute 'first'"]


def test_a_count_outlives_programs_and_a_broken_one_stops_its_client(tmp_path):
    path = tmp_path / "a" / LEDGER
    assert [ledger.add(path, "x", 2), ledger.add(path, "y", 1), ledger.add(path, "x", 3)] == [
        2,
        1,
        5,
    ]
    assert [ledger.raise_to(path, "z", x) for x in (1.5, 0.5, math.nan, math.inf)] == [
        1.5,
        1.5,
        1.5,
        math.inf,
    ]
    assert json.loads(path.read_text()) == {"x": 5, "y": 1, "z": math.inf}
    for wrong in ("", "[1]", '{"x": "5"}', '{"x": -1}'):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="does not say how often noise was added"):
            ledger.add(path, "x", 1)


def test_what_noise_costs(tmp_path):
    privacy, path = Privacy("sample", 1.0, 2.0), tmp_path / LEDGER
    steps = noise_of_steps(privacy, TRAINING, 100, path, fixed)
    words, epsilon = draw(steps)
    each = num_steps(TRAINING, 100)
    assert words.tolist() == list(FIXED) and words.dtype == np.uint32
    assert epsilon == poisson_epsilon(2.0, TRAINING.batch_size, 100, each, 1e-5) > 0
    assert draw(steps)[1] == poisson_epsilon(2.0, TRAINING.batch_size, 100, 2 * each, 1e-5)
    assert draw(noise_of_steps(privacy, TRAINING, 0, path, fixed))[1] == 0.0
    for sends, epsilon in ((True, gaussian_epsilon(2.0, 1, 1e-5)), (False, 0.0)):
        noise = noise_of_sums(privacy._replace(unit="upload"), sends, tmp_path / f"{sends}", fixed)
        assert draw(noise)[1] == epsilon
    assert draw(None) == ((), None)
    drawn = [fresh_words() for _ in range(50)]
    assert len(set(drawn)) == 50 and all(len(words) == WORDS and min(words) >= 0 for words in drawn)
    assert 2**31 < max(map(max, drawn)) < 2**32


def summing_server(config, sites, folder, changed=lambda client, head: head, tell=print):
    """A server that has sums alone; here without a protocol."""
    secure = make_plan(config, secure_sums=True)
    told, homes = about(secure), fresh(sites, folder)
    homes = {i: site._replace(plan=secure, hello=site.hello | told) for i, site in homes.items()}

    def add(letters, groups, most):
        masked = {i: x._replace(head=x.head | {"masked": True}) for i, x in letters.items()}
        answers = {i: answer(homes[i], x) for i, x in masked.items()}
        sums = {
            name: sum(answers[i].arrays["vector"].astype(float) for i in ids)
            for name, ids in groups.items()
        }
        return {i: Envelope(changed(i, x.head), {}) for i, x in answers.items()}, sums

    return make_server(
        secure, transport(homes)._replace(add=add), "a", tell, folder / "server", fixed
    )


def test_of_a_sum_with_an_unknown_client_in_it_nothing_is_made(world, tmp_path, monkeypatch):
    """It would be divided by too few."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    config, simulation, sites = world("client")
    lines, once = [], iter([True])

    def changed(client, head):
        return head | {"metrics": None} if client == 2 and next(once, False) else head

    server = summing_server(config, sites, tmp_path, changed, lines.append)
    (end, _), (own, _) = rounds_of(as_simulation(server), 1), rounds_of(simulation, 1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), end.servers, own.servers)
    assert lines == [
        "client 2, round 1: what it says of 'metrics' cannot be read",
        "round 1: there is no sum of mlp: there are clients in it of which nothing is known",
        "round 1: no client took part, and it does not count; it is tried again",
    ]


@pytest.mark.parametrize("unit", UNITS)
def test_a_sum_has_the_noise(world, unit, tmp_path):
    """Uplinks of which the server has the sum alone."""
    config, simulation, sites = world(unit)
    server = summing_server(config, sites, tmp_path)
    (end, rows), (own, own_rows) = rounds_of(as_simulation(server)), rounds_of(simulation)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), end.servers, own.servers)
    assert [row["epsilon"] for row in rows] == [row["epsilon"] for row in own_rows]


@pytest.mark.parametrize(
    ("unit", "change", "words"),
    [
        (
            "sample",
            {"evaluate.train": True},
            "evaluate.train is True; with privacy.unit='sample' clients do not tell",
        ),
        ("upload", {"evaluate.train": True}, "evaluate.train is True"),
        ("upload", {"evaluate.patience": 3}, "evaluate.patience is 3"),
        ("client", {"robust": (("median",),)}, "robust must then be empty"),
        ("client", {"drop_rate": 0.5}, "drop_rate is 0.5"),
    ],
    ids=["sample", "upload", "patience", "robust", "drops"],
)
def test_what_does_not_go_together_is_refused(unit, change, words):
    config = private_config(unit)
    make_plan(config)
    config.update_from_flattened_dict(change)
    with pytest.raises(ValueError, match=words):
        make_plan(config)


def test_both_sides_have_the_same_noise():
    config = private_config("upload")
    mine = about(make_plan(config))
    config.privacy.noise = 0.1
    assert (
        difference(mine, about(make_plan(config)))
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
    """In a process of its own, as `test_deployment` has it."""
    alone = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    words = [sys.executable, "-m", "tests.deploy.equal", "lg_fedavg", unit]
    done = subprocess.run(
        words, env=alone, cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
