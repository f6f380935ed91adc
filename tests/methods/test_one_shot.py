"""AFL, FedCGS and FedPFT: heads from statistics, against float64 NumPy on the samples themselves."""

import contextlib
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ht.core.bucket import init_variables, own_features
from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.wire import wire_elements
from fedjax_ht.data.client_data import arranged
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.lab.weights.start import with_weights
from fedjax_ht.methods.afl import afl
from fedjax_ht.methods.fedcgs import fedcgs
from fedjax_ht.methods.fedpft import Gaussians, drawing, fedpft, train_head
from fedjax_ht.methods.shared.coded import quantised
from fedjax_ht.methods.shared.one_shot import ABSENT, solve
from fedjax_ht.models import SplitModel, mlp
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.sliced import ConvNet, sliced_model
from fedjax_ht.models.split import DenseHead
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation
from tests import tiny
from tests.federations import each_client, identical, play, to_host
from tests.reference import linear_client
from tests.reference import one_shot as reference
from tests.tiny import DATA, LABELS, TRAINING

CLASSES, CLIENTS, WIDTH = 6, 6, 24
MAKERS = {
    "afl": afl,
    "afl, clients": functools.partial(afl, scale="clients", ridge=0.5),
    "fedcgs": fedcgs,
    "fedcgs, within": functools.partial(fedcgs, covariance="within"),
}
every_head = pytest.mark.parametrize("kind", MAKERS)


@functools.cache
def dataset() -> Dataset:
    """240 images whose left or right half is brighter by class; nobody has the last class."""
    rng = np.random.default_rng(3)
    labels = np.sort(np.arange(240) % (CLASSES - 1)).astype(np.int32)
    images = rng.integers(0, 120, (240, 6, 6, 1)) + 20 * labels[:, None, None, None]
    images[:, :, :3] += 40 * (labels % 2)[:, None, None, None]
    return Dataset("halves", images.astype(np.uint8), labels, tuple("abcdef"))


def of_models(*modules, clients=CLIENTS):
    """A federation of these modules in turn."""
    named = {f"model{i}": module for i, module in enumerate(modules)}
    return make_federation(named, (6, 6, 1), CLASSES, num_clients=clients)


DEFAULT = SimulationOptions()
ONE = of_models(mlp(CLASSES, (WIDTH,)))
TWO = of_models(mlp(CLASSES, (WIDTH,)), mlp(CLASSES, (16, 12)))


def splits() -> dict[str, list[np.ndarray]]:
    """The same samples, split in different ways."""
    rng, labels = np.random.default_rng(0), dataset().labels
    order = rng.permutation(len(labels))
    shares = rng.dirichlet(np.full(CLIENTS, 0.3), CLASSES)
    drawn = np.array([rng.choice(CLIENTS, p=shares[y]) for y in labels])
    return {
        "iid": np.array_split(order, CLIENTS),
        "dirichlet": [np.flatnonzero(drawn == i) for i in range(CLIENTS)],
        "one class a client": [np.flatnonzero(labels == i) for i in range(CLIENTS)],
        "pooled": [order, *[order[:0]] * (CLIENTS - 1)],
    }


def simulated(method, split, federation=ONE, options=DEFAULT):
    nothing = np.zeros(0, int)
    partition = tuple(ClientIndices(rows, nothing, nothing) for rows in split)
    return make_simulation(method, federation, arranged(dataset(), partition, federation), options)


def after(simulation, *rounds):
    """The states from the first one on, and the reports of rounds with these clients."""
    states, reports = [to_host(simulation.init())], []
    for ids in rounds:
        state, report = play(simulation, states[-1], ids)
        states.append(state)
        reports.append(report)
    return states, reports


def features_of(bucket, server, place: int = 0) -> np.ndarray:
    """The features of all samples, in float64."""
    x = dataset().preprocess(dataset().inputs)
    rows = own_features(bucket, server.models[place], x, jnp.ones(len(x), bool))
    return np.asarray(rows, np.float64)


def head_of(server, place: int = 0) -> dict:
    return server.models[place]["params"]["head"]


def expected(kind: str, x, y, *, clients: int = CLIENTS, prior=None) -> dict:
    """The head of pooled samples by the reference."""
    if kind == "afl, clients":
        return reference.afl(x, y, CLASSES, 0.5 * clients)
    if kind == "afl":
        return reference.afl(x, y, CLASSES, reference.share_of_trace(x, 1e-3))
    within = kind == "fedcgs, within"
    return reference.fedcgs(x, y, CLASSES, within=within, shrinkage=1e-3, prior=prior)


def scores(kind: str, head, x) -> np.ndarray:
    """The scores of the classes that are not ruled out; FedCGS's up to a sample's own constant."""
    kernel, bias = (np.asarray(head[name], np.float64) for name in ("kernel", "bias"))
    assert (bias[-1] == ABSENT) and not kernel[:, -1].any()
    rows = (x @ kernel + bias)[:, :-1]
    return rows if kind.startswith("afl") else rows - rows.mean(1, keepdims=True)


EVERYONE = range(CLIENTS)


@every_head
def test_the_head_is_that_of_pooled_data_whatever_the_split(kind):
    """To rounding: float32 sums, of 240 samples here, solved with a condition number near 1e4."""
    method, y = MAKERS[kind](TRAINING), dataset().labels
    servers = {}
    for name, split in splits().items():
        servers[name] = after(simulated(method, split), EVERYONE)[0][-1].server
    x = features_of(ONE.buckets[0], servers["pooled"])
    want = scores(kind, expected(kind, x, y), x)
    for name, server in servers.items():
        got = scores(kind, head_of(server), x)
        error = np.abs(got - want).max() / np.abs(want - want.mean(1, keepdims=True)).max()
        assert error < 1e-4, name
        np.testing.assert_array_equal(got.argmax(1), want.argmax(1), name)
    assert np.mean(want.argmax(1) == y) > 0.7  # and it classifies


@pytest.mark.parametrize("kind", ["afl, clients", "fedcgs, within"])
def test_rounds_add_those_who_were_not_heard(kind):
    """Nobody is counted twice; a round in which all were heard already changes nothing, and says so."""
    method, split = MAKERS[kind](TRAINING), splits()["dirichlet"]
    simulation = simulated(method, split)
    states, reports = after(simulation, [0, 1], [1, 2], [0, 3, 4, 5], EVERYONE)
    _, first, second, third, last = states
    sent = sum(x.size for x in jax.tree.leaves(first.server.kept[0]))
    assert [r.uplink.payload_elements // sent for r in reports] == [2, 1, 3, 0]
    seen = [{name: float(x) for name, x in r.server_metrics.items()} for r in reports]
    assert [metrics["new"] for metrics in seen] == [2, 1, 3, 0]
    assert [metrics["heard"] for metrics in seen] == pytest.approx([1 / 3, 1 / 2, 1, 1])
    line = f"{method.name} has heard from every client; further rounds change nothing"
    assert [method.view.warn(metrics) for metrics in seen] == [None, None, None, line]
    np.testing.assert_array_equal(second.server.heard, [1, 1, 1, 0, 0, 0])
    rows = np.concatenate(split[:3])
    x, y = features_of(ONE.buckets[0], first.server), dataset().labels
    want = expected(kind, x[rows], y[rows], clients=3)
    got = scores(kind, head_of(second.server), x)
    np.testing.assert_allclose(got, scores(kind, want, x), rtol=2e-3, atol=2e-3)
    whole, _ = after(simulation, EVERYONE)
    got, want = (scores(kind, head_of(state.server), x) for state in (third, whole[-1]))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    tiny.check_equal(third.server, last.server)


@pytest.mark.parametrize("kind", ["fedcgs", "fedcgs, within"])
def test_without_two_samples_to_compare_the_nearest_mean_is_predicted(kind):
    """A sample of each class says nothing of the covariance within, nor a single one of any."""
    nothing, number = np.zeros(0, int), 1 if kind == "fedcgs" else CLASSES - 1
    first = [np.flatnonzero(dataset().labels == c)[:1] for c in range(number)]
    simulation = simulated(MAKERS[kind](TRAINING), [np.concatenate(first), *[nothing] * 5])
    server = after(simulation, [0])[0][-1].server
    x, head = features_of(ONE.buckets[0], server), head_of(server)
    assert np.abs(head["kernel"]).max() < 1e3
    nearest = ((x[:, None] - x[np.concatenate(first)]) ** 2).sum(2).argmin(1)
    np.testing.assert_array_equal((x @ head["kernel"] + head["bias"]).argmax(1), nearest)


def test_a_client_without_samples_counts_whenever_it_is_heard():
    """Its ridge is part of the paper's sum."""
    iid = splits()["iid"]
    split = [np.concatenate(iid[:2]), *iid[2:], np.zeros(0, int)]
    simulation = simulated(MAKERS["afl, clients"](TRAINING), split)
    at_once, in_turn = (after(simulation, *r)[0][-1].server for r in ([range(6)], [range(5), [5]]))
    tiny.check_equal(head_of(in_turn), head_of(at_once))


def test_architectures_share_counts_alone():
    """Each has the head of its own clients' samples, with the classes' shares of all."""
    split, y = splits()["iid"], dataset().labels
    states, _ = after(simulated(fedcgs(TRAINING), split, TWO), EVERYONE)
    for place, bucket in enumerate(TWO.buckets):
        rows = np.concatenate([split[i] for i in TWO.members(bucket)])
        x = features_of(bucket, states[-1].server, place)
        prior = np.bincount(y, minlength=CLASSES)
        want = scores("fedcgs", expected("fedcgs", x[rows], y[rows], prior=prior), x)
        got = scores("fedcgs", head_of(states[-1].server, place), x)
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def test_clients_of_an_architecture_have_one_extractor():
    """That of the bucket's weights, or a random one, and no round changes it."""
    given = init_variables(ONE.buckets[0], jax.random.key(9))
    started = with_weights(ONE, {"model0": given}, head=False)
    bases = []
    for federation, seed in ((ONE, 0), (ONE, 1), (started, 0), (started, 1)):
        options = SimulationOptions(seed=seed, scoring=Scoring("trained"))  # keeps the states
        simulation = simulated(afl(TRAINING), splits()["iid"], federation, options)
        states, _ = after(simulation, EVERYONE, EVERYONE)
        first, *others = [c["params"]["base"] for c in each_client(federation, states[-1])]
        for base in (*others, *(s.server.models[0]["params"]["base"] for s in states)):
            tiny.check_equal(base, first)
        bases.append(first)
    assert not identical(bases[0], bases[1])
    for base in bases[2:]:
        tiny.check_equal(base, given["params"]["base"])


def uploaded(method):
    """What a client is sent, its state, its uplink and metrics, and its features."""
    bucket, ctx = tiny.BUCKET, tiny.context(0)
    server = method.init_server(tiny.ONE_BUCKET, jax.random.key(5))
    downlink = method.broadcast(tiny.ONE_BUCKET, bucket, server, ctx)
    client, trained, uplink, metrics = tiny.play(method, method.init_client(bucket, ctx), downlink)
    tiny.check_equal(client, trained)
    x = linear_client.features(tiny.flat_params(client["params"]), tiny.pixels(DATA))
    return downlink, client, uplink, metrics, x


@pytest.mark.parametrize("kind", ["afl", "fedcgs"])
def test_upload_equals_the_reference(kind):
    """The upper triangle of a symmetric matrix crosses the wire, not the matrix."""
    method = MAKERS[kind](TRAINING)
    downlink, client, uplink, metrics, x = uploaded(method)
    second, by_class, counts = reference.moments(x, LABELS, tiny.C)
    np.testing.assert_allclose(uplink.second.values, second, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(uplink.by_class.values, by_class, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["square"], np.mean(np.sum(x * x, 1)), rtol=1e-5)
    size = tiny.K * (tiny.K + 1) // 2 + tiny.C * tiny.K
    if kind == "fedcgs":
        np.testing.assert_array_equal(uplink.counts.values, counts)
        size += tiny.C
    assert int(wire_elements(uplink).payload_elements) == size
    heard = downlink._replace(heard=downlink.heard._replace(value=jnp.array(True)))
    *_, nothing, _ = tiny.play(method, client, heard)
    cost = wire_elements(nothing)
    assert int(cost.payload_elements) == int(cost.metadata_elements) == 0


def test_the_papers_recursion_is_one_solve():
    server, y = afl(TRAINING).init_server(ONE, jax.random.key(0)), dataset().labels
    x = features_of(ONE.buckets[0], server)
    clients = [(x[rows], y[rows]) for rows in splits()["dirichlet"]]
    merged = reference.afl_merged(clients, CLASSES, 0.5)
    at_once = reference.afl(x, y, CLASSES, 0.5 * CLIENTS)["kernel"]
    np.testing.assert_allclose(merged, at_once, atol=1e-9)


def test_a_class_that_nobody_has_is_never_predicted():
    """Its score would be 0, above those of a sample that is like no class."""
    states, _ = after(simulated(afl(TRAINING), splits()["iid"]), EVERYONE)
    head = head_of(states[-1].server)
    x = -features_of(ONE.buckets[0], states[-1].server)
    bare = x @ np.asarray(head["kernel"], np.float64)
    assert (bare.argmax(1) == CLASSES - 1).any()
    assert not ((bare + head["bias"]).argmax(1) == CLASSES - 1).any()


def test_float32_is_as_accurate_as_float64():
    """With dead and with equal features, of which a system without rho is singular."""
    width, rng = 512, np.random.default_rng(512)
    y = rng.integers(0, 10, 2000)
    inputs = rng.normal(size=(10, 40))[y] + 1.5 * rng.normal(size=(2000, 40))
    x = np.maximum(inputs @ rng.normal(size=(40, width)), 0)
    x[:, :3], x[:, 3] = 0, x[:, 4]
    x = x.astype(np.float32)
    second, right = x.T @ x, x.T @ reference.one_hot(y, 10).astype(np.float32)
    got = x @ np.asarray(jax.jit(solve)(second, right, 1e-3))
    wide = x.astype(np.float64)
    rho = reference.share_of_trace(wide, 1e-3)
    want = wide @ reference.afl(wide, y, 10, rho)["kernel"]
    assert np.abs(got - want).max() < 2e-3
    assert np.mean(got.argmax(1) == want.argmax(1)) > 0.999


class Raised(nn.Module):
    """Features whose mean is many times their deviation."""

    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(WIDTH)(x.reshape(len(x), -1))) + 30.0


def test_the_common_part_of_features_costs_no_digits():
    kind = "fedcgs"
    federation, y = of_models(SplitModel(Raised(), Linear(CLASSES))), dataset().labels
    simulation = simulated(MAKERS[kind](TRAINING), splits()["pooled"], federation)
    server = after(simulation, EVERYONE)[0][-1].server
    x, head = features_of(federation.buckets[0], server), head_of(server)
    want = scores(kind, expected(kind, x, y), x)
    wrong = scores(kind, head, x).argmax(1) != want.argmax(1)
    in_float32 = np.float32(x) @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
    assert wrong.mean() < 0.02 and np.mean(in_float32.argmax(1) != want.argmax(1)) < 0.02


def test_sums_of_codes():
    """A head of 8-bit sums classifies as well."""
    servers = []
    for method in (afl(TRAINING), quantised(afl(TRAINING), bits=8)):
        servers.append(after(simulated(method, splits()["iid"]), EVERYONE)[0][-1].server)
    plain, coded = (accuracy(ONE.buckets[0], server) for server in servers)
    assert coded > plain - 0.1


@pytest.mark.parametrize("method", [afl(TRAINING), fedcgs(TRAINING), fedpft(TRAINING)])
def test_statistics_of_a_client_count_together(method):
    """A defence may drop one part of an upload and keep the others. The client sends again."""
    _, _, uplink, *_ = uploaded(method)
    first = uplink[0]._replace(mask=np.zeros_like(uplink[0].mask))
    partly = uplink._replace(**{uplink._fields[0]: first})
    federation = tiny.ONE_BUCKET
    server = method.init_server(federation, jax.random.key(5))

    def kept(uploads):
        received = tiny.receive(uploads, {federation.buckets[0].name: [0, 1]})
        after, _ = method.server_update(federation, server, received, tiny.context())
        return after.kept, after.heard

    tiny.check_equal(kept({0: uplink, 1: partly}), kept({0: uplink}))


def test_negative_eigenvalues_count_as_zero():
    """Sums that were coded, or have noise, are no second moments any more."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    right = rng.normal(size=(5, 2))
    values = np.array([3.0, 1.0, 0.5, -0.49, -2.0])
    got = solve(*map(jnp.float32, ((basis * values) @ basis.T, right)), 1e-1)
    kept = np.maximum(values, 0)
    want = (basis / (kept + 0.1 * kept.mean())) @ basis.T @ right
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_only_linear_heads():
    deep = {"deep": SplitModel(tiny.Flat(3), DenseHead((4,), 4))}
    line = (
        "^afl computes one linear layer with a bias, but the head of 'deep' is made of fc1, fc2; "
    )
    with pytest.raises(ValueError, match=line):
        afl(TRAINING).check(make_federation(deep, (2, 2, 1), 4, num_clients=2))
    fedcgs(TRAINING).check(TWO)  # widths may differ


@pytest.mark.parametrize(("norm", "fits"), [("static_batch", False), ("batch", True)])
def test_features_are_those_of_single_samples(norm, fits):
    module = sliced_model(ConvNet((4,), norm=norm), 4)
    federation = make_federation({"convs": module}, (8, 8, 1), 4, num_clients=2)
    refused = pytest.raises(ValueError, match=r"^afl sums .* 'static_batch'$")
    with contextlib.nullcontext() if fits else refused:
        afl(TRAINING).check(federation)


def test_the_recipe_changes_nothing():
    recipe = LocalTraining(optax.adam(1.0), batch_size=2, epochs=5)
    simulations = [simulated(fedcgs(t), splits()["iid"]) for t in (TRAINING, recipe)]
    states = [after(simulation, EVERYONE)[0] for simulation in simulations]
    tiny.check_equal(states[0][-1].server, states[1][-1].server)


LEARNT = functools.partial(fedpft, TRAINING, server_lr=0.01, server_batch_size=16)


def accuracy(bucket, server, place: int = 0) -> float:
    """The accuracy of a bucket's head on all samples."""
    x, head = features_of(bucket, server, place), head_of(server, place)
    return np.mean((x @ head["kernel"] + head["bias"]).argmax(1) == dataset().labels)


@pytest.mark.parametrize("covariance", ["spherical", "diagonal"])
def test_gaussians_equal_the_reference(covariance):
    *_, uplink, metrics, x = uploaded(LEARNT(covariance=covariance))
    rows = reference.gaussians(x, LABELS, tiny.C, diagonal=covariance == "diagonal")
    counts = uplink.counts.value
    np.testing.assert_array_equal(uplink.rows.mask, [c in rows for c in range(tiny.C)])
    np.testing.assert_array_equal(counts.mask, uplink.rows.mask)
    for c, (row, number) in rows.items():
        np.testing.assert_allclose(uplink.rows.values[c], row, rtol=1e-5, atol=1e-7)
        assert counts.values[c] == number
    spread = sum(number * row[tiny.K :].mean() for row, number in rows.values()) / len(LABELS)
    np.testing.assert_allclose(metrics["variance"], spread, rtol=1e-4, atol=2e-6)


def test_a_head_is_trained_as_by_the_reference():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(7, 4, 5)).astype(np.float32), rng.integers(0, 3, (7, 4))
    head = {"kernel": rng.normal(size=(5, 3)).astype(np.float32), "bias": np.zeros(3, np.float32)}
    features, labels = jnp.asarray(x), jnp.asarray(y)
    optimizer = optax.adamw(0.1, weight_decay=0.01)
    got = train_head(optimizer, lambda i, key: (features[i], labels[i]), head, 7, jax.random.key(0))
    kernel, bias = reference.adamw_head(head["kernel"], head["bias"], zip(x, y), 0.1)
    np.testing.assert_allclose(got["kernel"], kernel, atol=2e-5)
    np.testing.assert_allclose(got["bias"], bias, atol=2e-5)


def test_features_are_drawn_from_the_gaussians():
    """Two clients and three classes; each lacks one."""
    rows = np.zeros((2, 3, 4), np.float32)
    rows[..., :2] = 10 * np.arange(6).reshape(2, 3, 1)
    rows[..., 2:] = [0.25, 4]
    counts = np.array([[1, 0, 2], [0, 3, 4]], np.float32)
    draw = drawing(Gaussians(jnp.asarray(rows), jnp.asarray(counts)), 2, 40_000)
    x, y = draw(0, jax.random.key(3))
    pairs = np.rint(np.asarray(x).mean(1) / 10).astype(int)
    np.testing.assert_array_equal(pairs % 3, y)
    np.testing.assert_allclose(np.bincount(pairs, minlength=6), 4000 * counts.ravel(), atol=400)
    rest = np.asarray(x) - 10 * pairs[:, None]
    np.testing.assert_allclose(rest.mean(0), 0, atol=0.05)
    np.testing.assert_allclose(rest.var(0), [0.25, 4], rtol=0.05)
    assert abs(np.corrcoef(rest.T)[0, 1]) < 0.03


@pytest.mark.parametrize("split", ["dirichlet", "one class a client"])
def test_a_head_of_drawn_features_classifies(split):
    """About as well as the one that FedCGS computes, which has 85 %."""
    states, _ = after(simulated(LEARNT(), splits()[split]), EVERYONE)
    assert accuracy(ONE.buckets[0], states[-1].server) > 0.8


def test_gaussians_are_kept_until_all_were_heard():
    simulation = simulated(LEARNT(), splits()["dirichlet"])
    states, reports = after(simulation, [0, 1], [1, 2], [0, 3, 4, 5], EVERYONE)
    classes = [len(set(dataset().labels[rows])) for rows in splits()["dirichlet"]]
    sent = [sum(classes[i] for i in ids) * (WIDTH + 1) for ids in ([0, 1], [2], [3, 4, 5], [])]
    assert [r.uplink.payload_elements for r in reports] == sent
    tiny.check_equal(states[-1].server, states[-2].server)
    whole, _ = after(simulation, EVERYONE)
    tiny.check_equal(states[-1].server.kept, whole[-1].server.kept)


def test_gaussians_of_an_architecture_are_its_clients():
    split = splits()["iid"]
    states, _ = after(simulated(LEARNT(), split, TWO), EVERYONE)
    for place, (bucket, kept) in enumerate(zip(TWO.buckets, states[-1].server.kept)):
        numbers = [
            np.bincount(dataset().labels[split[i]], minlength=6) for i in TWO.members(bucket)
        ]
        np.testing.assert_array_equal(kept.counts, numbers)
        assert kept.rows.shape == (3, CLASSES, bucket.feature_dim + 1)
        assert accuracy(bucket, states[-1].server, place) > 0.5
