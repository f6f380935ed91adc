"""A method bound to a federation, its data and its devices: what a run does not change, compiled at
its first call."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core import wire
from fedjax_ht.core.batches import forward_batch
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.compiling import buckets_on_mesh
from fedjax_ht.core.evaluation import (
    EvaluationRequest,
    bucket_evaluation,
    client_evaluation,
    global_evaluation,
    received_state,
)
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.forms import keeps_state, uplink_forms
from fedjax_ht.core.mesh import client_mesh, collect, server_copy, share, spread
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Channel, bucket_round
from fedjax_ht.core.samples import Data, Split
from fedjax_ht.core.states import first_states
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import FederationData
from fedjax_ht.metrics.flops import bucket_flops
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.roster import Roster, make_rosters
from fedjax_ht.simulation.serving import Server, serve_trials
from fedjax_ht.simulation.store import STORES, ClientStore, no_store
from fedjax_ht.simulation.trials import first_server, over_trials
from fedjax_ht.simulation.uploads import Devices
from fedjax_ht.trust.defences import defended
from fedjax_ht.trust.disclosure import Exposure, exposure
from fedjax_ht.trust.epsilon import accounting
from fedjax_ht.trust.hardening import concealed


class Clients(NamedTuple):
    """One bucket's clients, of all trials.

    Attributes:
      roster: the places of their states.
      data: of these clients, on all devices.
      first_states: see `states.first_states`.
      keeps: whether they keep anything between rounds, see `forms.keeps_state`, that anybody asks
        for.
      store: of their states between rounds.
      received: see `evaluation.received_state`; None of those that keep something.
    """

    roster: Roster
    data: Data
    first_states: Callable
    keeps: bool
    store: ClientStore
    received: Callable | None


class Program(NamedTuple):
    """The parts of a simulation that its rounds share.

    Attributes:
      method, federation, data: what is bound; the method as its clients run it, see
        `trust.hardening.concealed`, with the defences around it.
      options: of each trial, alike but for the seed; see `of_trials`.
      channel: what transforms the messages on the wire.
      mesh: the devices.
      seeds: of each trial, uint32 [trials], NumPy.
      settings: what varies of the method, NumPy with a leading axis [trials]; () where nothing
        does.
      samples: the data without its splits, on all devices.
      clients: bucket name -> its clients.
      train: `round.bucket_round` of all buckets on the mesh; the states are donated.
      score: `evaluation.bucket_evaluation` of all buckets on the mesh.
      after_training: what to score of a round's participants, before anything comes down.
      nothing: a request that scores nothing.
      in_evaluation: what to score of clients in an evaluation.
      first_server: see `trials.first_server`.
      server: the servers of all trials.
      score_global: accuracy of the servers' own models, over trials.
      pooled: all clients' samples on the server's device, see `FederationData`.
      flops: see `client_flops`; counted once.
      uplink_forms: () -> bucket name -> form of its uplinks; traced at its first call.
      exposure: see `disclosure.exposure`; None where nothing is private.
    """

    method: Method
    federation: Federation
    data: FederationData
    options: tuple[SimulationOptions, ...]
    channel: Channel
    mesh: Mesh
    seeds: np.ndarray
    settings: PyTree
    samples: Data
    clients: dict[str, Clients]
    train: Callable
    score: Callable
    after_training: EvaluationRequest
    nothing: EvaluationRequest
    in_evaluation: EvaluationRequest
    first_server: Callable
    server: Server
    score_global: Callable
    pooled: dict[str, Split]
    flops: Callable[[], np.ndarray]
    uplink_forms: Callable[[], dict[str, PyTree]]
    exposure: Exposure | None

    @property
    def train_counts(self) -> np.ndarray:
        """Training samples, int64 [trials, num_clients]."""
        return self.data.counts["train"]

    @property
    def devices(self) -> Devices:
        """The clients' simulated devices."""
        return Devices(
            profile=self.options[0].profile,
            flops=self.flops,
            mesh=self.mesh,
            rosters={name: clients.roster for name, clients in self.clients.items()},
            num_clients=self.federation.num_clients,
        )


def bind(
    method: Method,
    federation: Federation,
    data: FederationData,
    options: SimulationOptions,
    seeds: Sequence[int],
    settings: PyTree,
) -> Program:
    """Binds what a run does not change. Arguments as of `simulation.make_trials`, the data of all
    trials joined."""
    hidden = concealed(method, options.attack, options.privacy, federation.num_clients)
    method = defended(hidden, options.robust)
    method.check(federation)
    if options.profile is not None:
        options.profile.check(method, federation.num_clients)
    if options.privacy is not None:
        accounting()
    mesh = client_mesh(options.devices)
    channel = Channel(wire.chain(options.uplink), wire.chain(options.downlink))
    samples = share(mesh, next(iter(data.buckets.values()))._replace(splits={}))
    size = evaluation_batch(federation, options, data)
    pretrained, pooled = collect(mesh, (method.pretrained.variables, data.pooled))
    shown, server_samples = {}, ()
    if method.sees_data:
        shown, server_samples = {"train": pooled["train"]}, server_copy(samples)
    server = Server(
        step=serve_trials(method, federation, options.outlier_bound),
        seeds=(),
        settings=(),
        pretrained=pretrained,
        shown=shown,
        samples=server_samples,
    )
    rosters = make_rosters(federation, data.counts["train"], method.training, options, mesh)
    clients, train, score = {}, {}, {}
    for bucket in federation.buckets:
        name = bucket.name
        bound = (method, federation, bucket, channel)
        of_bucket = samples._replace(splits=spread(mesh, data.buckets[name].splits))
        clients[name] = _bucket_clients(bound, rosters[name], of_bucket, options, mesh)
        keeps = clients[name].keeps
        score_trained = None
        if not keeps:  # they are scored where they train, before their models are gone
            score_trained = client_evaluation(*bound, size)
        train[name] = bucket_round(*bound, score_trained)
        score[name] = bucket_evaluation(*bound, size, keeps)
    splits = _scored_splits(data, options)

    def request(received, scored):
        return spread(
            mesh, EvaluationRequest(np.bool_(received), {s: np.bool_(s in scored) for s in splits})
        )

    program = Program(
        method=method,
        federation=federation,
        data=data,
        options=(options,),
        channel=channel,
        mesh=mesh,
        seeds=np.zeros(0, np.uint32),
        settings=(),
        samples=samples,
        clients=clients,
        train=buckets_on_mesh(train, mesh, donate=True),
        score=buckets_on_mesh(score, mesh, donate=False),
        after_training=request(False, ("test",)),
        nothing=request(False, ()),
        in_evaluation=request(options.evaluate == "received", splits),
        first_server=first_server(method, federation),
        server=server,
        score_global=over_trials(
            global_evaluation(method, federation, options.global_statistics, size)
        ),
        pooled=pooled,
        flops=functools.cache(functools.partial(client_flops, method, federation, data)),
        uplink_forms=functools.cache(functools.partial(uplink_forms, method, federation, channel)),
        exposure=options.privacy and exposure(hidden, federation),
    )
    return of_trials(program, seeds, settings)


def _bucket_clients(
    bound: tuple[Method, Federation, Bucket, Channel],
    roster: Roster,
    data: Data,
    options: SimulationOptions,
    mesh: Mesh,
) -> Clients:
    """Binds one bucket's clients."""
    method, _, bucket, _ = bound
    # "trained" evaluation asks for what training left, whatever comes down.
    keeps = options.evaluate == "trained" or keeps_state(*bound)
    store, received = no_store(mesh), None
    if keeps:
        store = STORES[options.client_store](mesh)
    else:
        received = received_state(*bound)
    return Clients(
        roster=roster,
        data=data,
        first_states=first_states(method, bucket, mesh),
        keeps=keeps,
        store=store,
        received=received,
    )


def _scored_splits(data: FederationData, options: SimulationOptions) -> tuple[str, ...]:
    """Returns the splits that an evaluation scores: those of which any client has samples."""
    splits = ("test", "val")
    if options.evaluate_train:
        splits += ("train",)
    return tuple(split for split in splits if data.counts[split].any())


def of_trials(program: Program, seeds: Sequence[int], settings: PyTree) -> Program:
    """Returns the program with other seeds and settings, by the functions that are compiled
    already.

    Raises:
      ValueError: there is not one seed, and one of each setting, a trial; or the method varies and
        no settings are given, or the other way round.
    """
    trials = len(program.train_counts)
    numbers = jax.tree.map(functools.partial(np.asarray, dtype=np.float32), settings)
    if len(seeds) != trials or any(x.shape[:1] != (trials,) for x in jax.tree.leaves(numbers)):
        raise ValueError(
            f"{trials} trials, by their data, need as many seeds and as many values of each setting"
        )
    varies, name = program.method.vary is not None, program.method.name
    if varies and not jax.tree.leaves(numbers):
        raise ValueError(f"{name} has settings that vary, and none are given; pass settings")
    if jax.tree.leaves(numbers) and not varies:
        raise ValueError(f"settings are given, but {name} has none that vary; make it by fl.varied")
    root_seeds = np.array(seeds, np.uint32)
    on_server = collect(program.mesh, {"seeds": root_seeds, "settings": numbers})
    return program._replace(
        options=tuple(dataclasses.replace(program.options[0], seed=int(seed)) for seed in seeds),
        seeds=root_seeds,
        settings=numbers,
        server=program.server._replace(**on_server),
    )


def client_flops(method: Method, federation: Federation, data: FederationData) -> np.ndarray:
    """Counts the FLOPs of each client in a round that it takes part in, float64 [trials,
    num_clients], see `metrics.flops`; it traces every architecture."""
    flops = np.zeros(data.counts["train"].shape)
    for bucket in federation.buckets:
        per_row = bucket_flops(method, federation, bucket, data.buckets[bucket.name])
        flops[:, federation.members(bucket)] = per_row.reshape(len(flops), -1)
    return flops


def evaluation_batch(
    federation: Federation, options: SimulationOptions, data: FederationData | None = None
) -> int:
    """Returns the samples of a forward pass that scores: of this data no more than a client has,
    except where norms go by them."""
    if options.eval_batch_size or federation.global_model is not None:
        return options.eval_batch_size or 64
    if data is None:
        return forward_batch()
    most = max(int(data.counts[split].max()) for split in ("test", "val"))
    return max(1, min(forward_batch(), most))
