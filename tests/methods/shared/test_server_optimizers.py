"""Server optimisers: steps against NumPy, entries that nobody changed, the methods that take them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.method import Method
from fedjax_ht.lab.config.entries import parse_entry
from fedjax_ht.methods import LIBRARY, method_factory
from fedjax_ht.methods.registry import MEANS, OPTIMIZERS
from fedjax_ht.methods.shared.checking import check_method
from fedjax_ht.methods.shared.server_optimizers import FACTORIES, server_optimizer
from fedjax_ht.simulation.simulation import make_simulation
from tests.federations import TRAINING, federation_data, federation_for, play, to_host
from tests.reference import server_optimizers as reference
from tests.standard import method_of

W = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)


def deltas(rounds: int = 4) -> list[np.ndarray]:
    """Changes of a round: large and small ones, and entries that change in some rounds or never."""
    rng = np.random.default_rng(1)
    made = []
    for i in range(rounds):
        delta = rng.normal(size=W.shape) * [1.0, 1e-3]
        delta[0] = 0
        delta[1] *= i % 2
        made.append(delta.astype(np.float32))
    return made


def adding(server=None) -> Method:
    """A method whose server's mean is its parameters and what a round "receives"."""

    def server_update(federation, server, received, ctx):
        return jax.tree.map(jnp.add, server, received), {}

    return Method(
        name="adding",
        training=TRAINING,
        init_server=lambda federation, key: {"w": jnp.asarray(W)} if server is None else server,
        client_update=lambda bucket, client, downlink, data, ctx: (client, (), {}),
        server_update=server_update,
    )


def after(method: Method, changes) -> np.ndarray:
    server = method.init_server(None, None)
    for change in changes:
        server, _ = method.server_update(None, server, {"w": jnp.asarray(change)}, None)
    return np.asarray(server.server["w"])


NUMBERS = {"server_lr": 0.05, "server_b1": 0.8, "server_b2": 0.95, "server_tau": 0.01}
CASES = [
    ("fedavgm", {"server_lr": 0.5, "server_momentum": 0.7}),
    ("fedadagrad", {"server_lr": 0.05, "server_tau": 0.01}),
    ("fedadam", NUMBERS),
    ("fedyogi", NUMBERS),
    ("fedadam", NUMBERS | {"server_v0": 0.0}),
    ("fedyogi", NUMBERS | {"server_v0": 0.3}),
]


@pytest.mark.parametrize("name, options", CASES)
def test_steps(name, options):
    """Also of entries that no client of a round changed: they stay, with m and v."""
    numbers = {key.removeprefix("server_"): value for key, value in options.items()}
    if name == "fedadagrad":
        numbers |= {"b1": 0.0, "b2": 0.0}
    want = reference.play(name, W, deltas(), **numbers)
    got = after(server_optimizer(adding(), name, **options), deltas())
    np.testing.assert_allclose(got, want, rtol=2e-5)
    np.testing.assert_array_equal(got[0], W[0])


def test_bias_correction():
    """Where every entry changes in every round; the count of steps is of the server."""
    changes = [delta + np.float32(0.1) for delta in deltas()]
    for name in ("fedadam", "fedyogi"):
        method = server_optimizer(adding(), name, **NUMBERS, bias_correction=True)
        numbers = {key.removeprefix("server_"): value for key, value in NUMBERS.items()}
        want = reference.play(name, W, changes, **numbers, bias_correction=True)
        np.testing.assert_allclose(after(method, changes), want, rtol=2e-5)


def test_optax_with_momentum_moves_no_entry_that_nobody_changed():
    got = after(server_optimizer(adding(), optax.yogi(0.1)), deltas())
    np.testing.assert_array_equal(got[0], W[0])
    assert (got[1:] != W[1:]).all()


def test_nothing_changes_in_a_round_without_changes():
    method = server_optimizer(adding(), "fedadam")
    server = method.init_server(None, None)
    server, _ = method.server_update(None, server, {"w": jnp.ones((3, 2))}, None)
    still, _ = method.server_update(None, server, {"w": jnp.zeros((3, 2))}, None)
    jax.tree.map(np.testing.assert_array_equal, still, server)


@pytest.mark.parametrize(
    "name", [n if n == "heterofl" else pytest.param(n, marks=pytest.mark.slow) for n in MEANS]
)
def test_sgd_of_rate_1_is_the_method_itself(name):
    """Up to rounding, and for every method that is said to average: w - (w - mean) is the mean."""
    federation = federation_for(name)
    data, plain = federation_data(federation), method_of(name)
    made = [plain, server_optimizer(plain, optax.sgd(1.0))]
    plain_sim, sim = (make_simulation(method, federation, data) for method in made)
    states = []
    for simulation in (plain_sim, sim):
        state = simulation.init()
        for ids in ([0, 4, 5], [1, 6]):
            state, _ = play(simulation, to_host(state), ids)
        states.append(to_host(state))
    found = states[1].server.server, states[1].clients
    chex.assert_trees_all_close(found, (states[0].server, states[0].clients), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg+fedadam", "fedper+fedyogi"])
def test_contract(name):
    federation = federation_for(name.partition("+")[0])
    check_method(method_factory(name)(TRAINING), federation)


@pytest.mark.parametrize("base", MEANS)
def test_names_have_the_options_of_both(base):
    """No option of a base has the name of an optimiser's."""
    plain = parse_entry(base).options
    for optimizer in OPTIMIZERS:
        both = parse_entry(f"{base}+{optimizer}:server_lr=0.03").options
        assert plain.items() <= both.items()
        assert both["server_lr"] == 0.03
        assert "server_lr" not in plain and "bias_correction" not in plain
    assert set(FACTORIES) == set(OPTIMIZERS) and base in LIBRARY


def test_options_reach_base_and_optimizer():
    made = method_factory("moon+fedadam")(TRAINING, tau=0.3, server_lr=0.03)
    assert made.name == "moon+fedadam"
    with pytest.raises(ValueError, match=r"^server_tau is 0\.0; it must be a number above 0$"):
        method_factory("moon+fedadam")(TRAINING, server_tau=0.0)
    with pytest.raises(TypeError, match="no option 'server_ta'; did you mean 'server_tau'"):
        method_factory("moon+fedadam")(TRAINING, server_ta=0.1)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedproto", "fedbuff"])
def test_other_servers_are_refused(name):
    message = f"^the server of {name} does not only average parameters; .* fedavg, .*$"
    with pytest.raises(ValueError, match=message):
        server_optimizer(method_of(name), "fedadam")
    with pytest.raises(ValueError, match=message):
        method_factory(f"{name}+fedadam")


def test_own_methods_whose_server_counts_are_refused():
    method = server_optimizer(adding({"w": jnp.zeros(2), "rounds": jnp.int32(0)}), "fedadam")
    message = r"^the server of adding does not only average parameters"
    with pytest.raises(ValueError, match=message):
        method.check(federation_for("fedavg"))
    server_optimizer(adding(), "fedadam").check(federation_for("fedavg"))


def test_optimizers_are_refused():
    with pytest.raises(ValueError, match="'fedadm'; did you mean 'fedadam'"):
        server_optimizer(adding(), "fedadm")
    with pytest.raises(ValueError, match=r"^options are server_lr, but an optax optimizer"):
        server_optimizer(adding(), optax.sgd(1.0), server_lr=0.1)
    with pytest.raises(ValueError, match=r"^optimizer is .*; it must be an optax optimizer"):
        server_optimizer(adding(), optax.adam)
