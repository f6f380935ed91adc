"""Servers of low-rank adapters beside NumPy, and what each leaves its clients."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.core.bucket import with_frozen
from fedjax_ht.core.context import Context
from fedjax_ht.core.method import Method
from fedjax_ht.core.programs import equations
from fedjax_ht.core.wire import FIRST_ROWS, Masked, Metadata
from fedjax_ht.methods.flexlora import mean_product
from fedjax_ht.methods.hetlora import rank_of, sent_rows, tail_norms
from fedjax_ht.methods.shared import adapters
from fedjax_ht.methods.shared.adapters import AdapterUplink
from fedjax_ht.models import SplitModel, lora
from fedjax_ht.models.adapters import A, B
from fedjax_ht.models.layers import Linear
from fedjax_ht.simulation.simulation import make_simulation
from fedjax_ht.trust.defences import defended, multi_krum
from tests import tiny
from tests.federations import (
    adapted_federation,
    each_client,
    federation_data,
    federation_for,
    play,
    to_host,
)
from tests.methods import recording
from tests.reference import adapters as reference
from tests.tiny import Flat

RANKS, SAMPLES, INPUTS, OUTPUTS = (4, 2, 1), (10, 20, 30), 7, 5
TRAINING = fl.LocalTraining(optax.sgd(0.1), batch_size=4)


def linear_federation(alpha: float | None = 16.0, ranks=RANKS) -> fl.Federation:
    """A client of each rank on one linear extractor."""
    extractor = SplitModel(Flat(OUTPUTS), Linear(3))
    modules = {f"rank{rank}": lora(extractor, rank, alpha=alpha) for rank in ranks}
    return fl.make_federation(modules, (INPUTS, 1, 1), 3, num_clients=len(ranks))


def random_clients(alpha: float | None) -> list[reference.Client]:
    rng, clients = np.random.default_rng(0), []
    for rank, samples in zip(RANKS, SAMPLES):
        a, b = rng.normal(size=(rank, INPUTS)), rng.normal(size=(OUTPUTS, rank))
        scale = 2.0 if alpha is None else alpha / rank
        clients.append(reference.Client(a.astype(np.float32), b.astype(np.float32), samples, scale))
    return clients


def uploads(federation, clients, names=("lora_a", "lora_b"), wrap=lambda rows: rows):
    """The clients' uplinks, each in its bucket beside one that did not arrive."""
    uplinks = {}
    for i, client in enumerate(clients):
        pair = {"lora_a": client.a, "lora_b": client.b.T}
        rows = wrap({"fc": {name: pair[name] for name in names}})
        head = {"kernel": np.full((OUTPUTS, 3), i, np.float32), "bias": np.zeros(3, np.float32)}
        uplinks[i] = AdapterUplink(rows, head, Metadata(np.int32(client.samples)))
    order = {bucket.name: [i, 99] for i, bucket in enumerate(federation.buckets)}
    return tiny.receive(uplinks, order, enumerate(SAMPLES))


def served(method: Method, federation, received, rounds: int = 1):
    """The server's state before the first round and after some with the same uploads."""

    @jax.jit
    def serve(state, received, key, round):
        ctx = Context(key, round, None, shared_key=key)
        return method.server_update(federation, state, received, ctx)[0]

    states = [jax.jit(functools.partial(method.init_server, federation))(jax.random.key(3))]
    for round in range(rounds):
        states.append(serve(states[-1], received, jax.random.key(round), np.int32(round)))
    return states


def downlinks(method: Method, federation, server) -> list:
    """What each client is sent."""

    @jax.jit
    def send(server):
        messages = []
        for i, bucket in enumerate(federation.buckets):
            ctx = tiny.context(i, round=1, last_round=0)._replace(shared_key=jax.random.key(2))
            messages.append(method.broadcast(federation, bucket, server, ctx))
        return messages

    return send(server)


def pair_of(rows) -> tuple[np.ndarray, np.ndarray]:
    """A and B of the one layer."""
    (pair,) = adapters.pairs_of(rows)
    return np.asarray(pair["lora_a"]), np.asarray(pair["lora_b"]).T


@pytest.mark.parametrize("alpha", [16.0, None])
@pytest.mark.parametrize("name", ["flexlora", "raflora"])
def test_flexlora_and_raflora_cut_a_mean_product(name, alpha):
    products = {"flexlora": reference.mean_product, "raflora": reference.holders_product}
    federation, clients = linear_federation(alpha), random_clients(alpha)
    method = fl.METHODS[name](TRAINING)
    _, server = served(method, federation, uploads(federation, clients))
    sent = downlinks(method, federation, server)
    for i, (client, down) in enumerate(zip(clients, sent)):
        a, b = pair_of(down.rows)
        rank = RANKS[i]
        assert a.shape == (rank, INPUTS) and b.shape == (OUTPUTS, rank)
        expected = reference.flexlora(clients, rank, products[name])
        np.testing.assert_allclose(client.scale * b @ a, expected, rtol=0, atol=1e-4)
        # Singular values are all in B.
        np.testing.assert_allclose(a @ a.T, np.eye(rank), rtol=0, atol=1e-5)
        np.testing.assert_allclose(down.head["kernel"], (0 * 10 + 1 * 20 + 2 * 30) / 60, rtol=1e-6)


def test_flexlora_decomposes_blocks_one_after_another():
    """Stacks of large decompositions may never end on CPU."""
    rng, weights = np.random.default_rng(0), np.float32([1, 2, 3])

    def pairs(*lead):
        shapes = {A: (*lead, 2, 3, INPUTS), B: (*lead, 2, 3, OUTPUTS)}
        return {"blocks": {k: rng.normal(size=v).astype(np.float32) for k, v in shapes.items()}}

    rows, old = pairs(3), pairs()
    program = jax.make_jaxpr(mean_product)(rows, weights, old)
    sizes = [e.invars[0].aval.ndim for e in equations(program) if e.primitive.name in ("qr", "svd")]
    assert sizes == [2, 2, 2]
    last_rows, last_old = (jax.tree.map(lambda x: x[..., -1, :], each) for each in (rows, old))
    together, alone = (
        jax.jit(mean_product)(x, weights, y) for x, y in ((rows, old), (last_rows, last_old))
    )
    chex.assert_trees_all_close(jax.tree.map(lambda x: x[..., -1, :], together), alone, rtol=1e-5)


def test_flexlora_keeps_rows_without_a_component():
    """Where the client of rank 1 alone arrives, other rows of A stay, and their B is zero."""
    federation, clients = linear_federation(), random_clients(16.0)
    method, received = fl.flexlora(TRAINING), uploads(federation, clients)
    for name in ("rank4", "rank2"):
        received[name] = received[name]._replace(arrived=np.zeros(2, bool))
    before, after = served(method, federation, received)
    old, _ = pair_of(before[0].rows)
    a, b = pair_of(after[0].rows)
    np.testing.assert_array_equal(a[1:], old[1:])
    assert not b[:, 1:].any() and b[:, 0].any()


@pytest.mark.parametrize("alpha, weighting", [(16.0, "norms"), (None, "samples")])
def test_hetlora_pads_and_weighs(alpha, weighting):
    federation, clients = linear_federation(alpha), random_clients(alpha)
    method = fl.hetlora(TRAINING, prune=False, weighting=weighting)
    _, server = served(method, federation, uploads(federation, clients))
    sent = downlinks(method, federation, server)
    for client, rank, down in zip(clients, RANKS, sent):
        expected = reference.hetlora(clients, rank, client.scale, weighting == "norms")
        for value, expected_value in zip(pair_of(down.rows), expected):
            np.testing.assert_allclose(value, expected_value, rtol=0, atol=1e-5)


def test_hetlora_remembers_pruned_ranks():
    """The server sends as many rows as a client has sent last, and takes as many for its mean."""
    federation, clients = linear_federation(), random_clients(16.0)
    method, kept = fl.hetlora(TRAINING), (3, 2, 1)

    def cut(rows):
        count = min(len(rows["fc"]["lora_a"]), kept[0])
        mask = np.arange(len(rows["fc"]["lora_a"])) < count
        return jax.tree.map(lambda x: Masked(x, mask, FIRST_ROWS), rows)

    _, server = served(method, federation, uploads(federation, clients, wrap=cut))
    assert server.ranks.tolist() == list(kept)
    pruned = [clients[0]._replace(a=clients[0].a[:3], b=clients[0].b[:, :3]), *clients[1:]]
    expected, _ = reference.hetlora(pruned, 3, 1.0)
    # The scale is that of the rank that the client began with.
    down = downlinks(method, federation, server)[0]
    assert int(rank_of(down.rows)) == 3
    a = np.asarray(down.rows["fc"]["lora_a"].values)[:3]
    np.testing.assert_allclose(a * np.sqrt(clients[0].scale), expected, rtol=0, atol=1e-5)


def test_hetlora_keeps_ranks_whose_rows_a_defence_drops():
    """Or clients would lose the rows for good, and all of them if none is left."""
    federation, clients = linear_federation(), random_clients(16.0)
    wrapped = functools.partial(sent_rows, rank=np.int32(4))
    received = uploads(federation, clients, wrap=wrapped)
    method = defended(fl.hetlora(TRAINING), [multi_krum(0.2)])
    assert served(method, federation, received)[-1].ranks.tolist() == list(RANKS)


def test_hetlora_regulariser():
    """The regulariser is the product of norms of the last rows; its gradient is zero where B is."""
    client = random_clients(16.0)[0]
    rows = {"fc": {"lora_a": client.a, "lora_b": client.b.T}}
    tail = jax.jit(jax.value_and_grad(functools.partial(tail_norms, first=np.int32(2))))
    value, gradient = jax.device_get(tail(rows))
    np.testing.assert_allclose(value, reference.tail(client.a, client.b, 0.5), rtol=1e-5)
    slope = np.linalg.norm(client.b[:, 2:]) / np.linalg.norm(client.a[2:])
    np.testing.assert_allclose(gradient["fc"]["lora_a"][2:], slope * client.a[2:], rtol=1e-5)
    assert not gradient["fc"]["lora_a"][:2].any()
    _, zero = tail(adapters.scaled(rows, 0.0, ("lora_b",)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(zero))


def test_hetlora_prunes_where_the_tail_falls():
    """A strong pull on the last rows shrinks them, and clients of rank 3 go on with 2."""
    federation = adapted_federation()
    method = fl.hetlora(TRAINING, lam=10.0, gamma=0.7)
    simulation = make_simulation(method, federation, federation_data(federation))
    state = to_host(simulation.init())
    ranks = [np.asarray(state.server.ranks)]
    for round in range(3):
        state, report = play(simulation, state, [0, 4], round=round)
        ranks.append(np.asarray(state.server.ranks))
        sent = ranks[-1][[0, 4]].sum() * (16 + 6 + 6 + 8) + 2 * 45
        assert report.uplink.payload_elements == sent
    # At the start B is zero, and nothing can fall.
    np.testing.assert_array_equal(ranks[0], ranks[1])
    assert ranks[-1][0] == 1 and ranks[-1][4] < 3
    np.testing.assert_array_equal(np.delete(ranks[-1], [0, 4]), np.delete(ranks[0], [0, 4]))


def test_flora_stacks_and_merges():
    federation, clients = linear_federation(), random_clients(16.0)
    method, product = fl.flora(TRAINING), reference.mean_product(clients)
    first, once, twice = served(method, federation, uploads(federation, clients), rounds=2)
    shares = reference.shares(clients)
    a = np.concatenate([p * c.scale * c.a for p, c in zip(shares, clients)])
    b = np.concatenate([c.b for c in clients], axis=1)
    down = downlinks(method, federation, once)[0]
    sent = down.rows["fc"]["lora_a"].mask
    assert sent.all() and len(sent) == sum(RANKS)
    np.testing.assert_allclose(down.rows["fc"]["lora_a"].values, a, rtol=0, atol=1e-6)
    np.testing.assert_allclose(down.rows["fc"]["lora_b"].values, b.T, rtol=0, atol=1e-6)
    np.testing.assert_allclose(once.stacks[0].total["fc"].T, product, rtol=0, atol=1e-5)
    np.testing.assert_allclose(twice.stacks[0].total["fc"].T, 2 * product, rtol=0, atol=1e-5)
    assert not downlinks(method, federation, first)[0].rows["fc"]["lora_a"].mask.any()


@pytest.mark.parametrize("name", ["flora"])  # beside the contract's tests of it
def test_flora_clients_merge_each_stack_once(name):
    """Whoever is reached has the server's sum: with the last stack, with a stack that comes again
    since the upload was lost, and with the sum itself where stacks were missed."""
    federation, simulation = federation_for(name), recording.simulation(name)
    state = to_host(simulation.init())
    rounds = [([0, 4], []), ([0, 4], [4]), ([0, 1, 4], []), ([5, 4], [])]
    for round, (ids, dropped) in enumerate(rounds):
        total = state.server.stacks[0].total
        state, _ = play(simulation, state, ids, dropped, round)
        clients = each_client(federation, state)
        for i in ids:
            chex.assert_trees_all_close(clients[i]["total"], total, rtol=0, atol=1e-6)


def test_flora_trains_on_the_merged_extractor():
    """The sum counts in what a client predicts, and its adapters begin anew."""
    bucket = with_frozen(linear_federation().buckets[0])
    method = fl.flora(TRAINING)
    ctx = Context(jax.random.key(0), jnp.int32(0), None)
    client = jax.jit(lambda ctx: method.init_client(bucket, ctx))(ctx)
    x, mask = np.ones((2, INPUTS, 1, 1), np.float32), np.ones(2, bool)
    predict = jax.jit(lambda client: method.predict(bucket, client, (), x, mask)["head"])
    total = {"fc": np.ones((INPUTS, OUTPUTS), np.float32)}
    plain, moved = predict(client), predict(client | {"total": total})
    kernel = np.asarray(client["params"]["head"]["kernel"])
    expected = plain + (INPUTS * np.ones((2, OUTPUTS))) @ kernel
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-5)
    module, variables = adapters.plain_model(bucket, client | {"total": total})  # for an export
    np.testing.assert_allclose(module.apply(variables, x), moved, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name, side", [("ffa_lora", "lora_b"), ("fedsa_lora", "lora_a")])
def test_one_side_is_averaged_over_its_holders(name, side):
    federation, clients = linear_federation(), random_clients(16.0)
    method = fl.method_factory(name)(TRAINING)
    received = uploads(federation, clients, names=(side,))
    _, server = served(method, federation, received)
    expected = reference.by_holders(clients, "b" if side == "lora_b" else "a")
    sent = downlinks(method, federation, server)
    for i, (client, down) in enumerate(zip(clients, sent)):
        if name == "ffa_lora":
            value, expected_value = down.model.rows["fc"][side], expected[: RANKS[i]] / client.scale
        else:
            value, expected_value = down["fc"][side], expected[: RANKS[i]]
        np.testing.assert_allclose(value, expected_value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["ffa_lora"])
def test_ffa_lora_gives_all_clients_one_a(name):
    """Rank r has the first r rows of it, and training leaves it as it is."""
    federation, simulation = federation_for(name), recording.simulation(name)
    state, _ = play(simulation, simulation.init(), range(federation.num_clients))
    clients = each_client(federation, state)
    sides = [np.asarray(client["params"]["base"]["fc1"]["lora_a"]) for client in clients]
    longest = max(sides, key=len)
    for side in sides:
        np.testing.assert_array_equal(side, longest[: len(side)])
    assert {len(side) for side in sides} == {2, 3}
