"""Three rounds of a simulation against the same rounds in NumPy, from equal weights: what clients keep
while they are absent, and what a server makes of a part of its clients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.federation import Federation
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.simulation.simulation import make_simulation
from tests import tiny
from tests.federations import each_client, play, to_host
from tests.reference import whole_rounds as reference
from tests.tiny import LR, check_model
from tests.tiny import SHORT_TRAINING as TRAINING

FEDERATION: Federation = tiny.linear_federation(buckets=1, clients=3)
SAMPLES = {0: 5, 1: 3, 2: 4}
ROUNDS = [[0, 1], [1, 2], [0, 2]]
LABELS = np.array([0, 2, 2, 0, 3, 1, 1, 0, 3, 3, 2, 3], np.int32)
IMAGES = np.random.default_rng(0).integers(0, 256, (12, 2, 2), np.uint8)


def indices() -> list[np.ndarray]:
    ends = np.cumsum(list(SAMPLES.values()))
    return np.split(np.arange(12), ends[:-1])


def batches(size: int = TRAINING.batch_size) -> dict[int, list]:
    """The batches of each client: `size` samples, and what is left."""
    x = (IMAGES.reshape(12, -1) / 255 - 0.5) / 0.5
    of_clients = {}
    for i, places in enumerate(indices()):
        starts = range(0, len(places), size)
        of_clients[i] = [(x[places[s : s + size]], LABELS[places[s : s + size]]) for s in starts]
    return of_clients


def simulated(method):
    """Plays the rounds; returns the first state and the last one, and the clients of both."""
    nothing = np.zeros(0, int)
    dataset = Dataset("tiny", IMAGES, LABELS, tuple("abcd"))
    partition = tuple(ClientIndices(places, nothing, nothing) for places in indices())
    simulation = make_simulation(method, FEDERATION, arranged(dataset, partition, FEDERATION))
    first = state = to_host(simulation.init())
    for ids in ROUNDS:
        state, _ = play(simulation, state, ids)
    before, after = (each_client(FEDERATION, to_host(s)) for s in (first, state))
    return first.server, before, state.server, after


def flat(params) -> dict[str, np.ndarray]:
    return tiny.flat_params(params)


def zeros(params) -> dict[str, np.ndarray]:
    return {name: 0 * value for name, value in flat(params).items()}


def expected(form, first, kept=None, size: int = TRAINING.batch_size) -> tuple:
    """The server's state and the clients' by the reference, from their first ones."""
    kept = dict.fromkeys(SAMPLES) if kept is None else kept
    return reference.play(form, first, kept, ROUNDS, batches(size))


@pytest.mark.parametrize(
    "name, options",
    [
        ("fedprox", {"mu": 0.5}),
        ("fedbabu", {}),
        ("qfedavg", {"q": 0.0, "lipschitz": 1 / LR}),  # the uniform mean
        ("qfedavg", {"q": 0.5, "lipschitz": 1 / LR}),
    ],
)
def test_methods_whose_clients_keep_nothing(name, options):
    start, _, server, _ = simulated(METHODS[name](TRAINING, **options))
    model, _ = expected(getattr(reference, name)(LR, *options.values()), flat(start[0]))
    check_model(server[0], model)


@pytest.mark.parametrize("variant", ["hessian", "first_order"])
def test_perfedavg_descends_where_a_step_leads(variant):
    """Parts are of one sample, and some of none."""
    recipe = dataclasses.replace(TRAINING, batch_size=1)
    start, _, server, _ = simulated(METHODS["perfedavg"](recipe, alpha=0.3, variant=variant))
    form = reference.perfedavg(LR, 0.3, variant == "hessian")
    model, _ = expected(form, flat(start[0]), size=3 if variant == "hessian" else 2)
    check_model(server[0], model, rtol=1e-4)


PERSONAL = {  # options, and the reference with the same
    "ditto": ({"lam": 0.7}, reference.ditto(LR, 0.7)),
    "fedrod": ({"gamma": 0.7}, reference.fedrod(LR, 0.7)),
    "pfedme": (
        {"lam": 3.0, "personal_lr": 0.2, "personal_steps": 2, "beta": 1.5},
        reference.pfedme(LR, 1.5, lam=3.0, personal_lr=0.2, steps=2),
    ),
}


@pytest.mark.parametrize("name", PERSONAL)
def test_clients_keep_a_model_or_a_head_that_begins_as_the_first_received(name):
    options, form = PERSONAL[name]
    start, _, server, clients = simulated(METHODS[name](TRAINING, **options))
    model, kept = expected(form, flat(start[0]))
    check_model(server[0], model)
    for i, client in enumerate(clients):
        check_model(client["own" if name == "fedrod" else "params"], kept[i])


def test_apfl_keeps_a_model_and_its_share():
    start, _, server, clients = simulated(METHODS["apfl"](TRAINING, alpha=0.3))
    model, kept = expected(reference.apfl(LR, 0.3), flat(start[0]))
    check_model(server[0], model)
    for i, client in enumerate(clients):
        own, share = kept[i]
        check_model(client["params"], own)
        np.testing.assert_allclose(client["share"], share, rtol=1e-4)


def test_fedamp_pulls_clients_to_models_like_their_own():
    numbers = {"lam": 2.0, "alpha": 0.5, "sigma": 1.2}
    start, _, server, clients = simulated(METHODS["fedamp"](TRAINING, **numbers))
    first = dict.fromkeys(SAMPLES, flat(jax.tree.map(lambda x: x[0], start[0])))
    kept = {i: (i, None) for i in SAMPLES}
    models, kept = expected(reference.fedamp(LR, **numbers), first, kept)
    for i, client in enumerate(clients):
        check_model(client["params"], kept[i][1])
        check_model(jax.tree.map(lambda x, i=i: x[i], server[0]), models[i])


def test_a_server_optimizer_around_a_mean():
    numbers = {"lr": 0.1, "b1": 0.8, "b2": 0.9, "tau": 0.01}
    options = {f"server_{name}": value for name, value in numbers.items()}
    method = method_factory("fedprox+fedyogi")(TRAINING, mu=0.5, **options)
    start, _, server, _ = simulated(method)
    form = reference.optimized(reference.fedprox(LR, 0.5), "fedyogi", **numbers)
    (model, _), _ = expected(form, (flat(start.server[0]), {}))
    check_model(server.server[0], model)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_methods_with_sums_over_all_clients(name):
    kept_as, of_server, options = "control", "control", {}
    if name == "feddyn":
        kept_as, of_server, options = "slope", "drift", {"alpha": 0.2}
    start, _, server, clients = simulated(METHODS[name](TRAINING, **options))
    form = getattr(reference, name)(LR, *options.values())
    first = flat(start[0].params), zeros(start[0].params)
    (model, total), kept = expected(form, first, {i: zeros(start[0].params) for i in SAMPLES})
    check_model(server[0].params, model)
    check_model(getattr(server[0], of_server), total)
    for i, client in enumerate(clients):
        check_model(client[kept_as], kept[i])


def test_fedrep_shares_extractors_and_keeps_heads_apart():
    start, before, server, clients = simulated(METHODS["fedrep"](TRAINING, head_epochs=2))
    kept = {i: flat(client["params"]) for i, client in enumerate(before)}
    base = flat({"base": start[0], "head": before[0]["params"]["head"]})
    base = {name: value for name, value in base.items() if name.startswith("base")}
    shared, kept = expected(reference.fedrep(LR, 2), base, kept)
    head = clients[0]["params"]["head"]
    check_model({"base": server[0], "head": head}, kept[0] | shared)
    for i, client in enumerate(clients):
        check_model(client["params"], kept[i])


@pytest.mark.parametrize("momentum", [1.0, 0.3])
def test_feddbe_keeps_a_bias_and_pulls_to_the_first_mean(momentum):
    method = METHODS["feddbe"](TRAINING, kappa=5.0, momentum=momentum)
    start, _, server, clients = simulated(method)
    first, biases = (flat(start[0].params), None), {i: np.zeros(tiny.K) for i in SAMPLES}
    (model, target), biases = expected(reference.feddbe(LR, 5.0, momentum), first, biases)
    check_model(server[0].params, model)
    np.testing.assert_allclose(server[0].mean, target, rtol=1e-5)
    for i, client in enumerate(clients):
        np.testing.assert_allclose(client["bias"], biases[i], rtol=1e-4, atol=1e-6)
    assert (biases[1] != 0).all()


def test_gpfl_guides_features_by_embeddings_that_all_share():
    def named(part):
        """Shared parameters of the server or of a client, as the reference names them."""
        flattened = {"embeddings": np.asarray(part["embeddings"], np.float64)}
        for name, arrays in part["valve"].items():
            flattened |= {f"{name}_{k}": np.asarray(x, np.float64) for k, x in arrays.items()}
        return flattened

    def whole(part, head):
        return flat({"base": part["base"], "head": head})

    method = METHODS["gpfl"](TRAINING, lam=0.3, mu=0.2)
    start, before, server, clients = simulated(method)
    heads = [client["params"]["head"] for client in before]
    first = named(start[0]) | whole(start[0], heads[0])
    first = {k: v for k, v in first.items() if not k.startswith("head")}
    kept = {}
    for i, head in enumerate(heads):
        flattened = whole(start[0], head)
        kept[i] = {k: v for k, v in flattened.items() if k.startswith("head")}, None
    (shared, _), kept = expected(reference.gpfl(LR, 0.3, 0.2), (first, 0), kept)
    after = named(server[0]) | whole(server[0], heads[0])
    check_model({k: after[k] for k in shared}, shared, rtol=1e-4)
    for i, client in enumerate(clients):
        model = flat(client["params"])
        check_model({k: model[k] for k in kept[i][0]}, kept[i][0], rtol=1e-4)
        np.testing.assert_allclose(client["embeddings"], kept[i][1], rtol=1e-4, atol=1e-6)


def test_fedcp_splits_features_between_two_heads(monkeypatch):
    """With noise that is known, in place of a draw."""

    def noise(size):
        return np.linspace(-1, 1, 3 * 2 * tiny.K).reshape(3, 2, -1)[:size]

    monkeypatch.setattr(jax.random, "gumbel", lambda key, shape: jnp.asarray(noise(3), jnp.float32))

    def named(params):
        policy = {f"policy_{k}": np.asarray(x, np.float64) for k, x in params["policy"].items()}
        return flat(params) | policy

    start, before, server, clients = simulated(METHODS["fedcp"](TRAINING, lam=0.7))
    kept = {i: (None, np.asarray(before[i]["context"], np.float64)) for i in SAMPLES}
    model, kept = expected(reference.fedcp(LR, 0.7, noise), named(start[0]), kept)
    check_model(named(server[0]), model, rtol=1e-4)
    for i, client in enumerate(clients):
        head, _ = kept[i]
        own = flat(client["params"])
        check_model({k: own[k] for k in head}, head, rtol=1e-4)


@pytest.mark.parametrize("rate", [0.01, 2.0])
def test_agnostic_shares_follow_the_losses(rate):
    """With the large rate, clients are left with no share."""
    start, _, server, _ = simulated(METHODS["agnostic"](TRAINING, rate=rate))
    first = flat(start.models[0]), np.full(3, 1 / 3)
    (model, lam), _ = expected(reference.agnostic(LR, rate), first)
    assert (lam.min() == 0) == (rate > 1)
    check_model(server.models[0], model)
    np.testing.assert_allclose(server.shares, lam, rtol=1e-4, atol=1e-6)
