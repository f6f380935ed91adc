"""Attacks on the clients of a run: the command, its files and its refusals."""

import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.attack import picture_of
from experiments.leaks.imitation import payload
from experiments.leaks_of_runs import epsilon, uploaded
from experiments.leaks_table import (
    NOT_NEEDED,
    OTHER,
    OWN,
    Inverted,
    Row,
    add,
    markdown,
    picture,
)
from experiments.rows import read_rows
from fedjax_ht.core.wire import chain, gaussian_noise
from fedjax_ht.lab.config.base import method_config
from fedjax_ht.lab.runs.evaluate import LoadedRun
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.trust.epsilon import gaussian_epsilon, poisson_epsilon
from tests.experiments.leaks.victims import image_of, victim_of
from tests.runs import config_of

ROWS = [
    Row(1, "fedavg", "dlg", 0, 1, 0.0, 0.0, NOT_NEEDED, 50, 30.0, 0.9),
    Row(1, "fedavg", "dlg", 1, 1, 0.0, 0.0, NOT_NEEDED, 50, 20.0, 0.7),
    Row(1, "fedavg", "geiping", 0, 1, 0.3, 0.05, NOT_NEEDED, 50, 6.0, 0.02),
    Row(1, "fedproto", "dlg", 0, 1, 0.0, 0.0, OWN, 5, 11.0, 0.125),
    Row(1, "fedproto", "dlg", 0, 1, 0.0, 0.0, OTHER, 5, 5.0, 0.0),
    Row(20, "local", "membership", 0, auc=0.75),
    Row(20, "local", "membership", 1, auc=0.5),
]

SEEN = (("fedavg", NOT_NEEDED), ("lg_fedavg", OWN), ("lg_fedavg", OTHER))
HIDDEN = {"unit": "upload", "clip": 0.5, "scale": 2.9}
PRIVATE = [
    Row(1, "fedavg", "dlg", 0, 1, 0.0, 0.0, NOT_NEEDED, 50, 5.0, 0.1)._replace(
        trial=1, image=3, **HIDDEN, epsilon=7.93
    ),
    Row(20, "fedavg", "membership", 0, auc=0.5, state=NOT_NEEDED, **HIDDEN, epsilon=7.93),
    Row(20, "fedavg", "membership", 0, auc=0.75, **HIDDEN, epsilon=math.inf),
    Row(20, "fedavg", "membership", 1, auc=0.5, state=NOT_NEEDED, **HIDDEN, epsilon=3.0),
]


def test_a_file_holds_what_was_added(tmp_path):
    add(ROWS[:3], tmp_path / "a.csv")
    add([*ROWS[3:], *PRIVATE], tmp_path / "a.csv")
    assert read_rows(tmp_path / "a.csv", Row) == [*ROWS, *PRIVATE]


def test_the_table_has_means_and_ends():
    assert markdown(ROWS).splitlines() == [
        "| round | method | images | numbers sent | the client's model | noise | uploads | dlg | "
        "geiping, tv 0.3 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| 1 | fedavg | 1 | 50 | is sent |  | 2 | 25.0 (20.0 to 30.0) / 0.80 |  |",
        "| 1 | fedavg | 1 | 50 | is sent | 0.05 | 1 |  | 6.0 / 0.02 |",
        "| 1 | fedproto | 1 | 5 | is known |  | 1 | 11.0 / 0.12 |  |",
        "| 1 | fedproto | 1 | 5 | is guessed |  | 1 | 5.0 / 0.00 |  |",
        "",
        "| round | method | the model | AUC, mean over clients | least | most | clients |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| 20 | local | the client's own | 0.625 | 0.500 | 0.750 | 2 |",
    ]


def test_the_table_says_what_is_hidden():
    row = "| 1 | fedavg | 1 | 50 | is sent | upload, clip 0.5, noise 2.9 | 7.93 | 1 | 5.0 / 0.10 |"
    assert row in markdown(PRIVATE)


def test_a_picture_shows_all_uploads(tmp_path):
    images = np.zeros((1, 12, 12, 1))
    public, private = Inverted(ROWS[0], images, images), Inverted(PRIVATE[0], images, images)
    assert picture_of(tmp_path / "a.csv", "fedavg", public) == tmp_path / "a_fedavg.png"
    assert picture_of(Path("a.csv"), "fedavg", private) == Path("a_fedavg_trial1_upload2.9.png")
    picture([public, public], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.fixture
def private_run(tiny_config):
    """(unit) -> a run of LG-FedAvg that nobody has begun."""
    pytest.importorskip("dp_accounting")

    def make(unit):
        config = config_of(tiny_config)
        config.method, config.privacy.unit = method_config("lg_fedavg"), unit
        config.privacy.noise = 2.0
        return LoadedRun(plan(config).runs["lg_fedavg"], None, None)

    return make


def test_epsilon_is_of_what_the_attacker_looks_at(private_run):
    expected = gaussian_epsilon(2.0, 20, 1e-5)
    for unit in ("upload", "client"):
        assert epsilon(private_run(unit), 1, 0, 20, noisy=True) == expected
        assert epsilon(private_run(unit), 1, 0, 20, noisy=False) == math.inf
    run = private_run("sample")
    count = len(run.run.partitions[0][1].train)
    steps = 20 * (count // 10)
    for noisy in (True, False):
        assert epsilon(run, 1, 0, 20, noisy) == poisson_epsilon(2.0, 10, count, steps, 1e-5)
    assert epsilon(private_run("none"), 1, 0, 20, True) == ""


def test_uploads_have_passed_the_transforms_of_the_run():
    """Noise of its own for each."""
    victim, state = victim_of("fedavg")
    images, labels = image_of(2)
    plain, *noisy = (
        payload(uploaded(victim, transform, state, images, labels, jnp.uint32(number)))
        for transform, number in (
            (chain(()), 0),
            (gaussian_noise(0.5, 0.0), 0),
            (gaussian_noise(0.5, 0.0), 1),
        )
    )
    added = np.array([x - plain for x in noisy])
    assert added.size >= 40 and 0.35 < added.std() < 0.65 and abs(np.corrcoef(added)[0, 1]) < 0.6


def test_another_file_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match=r"a\.csv must have rows with the columns round, method"):
        read_rows(tmp_path / "a.csv", Row)


def refused(run_module, *arguments):
    done = run_module("attack", *arguments)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give --workdir and --attack, or --csv alone"),
        ("--attack=dgl", "'dgl'; did you mean 'dlg'"),
        ("--attack=dlg --batch=0", "--batch is 0; it must be from 1 to 16"),
        ("--attack=dlg --epsilon_rounds=0", "--epsilon_rounds is 0; it must be at least 1"),
        ("--attack=dlg --tv=much", "--tv is 'much'; it must be numbers of at least 0"),
        ("--attack=dlg --noise=0.1,-1", "--noise is '0.1,-1'; it must be numbers of at least 0"),
        ("--attack=dlg", "no run in"),
    ],
)
def test_bad_input_is_one_line(run_module, tmp_path, arguments, message):
    assert message in refused(run_module, f"--workdir={tmp_path / 'none'}", *arguments.split())


@pytest.mark.slow
def test_uploads_of_a_private_run_are_attacked(run_module, tiny_config, tmp_path):
    """Two of each trial, of which one is like the other but for noise and images."""
    pytest.importorskip("dp_accounting")
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (200, 12, 12, 1), dtype=np.uint8), np.arange(200) % 4
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    run, table = f"--workdir={tmp_path / 'run'}", tmp_path / "a.csv"
    settings = [
        f"--config.dataset.name=npz:{tmp_path / 'data.npz'}",
        "--config.entries=('fedavg','lg_fedavg')",
    ]
    settings += ["--config.model.group=experiments.configs.private:perceptron"]
    settings += ["--config.privacy.unit=upload", "--config.privacy.noise=0.01"]
    done = run_module("main", f"--config={tiny_config}:runlocal", run, *settings)
    assert done.returncode == 0, done.stderr
    attack = (
        "--attack=dlg,membership",
        "--uploads=2",
        "--adam_steps=2",
        "--epsilon_rounds=20",
        f"--csv={table}",
    )
    done = run_module("attack", run, "--trust", *attack, drawn=True)
    assert done.returncode == 0, done.stderr
    rows = read_rows(table, Row)
    inversions = {(r.method, r.state, r.image) for r in rows if r.attack == "dlg"}
    assert inversions == {(m, s, i) for m, s in SEEN for i in (0, 1)}
    assert {(r.method, r.state) for r in rows if r.attack == "membership"} == {*SEEN} - {
        ("lg_fedavg", OTHER)
    } | {("fedavg", OWN)}
    hidden = [r.epsilon for r in rows if r.attack == "dlg" or r.state == NOT_NEEDED]
    assert {*hidden} == {float(f"{gaussian_epsilon(0.01, 20, 1e-5):.6g}")}
    assert all(r.epsilon == math.inf for r in rows if r.attack == "membership" and r.state == OWN)
    assert (tmp_path / "a_lg_fedavg_upload0.01.png").exists()
    many = "--attack=dlg", "--method=fedavg", "--uploads=64", "--batch=16"
    few = refused(run_module, run, "--trust", *many)
    assert "training samples, fewer than --uploads=64 times --batch=16" in few
