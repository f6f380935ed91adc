"""Selections of participants, against a slow reference, and runs that select."""

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.core.keys import Purpose, host_generator
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.runs.method import selection
from fedjax_ht.simulation.history import run
from fedjax_ht.simulation.options import choose_participants
from fedjax_ht.simulation.selection import Reports, by_samples, oort, power_of_choice, utilities
from fedjax_ht.trust.options import Privacy
from tests.federations import identical, to_host
from tests.simulation.test_clock import untimed
from tests.standard import simulation_of

SAMPLES = np.array([5, 1, 0, 8, 3, 40, 2, 2])
LOSS = np.array([0.4, np.inf, 0.1, 2.2, 0.4, 0.8, 1.4, np.inf])
ALL = np.arange(8)


def reports(samples=SAMPLES, loss=LOSS):
    return Reports(np.asarray(samples), np.asarray(loss))


def most_by_hand(candidates, loss, most):
    """Returns the candidates of the largest losses; of equal ones the first."""
    left, chosen = list(candidates), []
    while left and len(chosen) < most:
        best = left[0]
        for client in left:
            if loss[client] > loss[best]:
                best = client
        chosen.append(best)
        left.remove(best)
    return chosen


@pytest.mark.parametrize("seed", range(5))
def test_power_of_choice_takes_the_largest_losses_of_its_candidates(seed):
    drawn = by_samples().choose(np.random.default_rng(seed), reports(), ALL, 4)
    chosen = power_of_choice(2.0).choose(np.random.default_rng(seed), reports(), ALL, 2)
    assert chosen.tolist() == most_by_hand(drawn, LOSS, 2)
    whole = power_of_choice(100.0).choose(np.random.default_rng(seed), reports(), ALL, 3)
    assert {1, 7, 3} == set(whole.tolist())  # never heard, and then the largest


def test_clients_are_drawn_by_their_samples():
    """The first draw has the chance n_k / n, within five standard deviations."""
    generator, draws = np.random.default_rng(0), 4000
    firsts = [by_samples().choose(generator, reports(), ALL, 1)[0] for _ in range(draws)]
    share = SAMPLES / SAMPLES.sum()
    seen = np.bincount(firsts, minlength=8) / draws
    assert (np.abs(seen - share) <= 5 * np.sqrt(share * (1 - share) / draws)).all()
    # nobody without samples, nobody who is not free, nobody twice
    assert sorted(by_samples().choose(generator, reports(), ALL, 8)) == [0, 1, 3, 4, 5, 6, 7]
    assert sorted(by_samples().choose(generator, reports(), np.array([2, 4]), 2)) == [4]
    assert not by_samples().choose(generator, reports(), np.array([2]), 1).size


def in_round(number: int, **changes):
    known = reports(**changes)
    return known._replace(last_round=np.array([1, -1, 0, 4, 2, 5, 3, -1]), round=number)


def test_utilities_of_oort():
    """By hand, of the clients that have reported; the largest of six is above the quantile."""
    known = in_round(6)
    found, values = utilities(known, 0.7), SAMPLES * np.where(np.isinf(LOSS), np.nan, LOSS)
    heard = sorted(v for v in values if not np.isnan(v))
    bound, least, span = heard[int(0.7 * 6)], 0.999 * heard[0], heard[-1] - 0.999 * heard[0]
    for client, value in enumerate(values):
        rest = (0.1 * np.log(6) / max(known.last_round[client], 1)) ** 0.5
        np.testing.assert_allclose(found[client], (min(value, bound) - least) / span + rest)
    assert bound < heard[-1]
    assert np.isnan(utilities(in_round(0, loss=np.full(8, np.inf)), 0.7)).all()


def test_oort_takes_new_clients_and_those_of_enough_utility():
    generator, seen, known = np.random.default_rng(0), np.zeros(8, int), in_round(50)
    for _ in range(300):
        ids = oort(exploration=0.5, least=0.25, cut_off=1.0).choose(generator, known, ALL, 4)
        assert len(set(ids)) == 4 and 2 not in ids  # client 2 has no sample
        seen[ids] += 1
    best = np.argsort(-np.nan_to_num(utilities(known, 0.95), nan=-1))[:3]
    assert (seen[best] == 300).all() and seen[1] + seen[7] == 300 > seen[7] > 0
    # of a wider cut, others are drawn, too
    ids = [set(oort(0, cut_off=0.1, least=0).choose(generator, known, ALL, 3)) for _ in range(50)]
    assert not any(x & {1, 7} for x in ids) and len(set().union(*ids)) > 3
    first = in_round(0, loss=np.full(8, np.inf))
    assert len(oort(0.0, least=0.0).choose(generator, first, ALL, 5)) == 5  # nobody else to take
    assert oort().choose(generator, known, np.array([3]), 2).tolist() == [3]
    assert oort().choose(generator, known, ALL, 1)[0] in (1, 7)  # new ones, however few take part


def ids_of(choose, **options):
    options = fl.SimulationOptions(select=fl.Selection("mine", choose), **options)
    return choose_participants(options, 8, 3, None, reports())


def test_a_function_of_ones_own_is_asked_with_the_generator_of_the_round():
    def uniform(generator, known, free, participants):
        assert known.samples.tolist() == SAMPLES.tolist() and free.tolist() == ALL.tolist()
        return generator.permutation(free)[:participants]

    ids, dropped = ids_of(uniform, seed=4, participation=0.5)
    expected = host_generator(4, Purpose.PARTICIPATION, 3).permutation(8)[:4]
    assert ids.tolist() == sorted(expected) and not dropped.any()
    assert ids_of(uniform, seed=4, participation=0.5, drop_rate=0.5)[1].sum() == 2


@pytest.mark.parametrize("ids", [[0, 0], [0, 1, 2, 3, 4], [8], [-1], None, {0, 1}, [True, False]])
def test_a_wrong_choice_is_one_line(ids):
    with pytest.raises(ValueError, match=r"the selection mine chose .* at most 4 distinct clients"):
        ids_of(lambda *_: np.array(ids), participation=0.5)


def make(select, **options):
    return simulation_of("fedproto", participation=0.25, devices=1, select=select, **options)


def test_the_server_knows_the_loss_of_those_who_arrived():
    simulation = make(power_of_choice(100.0), drop_rate=0.5)
    state = simulation.init()
    assert np.isinf(state.reports.loss).all()
    for _ in range(3):
        before = state.reports
        state, report = simulation.run_round(state)
        expected = before.loss.copy()
        for client, loss in zip(report.participants, report.losses):
            if not np.isnan(loss):
                expected[client] = loss
        np.testing.assert_array_equal(state.reports.loss, expected)
        assert np.isnan(report.losses).sum() == 1  # one of two is dropped
    assert np.isfinite(state.reports.loss).sum() == 3


@pytest.mark.parametrize("select", [power_of_choice(3.0), oort()], ids=["power_of_choice", "oort"])
def test_a_resumed_run_selects_the_same(tmp_path, select):
    simulation = make(select)
    whole, rows = run(simulation, 4)
    writer = Checkpointer(tmp_path / "checkpoints", simulation)
    writer.save(*run(simulation, 2))
    state, history = Checkpointer(tmp_path / "checkpoints", simulation).restore()
    state, history = run(simulation, 4, state=state, history=history)
    assert untimed(history) == untimed(rows) and identical(to_host(state), to_host(whole))
    uniform = make(None)
    assert uniform.init().reports is None
    plain, _ = run(uniform, 4)
    assert (plain.last_round != whole.last_round).any()


def test_selections_see_single_clients_so_privacy_refuses_them():
    privacy = Privacy(unit="client", clip=1.0, noise=1.0)
    fl.SimulationOptions(privacy=privacy)
    with pytest.raises(ValueError, match="select is by_samples, which sees the losses of single"):
        fl.SimulationOptions(privacy=privacy, select=by_samples())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ort", "select: unknown selection 'ort'"),
        ("oort/2", "select: exploration is 2"),
        ("power_of_choice/0.5", "select: candidates is 0.5"),
        ("power_of_choice/1/2", "power_of_choice takes candidates"),
        ("by_samples/1", "by_samples takes"),
        ("", "select has ''"),
    ],
)
def test_a_wrong_text_is_one_line(text, message):
    with pytest.raises(ValueError, match=message):
        selection(text)


def test_texts_of_a_config():
    assert selection(Config().select) is None
    assert selection("by_samples").name == "by_samples"
    generator = np.random.default_rng(0)
    chosen = selection("power_of_choice/100").choose(generator, reports(), ALL, 3)
    assert set(chosen.tolist()) == {1, 7, 3}
