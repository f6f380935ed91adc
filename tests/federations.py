"""A tiny federation with every awkward client in it, and how tests steer and compare its rounds.

Eight clients, five classes, 4x4 grey images. Client 2 fills no batch, client 3 has no training
sample, client 6 has no test sample, and nobody trains on class 4.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from unittest import mock

import flax.linen as nn
import jax
import numpy as np
import optax

from fedjax_ht.core.bucket import init_variables
from fedjax_ht.core.federation import Federation, make_federation, make_sliced_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.mesh import client_mesh, collect, scatter
from fedjax_ht.core.samples import Split
from fedjax_ht.data.client_data import FederationData, arranged
from fedjax_ht.data.dataset import ClientIndices, Dataset, Partition
from fedjax_ht.methods.shared.checking import filled
from fedjax_ht.models import SplitModel, lora, mlp, note_stage
from fedjax_ht.models.layers import Linear, Norm, NormKind
from fedjax_ht.models.sliced import Channels, sliced_model, sliced_width
from fedjax_ht.simulation import round as rounds
from fedjax_ht.simulation.report import RoundReport
from fedjax_ht.simulation.simulation import Simulation, SimulationState

SHAPE, NUM_CLASSES, FEATURE_DIM, BATCH_SIZE = (4, 4, 1), 5, 8, 4
TRAIN_COUNTS = np.array(  # client, class -> training samples
    [
        [6, 5, 0, 0, 0],
        [0, 3, 4, 2, 0],
        [3, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 5, 4, 0],
        [4, 4, 4, 4, 0],
        [0, 0, 0, 8, 0],
        [2, 0, 3, 0, 0],
    ]
)
NUM_CLIENTS = len(TRAIN_COUNTS)
CLASSES = [set(np.flatnonzero(row)) for row in TRAIN_COUNTS]  # of each client's training samples
TEST_COUNTS = np.where(np.arange(NUM_CLIENTS) == 6, 0, 3)
ASSIGNMENT = ("narrow", "narrow", "narrow", "narrow", "wide", "narrow", "wide", "wide")
MODULES = {"narrow": mlp(NUM_CLASSES, (FEATURE_DIM,)), "wide": mlp(NUM_CLASSES, (6, FEATURE_DIM))}
TRAINING = LocalTraining(optax.sgd(0.1), batch_size=BATCH_SIZE)
# width rates of a sliced federation
RATES = tuple(0.5 if name == "narrow" else 1.0 for name in ASSIGNMENT)
ONE_ARCHITECTURE = {"fedavg"}  # methods that run on no other federation
ON_PUBLIC_SET = {"fedmd", "dsfl", "ktpfl", "fedhenn"}  # methods that read the public set
ADAPTERS = {"fedit", "hetlora", "flexlora", "flora", "raflora", "ffa_lora", "fedsa_lora"}
RANKS = {"narrow": 2, "wide": 3}  # of adapters of the wide model, by the client's architecture
# methods for slices of one network
SLICES = {"heterofl", "feddropout", "fedrolex", "fedspu", "fjord", "dense", "fedftg", "dfrd"}

IN_STAGES = {"depthfl"}  # methods for the first stages of one network

COMPOSED = ("fedrolex+dfrd", "feddropout+fedftg", "heterofl+dense", "heterofl+dfrd")


@functools.cache
def samples() -> tuple[Dataset, Partition]:
    """The images, brighter from class to class, and who holds which; the last ten are public."""
    rng = np.random.default_rng(0)
    labels, partition = [], []

    def take(new) -> np.ndarray:
        labels.extend(new)
        return np.arange(len(labels) - len(new), len(labels))

    for client, counts in enumerate(TRAIN_COUNTS):
        train = take(rng.permutation(np.repeat(np.arange(NUM_CLASSES), counts)))
        test = take(rng.integers(0, NUM_CLASSES, TEST_COUNTS[client]))
        partition.append(ClientIndices(train, np.array([], int), test))
    take(rng.integers(0, NUM_CLASSES, 10))
    y = np.array(labels, np.int32)
    x = rng.integers(0, 80, (len(y), *SHAPE)) + 40 * y[:, None, None, None]
    public = np.arange(len(y) - 10, len(y))
    dataset = Dataset("toy", x.astype(np.uint8), y, tuple("abcde"), public=public)
    return dataset, tuple(partition)


def two_architectures(modules: dict[str, nn.Module], reverse: bool = False) -> Federation:
    """Modules "narrow" and "wide", in this order or the other; every client keeps its own.

    The names change places too: where buckets are a dict's entries, jit sorts them by name.
    """
    names = dict(zip(modules, reversed(modules) if reverse else modules))
    renamed = {name: modules[names[name]] for name in modules}
    assignment = [names[name] for name in ASSIGNMENT]
    return make_federation(renamed, SHAPE, NUM_CLASSES, assignment=assignment)


def mixed_federation(reverse: bool = False) -> Federation:
    """Two architectures with features of one width."""
    return two_architectures(MODULES, reverse)


def uniform_federation() -> Federation:
    """One architecture."""
    return make_federation(
        {"narrow": MODULES["narrow"]}, SHAPE, NUM_CLASSES, num_clients=NUM_CLIENTS
    )


def adapted_federation(reverse: bool = False) -> Federation:
    """Adapters of two ranks on the wide model."""
    modules = {name: lora(MODULES["wide"], rank) for name, rank in RANKS.items()}
    return two_architectures(modules, reverse)


class SlicedDense(nn.Module):
    """[linear, ReLU] per entry of `widths` on the flattened image: a sliceable network."""

    widths: tuple[int, ...]
    rate: float = 1.0

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.widths, 1):
            x = nn.relu(Linear(sliced_width(width, self.rate), name=f"fc{i}")(x))
        return x

    @nn.nowrap
    def channels(self, per_layer=False):
        groups = [f"fc{i}" for i in range(1, len(self.widths) + 1)]
        return Channels(
            dict(zip(groups, self.widths)),
            dict(zip(groups, zip([None, *groups], groups))),
            groups[-1],
        )


def sliced_federation(reverse: bool = False) -> Federation:
    """Slices of half and whole width; with `reverse`, in the other order also by name."""

    def network(rate):
        return sliced_model(SlicedDense((6, FEATURE_DIM), rate), NUM_CLASSES)

    federation = make_sliced_federation(network, RATES, SHAPE, NUM_CLASSES)
    if not reverse:
        return federation
    buckets = tuple(
        dataclasses.replace(b, name=f"{i}_{b.name}") for i, b in enumerate(federation.buckets[::-1])
    )
    return dataclasses.replace(
        federation, buckets=buckets, assignment=tuple(1 - i for i in federation.assignment)
    )


class Normed(nn.Module):
    """A sliceable layer and batch norm."""

    rate: float = 1.0
    norm: NormKind = "static_batch"

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        x = nn.Dense(sliced_width(4, self.rate), name="fc")(x.reshape(len(x), -1))
        return Norm(self.norm, name="norm")(x, train, mask)

    @nn.nowrap
    def channels(self, per_layer=False):
        return Channels({"fc": 4}, {"fc": (None, "fc"), "norm": ("fc", "fc")}, "fc")


def normed_federation(shape: tuple[int, int, int] = SHAPE) -> Federation:
    """Slices of half and whole width of a model with batch norm."""
    return make_sliced_federation(
        lambda rate: sliced_model(Normed(rate), NUM_CLASSES), RATES, shape, NUM_CLASSES
    )


class Staged(nn.Module):
    """[linear, ReLU] per entry of `widths` on the flattened image, each a stage."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.widths, 1):
            x = nn.relu(Linear(width, name=f"fc{i}")(x))
            note_stage(self, x)
        return x


def staged_federation(reverse: bool = False) -> Federation:
    """Networks of one and of two stages."""
    depths = {"narrow": (6,), "wide": (6, FEATURE_DIM)}
    modules = {name: SplitModel(Staged(d), Linear(NUM_CLASSES)) for name, d in depths.items()}
    return two_architectures(modules, reverse)


def federation_for(name: str, reverse: bool = False) -> Federation:
    """Returns the small federation that the method of this name runs on."""
    if name in ONE_ARCHITECTURE:
        return _made(uniform_federation)
    if name.split("+")[-1] in SLICES:
        return _made(sliced_federation, reverse)
    if name in IN_STAGES:
        return _made(staged_federation, reverse)
    if name in ADAPTERS:
        return _made(adapted_federation, reverse)
    federation = _made(mixed_federation, reverse)
    if name not in ON_PUBLIC_SET:
        return federation
    return dataclasses.replace(federation, public=samples()[0].public_set)


# every method's tests ask for theirs many times, and a federation traces each of its models
@functools.cache
def _made(make: Callable[..., Federation], *reverse: bool) -> Federation:
    return make(*reverse)


def federation_data(federation: Federation, padding: int = 0) -> FederationData:
    """The clients' data, with `padding` further columns, and all padding real samples."""
    dataset, partition = samples()
    data = arranged(dataset, partition, federation)
    if not padding:
        return data
    rng = np.random.default_rng(1)

    def pad(split: Split) -> Split:
        rows, width = split.indices.shape
        garbage = rng.integers(0, len(dataset.labels), (rows, width + padding))
        return jax.device_put(filled(split, padding, garbage))

    buckets = {
        name: bucket._replace(splits={key: pad(split) for key, split in bucket.splits.items()})
        for name, bucket in data.buckets.items()
    }
    return data._replace(buckets=buckets)


def to_host(state: SimulationState) -> SimulationState:
    """A copy in host memory; a round donates the state that it is given."""
    server, clients = jax.tree.map(np.array, jax.device_get((state.server, state.clients)))
    return state._replace(server=server, clients=clients, last_round=state.last_round.copy())


def to_device(state: SimulationState) -> SimulationState:
    """Places a state as a simulation on one device places it."""
    mesh = client_mesh(1)
    clients = scatter(mesh, state.clients)
    return state._replace(
        server=collect(mesh, state.server), clients=clients, last_round=state.last_round.copy()
    )


@contextlib.contextmanager
def chosen(ids, dropped=()):
    """Makes these the participants and drop-outs of every round played inside."""
    ids = np.sort(np.asarray(ids, np.int64))

    def choice(options, num_clients, round, *_):
        return (ids, np.isin(ids, dropped))

    name = "choose_participants"
    with mock.patch.object(rounds, name, choice):
        yield


def play(
    simulation: Simulation, state: SimulationState, ids, dropped=(), round: int | None = None
) -> tuple[SimulationState, RoundReport]:
    """One round from a copy of `state`, with participants, drop-outs and round as chosen."""
    state = state._replace(round=state.round if round is None else round)
    with chosen(ids, dropped):
        state, report = simulation.run_round(to_device(to_host(state)))
    return to_host(state), report


def each_client(federation: Federation, state: SimulationState) -> list:
    """Every client's own state, by id."""
    states = {}
    for bucket in federation.buckets:
        for row, i in enumerate(federation.members(bucket)):
            states[i] = jax.tree.map(
                lambda x, row=row: np.array(x[row]), state.clients[bucket.name]
            )
    return [states[i] for i in range(federation.num_clients)]


def identical(a, b) -> bool:
    """Returns True where two pytrees agree bit by bit."""
    x, y = jax.tree.leaves(a), jax.tree.leaves(b)

    def same(p, q):
        return np.array_equal(p, q, equal_nan=np.issubdtype(np.asarray(p).dtype, np.inexact))

    return jax.tree.structure(a) == jax.tree.structure(b) and all(map(same, x, y))


def changed(federation: Federation, before: SimulationState, after: SimulationState) -> set[int]:
    """Ids of the clients whose state differs in any bit."""
    pairs = zip(each_client(federation, before), each_client(federation, after))
    return {i for i, (a, b) in enumerate(pairs) if not identical(a, b)}


def count_parameters(bucket):
    """Counts the parameters of a model's base and of its head."""
    variables = jax.eval_shape(lambda key: init_variables(bucket, key), jax.random.key(0))
    return {
        part: sum(x.size for x in jax.tree.leaves(tree))
        for part, tree in variables["params"].items()
    }
