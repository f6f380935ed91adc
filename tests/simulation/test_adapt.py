"""Clients that train for their scores alone, and clients that never take part."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.context import Turn
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.federation import with_new_clients
from fedjax_ht.core.keys import Purpose
from fedjax_ht.core.round import view
from fedjax_ht.lab.checkpoints.writers import read_runs, write_runs
from fedjax_ht.methods.shared.architectures import sizes_of
from fedjax_ht.simulation.compiled import clients_info, participant_of
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.report import Evaluation
from fedjax_ht.simulation.rows import evaluation_row
from fedjax_ht.simulation.simulation import make_simulation
from fedjax_ht.trust.options import Privacy
from tests.federations import (
    TEST_COUNTS,
    TRAIN_COUNTS,
    TRAINING,
    changed,
    federation_data,
    federation_for,
    identical,
    mixed_federation,
    to_device,
    to_host,
)
from tests.marks import thoroughly
from tests.methods.recording import NO_TRAINING
from tests.standard import method_of, played, simulation_of

IN_STEPS = dataclasses.replace(TRAINING, epochs=2, steps=3)
SHARE = 0.25  # of 8 clients: one of each architecture


def adapting(name: str, epochs: int | None, **options):
    return simulation_of(name, scoring=Scoring(adapt_epochs=epochs), **options)


def accuracies(sim, state) -> np.ndarray:
    return sim.evaluate(to_device(state)).accuracy["test"][sim.rules[0]]


@pytest.mark.parametrize("training", [TRAINING, IN_STEPS], ids=["epochs", "steps"])
def test_epochs_of_the_recipe_are_replaced(training):
    """A scored client is what client_update makes of the received one, by a recipe of k epochs."""
    federation, k = federation_for("fedavg"), 3
    data, options = federation_data(federation), SimulationOptions(scoring=Scoring(adapt_epochs=k))
    sim = make_simulation(method_of("fedavg", training), federation, data, options)
    state, _ = sim.run_round(sim.init())
    method = method_of("fedavg", dataclasses.replace(training, epochs=k, steps=None))
    (bucket,), (clients,) = federation.buckets, sim.program.clients.values()
    received = sim.read_clients(state, bucket.name, np.arange(federation.num_clients))
    x = np.asarray(data.buckets[bucket.name].inputs)
    update = jax.jit(method.client_update, static_argnums=0)
    for client in (0, 2, 5):
        participant = participant_of(clients, clients_info(sim.program, state), client)
        root, number = jax.random.key(options.seed), jnp.int32(state.round)
        ctx = Turn(root, number, participant.info).context(Purpose.EVALUATION)
        own = view(data.buckets[bucket.name], participant)._replace(round=number)
        before = jax.tree.map(lambda a, i=client: a[i], received)
        expected, _, _ = update(bucket, before, state.server, own, ctx)
        batch = data.buckets[bucket.name].preprocess(x)
        scores = method.predict(bucket, expected, state.server, batch, np.ones(len(x), bool))
        np.testing.assert_allclose(sim.predict(state, client, x), scores["head"], rtol=1e-4)


def test_nothing_but_the_scores_changes():
    """Clients keep the models that they had before they were tuned."""
    (plain, reports), (tuned, others) = (played(adapting("fedproto", n), 2) for n in (None, 4))
    assert identical(plain, tuned)
    assert identical([r._asdict() for r in reports], [r._asdict() for r in others])


def test_clients_learn_and_one_without_samples_stays():
    state = played(adapting("fedavg", None), 2)[0][-1]
    before, after = (accuracies(adapting("fedavg", k), state) for k in (None, 30))
    assert np.nanmean(after) > np.nanmean(before) + 0.1
    assert TRAIN_COUNTS[3].sum() == 0 and after[3] == before[3]


def test_both_states_tune_the_received_one_alone():
    state = played(adapting("fedproto", None), 2)[0][-1]
    both = simulation_of("fedproto", scoring=Scoring("both", adapt_epochs=5))
    scored, rule = both.evaluate(to_device(state)), both.rules[0]
    expected = accuracies(adapting("fedproto", 5), state)
    np.testing.assert_array_equal(scored.accuracy["test"][rule], expected)
    trained = simulation_of("fedproto", scoring=Scoring("trained"))
    np.testing.assert_array_equal(scored.trained.accuracy["test"][rule], accuracies(trained, state))


def test_an_evaluation_that_does_not_adapt_has_no_training():
    for request in adapting("fedavg", None).program.in_evaluation:
        assert request.epochs is None
    sim = adapting("fedavg", 2)
    assert sim.program.after_training.epochs is None and sim.program.nothing.epochs is None


ALL_TRAIN = {"fedamp", "agnostic"}  # whose servers have a share for every client


@thoroughly
def test_every_method_adapts_or_says_why(name):
    if name in ALL_TRAIN:
        with pytest.raises(ValueError, match=f"^{name} gives .* set new_share to 0$"):
            adapting(name, 2, new_share=SHARE)
        return
    sim = adapting(name, 2, new_share=SHARE)
    state = sim.init()
    if name in NO_TRAINING:
        with pytest.raises(ValueError, match="do not train with"):
            sim.evaluate(state)
        return
    before = to_host(state)
    scored = sim.evaluate(state)
    assert identical(before, to_host(state)) and scored.new is not None
    state, report = sim.run_round(state)
    new = np.flatnonzero(sim.program.new)
    assert len(new) == 2 and not set(new) & set(report.participants)
    assert np.isfinite(sim.evaluate(state).new.accuracy["test"][sim.rules[0]][new]).any()


def evaluated(name: str):
    sim = adapting(name, 2)
    return sim.evaluate(sim.init())


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Scoring("trained", adapt_epochs=1), "scoring.adapt_epochs is 1"),
        (lambda: Scoring(adapt_epochs=-1), "adapt_epochs"),
        (lambda: evaluated("afl"), "clients of afl do not train with"),
        (lambda: SimulationOptions(new_share=1.0), "new_share"),
        (lambda: SimulationOptions(new_share=0.1, privacy=Privacy("client")), "new_share"),
        (lambda: SimulationOptions(new_share=0.1, scoring=Scoring("trained")), "new_share"),
        (lambda: with_new_clients(mixed_federation(), 0.9), "all clients of 'narrow'"),
        (
            lambda: method_of("fedamp").check(with_new_clients(mixed_federation(), SHARE)),
            "fedamp gives every client a share",
        ),
    ],
)
def test_refusals(make, field):
    with pytest.raises(ValueError, match=field) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_split_without_evaluated_samples_has_no_columns():
    accuracy = {"test": {"head": np.ones(2)}, "val": {"head": np.full(2, np.nan)}}
    counts = {"train": np.ones(2, int), "test": np.ones(2, int), "val": np.array([0, 0])}
    row = evaluation_row(Evaluation(accuracy, counts, {}), ("head",))
    assert row["accuracy"] == 1 and "val_accuracy" not in row


def new_of(sim) -> np.ndarray:
    return np.flatnonzero(sim.program.new)


def test_new_clients_are_drawn_by_the_seed_of_each_architecture():
    draws = {tuple(new_of(simulation_of("local", seed=seed, new_share=SHARE))) for seed in range(8)}
    assert len(draws) > 2
    federation = mixed_federation()
    for draw in draws:
        for bucket in federation.buckets:
            assert len(set(draw) & set(federation.members(bucket))) == 1
    again = simulation_of("local", seed=3, new_share=SHARE)
    assert tuple(new_of(again)) in draws


def test_new_clients_take_no_part():
    """Nor do their samples: with others the federation is the same, bit for bit."""
    sim = simulation_of("scaffold", new_share=SHARE, participation=0.5)
    states, reports = played(sim, 4)
    new, federation = new_of(sim), mixed_federation()
    for before, after, report in zip(states, states[1:], reports):
        assert len(report.participants) == 3  # half of six
        assert not set(new) & set(report.participants)
        assert not set(new) & changed(federation, before, after)
    assert (states[-1].last_round[new] == -1).all()
    data, swapped = federation_data(federation), {}
    for bucket in federation.buckets:
        part = data.buckets[bucket.name]
        counts = np.where(np.isin(federation.members(bucket), new), 1, part.splits["train"].count)
        train = part.splits["train"]._replace(count=counts)
        swapped[bucket.name] = part._replace(splits=part.splits | {"train": train})
    data, options = data._replace(buckets=swapped), sim.program.options
    other = make_simulation(method_of("scaffold"), federation, data, options)
    assert identical(played(other, 4)[0][-1].server, states[-1].server)


def test_sizes_are_of_clients_that_train():
    federation = mixed_federation()
    assert sizes_of(federation) == [5, 3]
    assert sizes_of(with_new_clients(federation, SHARE)) == [4, 2]


@pytest.mark.parametrize(("share", "new"), [(0.1, 1), (0.25, 2), (0.3, 2), (0.5, 4)])
def test_shares_of_architectures_add_up(share, new):
    assert sum(with_new_clients(mixed_federation(), share).new) == new


def test_server_model_is_scored_on_the_others():
    """Its samples, for batch statistics as well, are those of clients that train."""
    sim = simulation_of("heterofl", new_share=SHARE)
    kept = np.setdiff1d(np.arange(8), new_of(sim))
    for name, counts in (("test", TEST_COUNTS), ("train", TRAIN_COUNTS.sum(1))):
        assert sim.program.pooled[name].count == counts[kept].sum()


def test_rows_have_columns_of_new_clients(tmp_path):
    sim = adapting("fedavg", 2, new_share=SHARE, seed=2)
    state, history = run(sim, rounds=2)
    new = new_of(sim)
    for row in history:
        of_new = [x for x in row["new_clients"] if x is not None]
        others = [x for x in row["clients"] if x is not None]
        assert len(of_new) + len(others) == (TEST_COUNTS > 0).sum()
        assert row["new_accuracy"] == pytest.approx(np.mean(of_new))
        assert row["accuracy"] == pytest.approx(np.mean(others))
        assert {i for i, x in enumerate(row["new_clients"]) if x is not None} <= set(new)
    write_runs([history], tmp_path)
    (rows,) = read_runs(tmp_path)
    assert [row["new_accuracy"] for row in rows] == [row["new_accuracy"] for row in history]
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",")
    assert "new_accuracy" in header and "new_clients" not in header
    alone = sim.evaluate(state, new[:1])
    assert alone.new is None and set(evaluation_row(alone, sim.rules)) >= {"accuracy"}


def test_runs_without_new_clients_have_no_such_columns():
    sim = simulation_of("fedavg")
    row = evaluation_row(sim.evaluate(sim.init()), sim.rules)
    assert not any(name.startswith("new_") for name in row)
    assert not sim.program.new.any() and sim.program.federation.new == ()
