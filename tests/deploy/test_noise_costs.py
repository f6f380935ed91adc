"""Epsilon of a deployment: what counts, what stops it, and which configs are refused."""

import json
import math
import sys

import numpy as np
import pytest

from fedjax_ht.core.local_training import num_steps
from fedjax_ht.deploy import rounds
from fedjax_ht.deploy.client import answer, make_client
from fedjax_ht.deploy.command import serve
from fedjax_ht.deploy.noise import (
    LEDGER_FILE,
    SECRET_WORDS,
    draw,
    fresh_secret,
    read_ledger,
    record_epsilons,
    training_noise,
    update_noise,
)
from fedjax_ht.deploy.plan import DeploymentEnded, make_plan
from fedjax_ht.deploy.rounds import as_rounds
from fedjax_ht.trust.epsilon import gaussian_epsilon, poisson_epsilon
from fedjax_ht.trust.options import Privacy
from tests.deploy.sites import FIXED, fresh, moved, private_config, server_of, transport
from tests.federations import TRAINING

pytest.importorskip("dp_accounting")

HUGE = ('{"x": Infinity}', '{"x": NaN}', '{"x": true}', f'{{"x": 1{"0" * 400}}}')


def test_a_repeated_step_of_the_server_costs_epsilon(private_federation, tmp_path, monkeypatch):
    """The server ends after its second step, and continues after its first."""
    config, _, sites = private_federation("client")
    homes, numbers = fresh(sites, tmp_path), iter(range(100))

    def secret():
        return (next(numbers),) * SECRET_WORDS

    monkeypatch.setattr("fedjax_ht.deploy.noise.fresh_secret", secret)

    def end(client, request):
        if request.header["kind"] == "evaluate" and request.header["round"] == 2:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        serve(make_plan(config), tmp_path / "server", transport(homes, end))
    assert json.loads((tmp_path / "server" / LEDGER_FILE).read_text()) == {"client, noise 0.5": 2}
    lines = []
    reached = transport(homes)._replace(tell=lines.append)
    rows = serve(make_plan(config), tmp_path / "server", reached)
    spent = [gaussian_epsilon(0.5, n, 1e-5) for n in (1, 3)]
    assert [row.get("epsilon") for row in rows] == [None, *spent]
    assert next(numbers) == 3 and f"epsilon {rows[-1]['epsilon']:.4g}" in lines[-1]


def test_a_repeated_answer_costs_epsilon(private_federation, tmp_path, monkeypatch):
    """Clients report no accuracy, and a run ends without one."""
    monkeypatch.setattr(rounds, "PAUSE_SECONDS", 0.0)
    config, _, sites = private_federation("upload")
    homes = fresh(sites, tmp_path)

    def count(client):
        return sum(json.loads(homes[client].noise.path.read_text()).values())

    def end(client, reply):
        if client == 2 and "finite" in reply.header and count(2) == 2:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        serve(make_plan(config), tmp_path / "server", transport(homes, changed=end))
    rows = serve(make_plan(config), tmp_path / "server", transport(homes))
    assert [count(client) for client in range(4)] == [3, 3, 3, 2]
    assert rows[-1]["epsilon"] == gaussian_epsilon(0.5, 3, 1e-5) and "accuracy" not in rows[-1]
    assert "| lg_fedavg | - |" in (tmp_path / "server" / "summary.md").read_text()

    # another run, without the clients with the highest counts, which they alone still know
    def loses_all(client, request):
        return request.header["kind"] == "train"

    def loses_three(client, request):
        return client < 3 and loses_all(client, request)

    few = server_of(config, homes, tmp_path / "other", loses_three)
    simulation = as_rounds(few)
    state, report = simulation.run_round(simulation.init())
    assert report.epsilon == gaussian_epsilon(0.5, 3, 1e-5)  # client 3 has answered twice before
    gone = server_of(config, homes, tmp_path / "other", loses_all)
    with pytest.raises(DeploymentEnded):
        as_rounds(gone).run_round(state)
    assert read_ledger(gone.ledger) == {"epsilon of client 3": report.epsilon}  # it does not go


def test_a_client_may_stop_by_itself(private_federation, train_request, tmp_path):
    """A refused answer is not counted."""
    config, _, sites = private_federation("upload")
    lines = []
    site = moved(sites[1], tmp_path, tell=lines.append)
    noise, delta = config.privacy.noise, config.privacy.delta
    once, twice = (gaussian_epsilon(noise, times, delta) for times in (1, 2))
    site = site._replace(noise=site.noise._replace(max_epsilon=(once + twice) / 2))
    assert "error" not in answer(site, train_request("upload")).header
    for _ in range(2):
        error = answer(site, train_request("upload")).header["error"]
        assert error.startswith(f"epsilon would be {twice:.4g} with this answer, but --most_epsil")
        assert lines[-1] == f"round 1: no answer; {error}"
    nonsense = site._replace(noise=site.noise._replace(max_epsilon=math.nan))
    error = answer(nonsense, train_request("upload")).header["error"]
    assert error.endswith("--most_epsilon is nan")
    assert list(read_ledger(site.noise.path).values()) == [1]
    message = "^--most_epsilon is 3, and with privacy.unit 'client' a client adds no noise"
    with pytest.raises(ValueError, match=message):
        make_client(make_plan(private_config("client")), 0, None, None, tmp_path, max_epsilon=3.0)


def test_an_answer_counts_before_it_is_made(private_federation, train_request, tmp_path):
    """A request that has no answer does not count."""
    _, _, sites = private_federation("sample")
    request, path = train_request("sample"), tmp_path / "home" / LEDGER_FILE
    counts = []

    def train(*_):
        counts.append(path.read_text())
        raise ZeroDivisionError

    site = moved(sites[1], tmp_path / "home")
    site = site._replace(programs=site.programs._replace(train=train))
    error = answer(site, request._replace(arrays={})).header["error"]
    assert error.startswith("the downlink lacks")
    assert not path.exists()
    assert "ZeroDivisionError" in answer(site, request).header["error"]
    assert counts == [json.dumps({site.noise.name: site.noise.count_per_draw})]
    assert site.noise.count_per_draw > 0


def test_a_count_outlives_programs_and_a_broken_one_stops_its_client(tmp_path):
    path = tmp_path / "a" / LEDGER_FILE
    noises = [update_noise(Privacy("upload", 1.0, 2.0), True, path) for _ in range(2)]
    noises[1] = noises[1]._replace(name="y", count_per_draw=3)
    for i in (0, 1, 0, 1):
        draw(noises[i])
    assert json.loads(path.read_text()) == {noises[0].name: 2, "y": 6}
    for wrong in ("", "[1]", '{"x": "5"}', '{"x": -1}', "[" * 100_000, *HUGE):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="is damaged: without its count of noisy answers"):
            draw(noises[0])


def test_a_client_that_says_too_much_is_told_of_and_its_last_word_counts(tmp_path):
    path = tmp_path / LEDGER_FILE
    assert record_epsilons(path, {0: 2.0, 1: 3.0, 2: 1.0}) == (3.0, [])
    largest, lines = record_epsilons(path, {0: 2.5, 1: 10**30})  # as an integer of JSON
    assert largest == 1e30
    assert lines == ["epsilon of client 1 is 1e+30 by its own report, the median 2.5"]
    assert record_epsilons(path, {1: 1e30}) == (1e30, [])  # it is told once
    assert record_epsilons(path, {1: 3.5}) == (3.5, [])
    kept = {f"epsilon of client {i}": x for i, x in enumerate((2.5, 3.5, 1.0))}
    assert json.loads(path.read_text()) == kept


def test_a_missing_count_is_not_begun_anew(private_federation, train_request, tmp_path):
    """Neither a client's nor a server's; nothing is sent, and no client is asked."""
    _, _, sites = private_federation("upload")
    lines = []
    site, request = moved(sites[1], tmp_path / "home", tell=lines.append), train_request("upload")
    assert "error" not in answer(site, request).header
    site.noise.path.unlink()
    error = answer(site, request).header["error"]
    assert error.startswith(f"{site.noise.path} is missing, but {tmp_path / 'home'} has states")
    assert lines[-1] == f"round 1: no answer; {error}" and not site.noise.path.exists()
    for unit in ("client", "upload"):
        folder = tmp_path / unit
        (folder / "checkpoints" / "1").mkdir(parents=True)
        with pytest.raises(ValueError, match=r"told\.json is missing, but .* so epsilon is"):
            server_of(private_federation(unit)[0], {}, folder)
        with pytest.raises(ValueError, match="is missing"):
            read_ledger(folder / LEDGER_FILE)


def test_epsilon_of_noise(tmp_path):
    privacy, path = Privacy("sample", 1.0, 2.0), tmp_path / LEDGER_FILE
    steps = training_noise(privacy, TRAINING, 100, path)
    secret, epsilon = draw(steps)
    each = num_steps(TRAINING, 100)
    assert secret.tolist() == list(FIXED) and secret.dtype == np.uint32
    assert epsilon == poisson_epsilon(2.0, TRAINING.batch_size, 100, each, 1e-5) > 0
    assert draw(steps)[1] == poisson_epsilon(2.0, TRAINING.batch_size, 100, 2 * each, 1e-5)
    assert draw(training_noise(privacy, TRAINING, 0, path))[1] == 0.0
    for sends, epsilon in ((True, gaussian_epsilon(2.0, 1, 1e-5)), (False, 0.0)):
        noise = update_noise(privacy._replace(unit="upload"), sends, tmp_path / f"{sends}")
        assert draw(noise)[1] == epsilon
    assert draw(None) == ((), None)
    drawn = [fresh_secret() for _ in range(50)]
    assert len(set(drawn)) == 50
    assert all(len(secret) == SECRET_WORDS and min(secret) >= 0 for secret in drawn)
    assert 2**31 < max(map(max, drawn)) < 2**32


@pytest.mark.parametrize(
    ("unit", "field", "value"),
    [
        ("sample", "scoring.train", True),
        ("upload", "scoring.train", True),
        ("upload", "evaluate.patience", 3),
    ],
)
def test_options_that_need_hidden_scores_are_refused(unit, field, value):
    config = private_config(unit)
    make_plan(config)
    config.update({field: value})
    with pytest.raises(ValueError, match=f"{field} is {value}, but with privacy.unit='{unit}'"):
        make_plan(config)
    config.update({"privacy.noise": 0.0})
    with pytest.raises(ValueError, match=r"^privacy\.noise is 0, so epsilon is infinite"):
        make_plan(config)


def test_an_accountant_is_asked_for_before_anything_is_compiled(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"privacy needs dp-accounting; run pip install"):
        make_plan(private_config("client"))
