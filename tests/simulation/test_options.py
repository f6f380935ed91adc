import dataclasses
import itertools

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.simulation.options import SimulationOptions, choose_participants
from tests.federations import TRAINING, federation_data, mixed_federation, samples


def test_edges_are_in_range():
    SimulationOptions(seed=0, participation=1, drop_rate=0, lanes=1)
    SimulationOptions(participation=1e-9, drop_rate=0.999, lanes=None, client_store="host")
    Scoring(state="trained", batch_size=1)


@pytest.mark.parametrize(
    ("participation", "num_clients", "participants"),
    [(1.0, 7, 7), (0.25, 10, 3), (0.5, 7, 4), (0.24, 10, 2), (1e-9, 3, 1)],
)
def test_participants_round_halves_up(participation, num_clients, participants):
    options = SimulationOptions(participation=participation)
    assert options.participants(num_clients) == participants
    for round in range(5):
        ids, dropped = choose_participants(options, num_clients, round)
        assert len(ids) == len(dropped) == len(set(ids)) == participants
        assert set(ids) <= set(range(num_clients)) and not dropped.any()
        np.testing.assert_array_equal(ids, np.sort(ids))


@pytest.mark.parametrize(("rate", "lost"), [(0.0, 0), (0.19, 0), (0.2, 1), (0.5, 2), (0.99, 4)])
def test_drop_outs_are_rounded_down(rate, lost):
    options = SimulationOptions(participation=0.5, drop_rate=rate)
    whole = SimulationOptions(participation=0.5)
    for round in range(5):
        ids, dropped = choose_participants(options, 10, round)
        assert dropped.dtype == bool and dropped.sum() == lost
        # nobody else is drawn
        np.testing.assert_array_equal(ids, choose_participants(whole, 10, round)[0])
    of_hundred = choose_participants(
        SimulationOptions(drop_rate=0.29), 100, 0
    )  # 28.999999999999996
    assert of_hundred[1].sum() == 29


def test_choice_is_a_function_of_seed_and_round():
    def draws(seed):
        options = SimulationOptions(seed=seed, participation=0.3, drop_rate=0.4)
        return [tuple(map(tuple, choose_participants(options, 20, round))) for round in range(20)]

    assert draws(3) == draws(3)
    assert len(set(draws(3))) == 20
    assert not set(draws(3)) & set(draws(4))


def test_choice_is_uniform():
    """Each of 10 takes part in 3 of 10 rounds, is dropped in 1 of 10, by five deviations."""
    options, rounds = SimulationOptions(participation=0.3, drop_rate=0.34), 3000
    taken, lost = np.zeros(10), np.zeros(10)
    together = np.zeros((10, 10))
    for round in range(rounds):
        ids, dropped = choose_participants(options, 10, round)
        taken[ids] += 1
        lost[ids[dropped]] += 1
        together[np.ix_(ids, ids)] += 1
    pairs = together[~np.eye(10, dtype=bool)]
    for counts, share in ((taken, 0.3), (lost, 0.1), (pairs, 3 / 10 * 2 / 9)):
        assert np.abs(counts - share * rounds).max() < 5 * np.sqrt(rounds * share * (1 - share))


FEDERATION = mixed_federation()
DATA = federation_data(FEDERATION)
DATASET, PARTITION = samples()
METHOD = fl.local(TRAINING)
OPTIONS = fl.SimulationOptions(devices=1)
MODELS = {"one": fl.mlp(5, (4,))}
ROW = {"round": 0, "trial": 0, "accuracy": 0.5}


@pytest.fixture(scope="module")
def simulation():
    return fl.make_simulation(METHOD, FEDERATION, DATA, OPTIONS)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: fl.make_simulation(fl.local, FEDERATION, DATA), "method is the function local"),
        (lambda: fl.make_simulation(METHOD, FEDERATION, DATASET), "data is a Dataset; it must be"),
        (
            lambda: fl.make_simulation(
                METHOD, fl.make_federation(MODELS, (4, 4, 1), 5, num_clients=2), DATA
            ),
            "data have the clients {",
        ),
        (
            lambda: fl.LocalTraining(nn.Sequential([nn.relu, nn.relu])),  # many lines
            "optimizer is a flax.Sequential; it must be an optax optimizer",
        ),
        (
            lambda: fl.make_simulation(METHOD, FEDERATION, DATA, {"seed": 1}),
            "options is {'seed': 1}; it must be a SimulationOptions(...) or None",
        ),
        (lambda: fl.run(METHOD, 3), "simulation is a Method; it must be a simulation of"),
        (
            lambda: fl.make_federation([fl.mlp(5, (4,))], (4, 4, 1), 5, num_clients=2),
            "modules is a list; it",
        ),
        (lambda: fl.make_federation(MODELS, (4, 4, 1), 5, assignment="one"), "assignment is 'one'"),
        (
            lambda: fl.make_federation_data(DATASET, [np.arange(3)], FEDERATION),
            "partition[0] is array([0, 1, 2]); it must be fl.ClientIndices(train, val, test), arrays",
        ),
        (
            lambda: fl.make_partition(DATASET, "iid", 2),
            "kind is a Dataset; it must be a string; the",
        ),
        (lambda: fl.fedproto(optax.sgd(0.1)), "training is a GradientTransformationExtraArgs; it"),
        (lambda: fl.method_factory(fl.local), "name is the function local; it must be a string"),
        (lambda: fl.load_dataset(DATASET), "name is a Dataset; it must be a string"),
        (lambda: fl.model_group("mlp2", (4, 4, 1), 5), "num_classes is (4, 4, 1); it must be an"),
        (lambda: fl.mlp(5, 4), "widths is 4; it must be a tuple, each an integer"),
        (lambda: fl.check_method(fl.local), "method is the function local; it must be a method"),
        (lambda: fl.varied(METHOD, {"weight": 1.0}), "make is a Method; it must be a function"),
        (lambda: fl.copy_state(METHOD), "state is a Method; it must be a state of"),
        (lambda: fl.class_counts(DATASET, PARTITION), "labels is a Dataset; it must be an array"),
        (lambda: fl.best(3), "history is 3; it must be a list, each a dict"),
        (lambda: fl.best([]), "history has 0 rows, none with a test accuracy; give best the hist"),
        (lambda: fl.best([ROW, ROW | {"trial": 1}]), "history has the rows of 2 trials; give"),
        (lambda: fl.train_and_evaluate("quickstart", "runs"), "config is a str; it must be what"),
        (lambda: fl.Dataset("d", np.zeros((2, 2)), np.arange(2), 10), "d: class_names is 10"),
        (
            lambda: fl.Dataset("d", np.zeros((2, 2)), np.arange(2), ("a", "b"), "scale"),
            "d: preprocess is 'scale'; it must be a function or None",
        ),
    ],
)
def test_an_object_in_the_wrong_place_is_one_line(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert len(error.traceback) < 9


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"rounds": "3"}, "rounds is '3'; it must be an integer of at least 0"),
        ({"eval_every": 0}, "eval_every is 0; it must be an integer of at least 1"),
        ({"patience": 0}, "patience is 0; it must be an integer of at least 1 or None"),
        ({"state": []}, "state is []; it must be a state of simulation.init() or fl.run or None"),
        ({"progress_fn": 3}, "progress_fn is 3; it must be a function or None"),
        (
            {"history": [ROW]},
            "history has 1 rows, but its state is missing; give both, as returned",
        ),
        ({"only": [9]}, "only is [9]; it must be a list of integers from 0 to 7"),
        ({"only": [True] * 8}, "only is [True, True, "),
        ({"only": [0.5]}, "only is [0.5]; it must be a list of integers from 0 to 7"),
        (
            {"history": [ROW | {"round": 3}], "state": "new"},
            "history ends with round 3, but state is",
        ),
    ],
)
def test_a_run_checks_its_arguments(simulation, arguments, message):
    if arguments.get("state") == "new":
        arguments = arguments | {"state": simulation.init()}
    with pytest.raises(ValueError) as error:
        fl.run(simulation, **{"rounds": 1} | arguments)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_a_state_is_that_of_the_simulation(simulation):
    """The server's arrays, the clients', and the architectures are compared."""
    start = simulation.init()
    states = [
        fl.make_simulation(fl.fedproto(TRAINING), FEDERATION, DATA, OPTIONS).init(),
        start._replace(clients={name: {"params": 0} for name in start.clients}),
        start._replace(clients={"narrow": start.clients["narrow"]}),
        (start, []),
        None,
    ]
    calls = [
        simulation.evaluate,
        simulation.run_round,
        simulation.find_fault,
        lambda state: simulation.read_clients(state, "narrow", np.arange(1)),
        lambda state: simulation.features(state, [0], np.arange(2)),
        lambda state: simulation.predict(state, 0, DATASET.inputs[:2]),
    ]
    for state, call in itertools.product(states, calls):
        with pytest.raises(ValueError, match=r"^state (is|has) .*init\(\) o"):
            call(state)
    simulation.evaluate(start)
    with pytest.raises(ValueError, match="unknown architecture 'narow'; did you mean 'narrow'"):
        simulation.read_clients(start, "narow", np.arange(1))
    for rows in ([99], [-1], [0.0], [], 0):
        with pytest.raises(ValueError, match=r"rows is .*; it must be a list of integers from 0"):
            simulation.read_clients(start, "narrow", rows)
    two = simulation.read_clients(start, "narrow", np.arange(2))
    for states in (two["params"], jax.tree.map(lambda x: x[:1], two), jax.tree.map(np.int32, two)):
        with pytest.raises(ValueError, match="states of 2 clients must have the form") as error:
            simulation.write_clients(start, "narrow", np.arange(2), states)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="write_clients has a row of 'narrow' twice"):
        simulation.write_clients(start, "narrow", np.zeros(2, int), two)
    simulation.write_clients(start, "narrow", np.arange(2), two)
    with pytest.raises(ValueError, match="state was consumed by run_round or write_clients"):
        simulation.evaluate(start)
    start = simulation.init()
    late = fl.Profile(up=np.ones(FEDERATION.num_clients), deadline=1.0, late="arrives")
    for options in ({"select": fl.power_of_choice()}, {"devices_profile": late}):
        options = dataclasses.replace(OPTIONS, **options)
        other = fl.make_simulation(METHOD, FEDERATION, DATA, options)
        with pytest.raises(ValueError, match=r"^state is from a simulation without (sel|dev)"):
            other.run_round(start)
    with pytest.raises(ValueError, match="state is from a simulation with late uploads on their w"):
        simulation.run_round(other.init())
    on_host = dataclasses.replace(OPTIONS, client_store="host")
    other = fl.make_simulation(METHOD, FEDERATION, DATA, on_host)
    with pytest.raises(ValueError, match="state is stored for another client_store or number of"):
        other.run_round(start)
    simulation.evaluate(other.init())  # NumPy arrays in the order of one device
    first = other.init()
    second, _ = other.run_round(first)
    with pytest.raises(ValueError, match="state was consumed by run_round or write_clients"):
        other.run_round(first)
    third, _ = other.run_round(fl.copy_state(second))
    fourth = other.write_clients(third, "narrow", np.arange(2), two)
    with pytest.raises(ValueError, match="state was consumed by run_round or write_clients"):
        other.evaluate(third)
    other.evaluate(fourth)
    other.evaluate(second)


def test_an_unknown_name_is_answered_with_a_near_one():
    with pytest.raises(AttributeError, match="'fedprotto'; did you mean 'fedproto'"):
        _ = fl.fedprotto
