"""A method bound to a federation, its data and its devices: what a run does not change, compiled at its first call."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core import wire
from fedjax_ht.core.compiling import buckets_on_mesh
from fedjax_ht.core.evaluation import Asked, bucket_evaluation, global_evaluation
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.local_training import LocalTraining, forward_batch, num_steps
from fedjax_ht.core.mesh import client_mesh, collect, spread
from fedjax_ht.core.method import Data, Method, PyTree, Split
from fedjax_ht.core.round import Channel, bucket_round, first_states
from fedjax_ht.data.client_data import FederationData
from fedjax_ht.metrics.flops import sample_flops
from fedjax_ht.simulation import trials as per_trial
from fedjax_ht.simulation.lanes import choose_lanes
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.roster import Roster, deal, make_roster
from fedjax_ht.simulation.store import STORES, ClientStore


class Clients(NamedTuple):
    """One bucket's clients, of all trials.

    Attributes:
      roster: who lives where.
      data: theirs, on all devices.
      first_states: see `round.first_states`.
    """

    roster: Roster
    data: Data
    first_states: Callable


class ServerSteps(NamedTuple):
    """The servers of all trials; the functions are those of `trials`.

    Attributes:
      first, serve, charge_all, score_global: its state, its step, a downlink to everyone, its own model's accuracy.
      seeds: uint32 [trials].
      frozen: `Method.frozen`.
      pooled: all clients' samples, see `FederationData`.
    """

    first: Callable
    serve: Callable
    charge_all: Callable
    score_global: Callable
    seeds: jax.Array
    frozen: PyTree
    pooled: dict[str, Split]


class Program(NamedTuple):
    """What a simulation runs.

    Attributes:
      method, federation, data: what is bound.
      extra: per-client settings of the method.
      options: of each trial, alike but for the seed.
      channel: what transforms the messages on the wire.
      mesh: the devices.
      store: where states of clients at rest live.
      seeds: as `ServerSteps.seeds`, on all devices.
      images: the data without its splits, on all devices.
      clients: bucket name -> its clients.
      train: `round.bucket_round` of all buckets on the mesh; the states are donated.
      score: `evaluation.bucket_evaluation` likewise.
      after_training: what to score of a round's participants, before anything comes down.
      in_evaluation: what to score of clients in an evaluation.
      server: the server.
    """

    method: Method
    federation: Federation
    data: FederationData
    extra: PyTree
    options: tuple[SimulationOptions, ...]
    channel: Channel
    mesh: Mesh
    store: ClientStore
    seeds: jax.Array
    images: Data
    clients: dict[str, Clients]
    train: Callable
    score: Callable
    after_training: Asked
    in_evaluation: Asked
    server: ServerSteps

    @property
    def train_counts(self) -> np.ndarray:
        """int64 [trials, num_clients]."""
        return self.data.counts["train"]


def bind(
    method: Method, federation: Federation, data: FederationData, options: SimulationOptions, extra: PyTree
) -> Program:
    """Arguments as of `simulation.make_simulation`, the data of all trials joined."""
    method.check(federation)
    mesh = client_mesh(options.devices)
    channel = Channel(wire.chain(options.uplink), wire.chain(options.downlink))
    each = tuple(dataclasses.replace(options, seed=options.seed + t) for t in range(len(data.counts["train"])))
    seeds = collect(mesh, np.array([o.seed for o in each], np.uint32))
    images = spread(mesh, next(iter(data.buckets.values()))._replace(splits={}))
    size = evaluation_batch(federation, options)
    global_scores = global_evaluation(method, federation, options.global_statistics, size)
    server = ServerSteps(
        per_trial.first_server(method, federation),
        per_trial.serve(method, federation),
        per_trial.charge_all(method, federation, channel),
        per_trial.over_trials(global_scores),
        seeds,
        *collect(mesh, (method.frozen, data.pooled)),
    )
    rosters = _rosters(federation, data.counts["train"], method.training, options, mesh)
    bound = {b.name: (method, federation, b, channel, rosters[b.name].lanes) for b in federation.buckets}
    wanted = ("test", "val", "train") if options.evaluate_train else ("test", "val")
    splits = tuple(s for s in wanted if data.counts[s].any())
    asked = lambda received, which: Asked(np.bool_(received), {s: np.bool_(s in which) for s in splits})  # noqa: E731
    clients = {
        b.name: Clients(
            rosters[b.name],
            images._replace(splits=spread(mesh, data.buckets[b.name].splits)),
            first_states(method, b, mesh),
        )
        for b in federation.buckets
    }
    train = {name: bucket_round(*arguments) for name, arguments in bound.items()}
    score = {name: bucket_evaluation(*arguments, size) for name, arguments in bound.items()}
    return Program(
        method=method,
        federation=federation,
        data=data,
        extra=extra,
        options=each,
        channel=channel,
        mesh=mesh,
        store=STORES[options.client_store](mesh),
        seeds=spread(mesh, seeds),
        images=images,
        clients=clients,
        train=buckets_on_mesh(train, mesh, donate=True),
        score=buckets_on_mesh(score, mesh, donate=False),
        after_training=spread(mesh, asked(False, ("test",))),
        in_evaluation=spread(mesh, asked(options.evaluate == "received", splits)),
        server=server,
    )


def evaluation_batch(federation: Federation, options: SimulationOptions) -> int:
    """Samples of a forward pass that scores."""
    return options.eval_batch_size or (forward_batch() if federation.global_model is None else 64)


def _rosters(
    federation: Federation, counts: np.ndarray, training: LocalTraining, options: SimulationOptions, mesh: Mesh
) -> dict[str, Roster]:
    """Every bucket's, with rows dealt to devices by steps times the FLOPs of their architecture; `counts` are the
    clients' training samples, int [trials, num_clients]."""
    buckets = federation.buckets
    members = [np.array(federation.members(b)) for b in buckets]
    steps = [num_steps(training, counts[:, own]) for own in members]
    unit = [sample_flops(b) if mesh.size > 1 else 1.0 for b in buckets]
    dealt = deal([cost * each.reshape(-1) for cost, each in zip(unit, steps)], mesh.size)
    participants = options.participants(federation.num_clients)
    flat = [each.reshape(-1) for each in steps]
    lanes = choose_lanes(options.lanes, buckets, flat, len(counts) * participants, training.batch_size, mesh)
    return {
        b.name: make_roster(*places, participants, lanes[b.name], mesh)
        for b, *places in zip(buckets, members, steps, dealt)
    }
