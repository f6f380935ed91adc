"""A method bound to a federation, its data and its devices: what a run does not change, compiled at its first call."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core import wire
from fedjax_ht.core.federation import Bucket, Federation
from fedjax_ht.core.local_training import LocalTraining, num_steps
from fedjax_ht.core.mesh import client_mesh, collect, spread
from fedjax_ht.core.method import Data, Method, PyTree, Split
from fedjax_ht.core.round import Channel, bucket_evaluation, bucket_round, first_states, on_mesh
from fedjax_ht.data.client_data import FederationData
from fedjax_ht.metrics.flops import sample_flops
from fedjax_ht.simulation import trials as per_trial
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.roster import Roster, deal, make_roster
from fedjax_ht.simulation.store import STORES, ClientStore


class Clients(NamedTuple):
    """One bucket's clients, of all trials.

    Attributes:
      roster: who lives where.
      data: theirs, on all devices.
      first_states: see `round.first_states`.
      train: `round.bucket_round` on the mesh; the states are donated.
      evaluate: `round.bucket_evaluation` on the mesh.
      score_trained: likewise, of a round's participants as their training left them, before anything comes down.
    """

    roster: Roster
    data: Data
    first_states: Callable
    train: Callable
    evaluate: Callable
    score_trained: Callable


class Server(NamedTuple):
    """The servers of all trials; the functions are those of `trials`.

    Attributes:
      first, serve, charge_all, score_global: its state, its step, a downlink to everyone, its own model's accuracy.
      seeds: uint32 scalar, or [trials].
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
      trials: how many run together, or None.
      mesh: the devices.
      store: where states of clients at rest live.
      seeds: as `Server.seeds`, on all devices.
      images: the data without its splits, on all devices.
      clients: bucket name -> its clients.
      server: the server.
    """

    method: Method
    federation: Federation
    data: FederationData
    extra: PyTree
    options: tuple[SimulationOptions, ...]
    trials: int | None
    mesh: Mesh
    store: ClientStore
    seeds: jax.Array
    images: Data
    clients: dict[str, Clients]
    server: Server

    @property
    def train_counts(self) -> np.ndarray:
        """int64 [trials or 1, num_clients]."""
        return self.data.counts["train"].reshape(len(self.options), -1)

    def unlisted(self, of_each: Any) -> Any:
        """What has an entry a trial, without trials its one entry."""
        return of_each if self.trials else of_each[0]


def bind(
    method: Method,
    federation: Federation,
    data: FederationData,
    training: LocalTraining,
    options: SimulationOptions,
    extra: PyTree,
    trials: int | None,
) -> Program:
    """Arguments as of `simulation.make_simulation`; with trials, the data of all of them joined."""
    method.check(federation)
    mesh = client_mesh(options.devices)
    channel = Channel(wire.chain(options.uplink), wire.chain(options.downlink))
    each = tuple(dataclasses.replace(options, seed=options.seed + t) for t in range(trials or 1))
    seeds = np.array([o.seed for o in each], np.uint32)
    seeds = collect(mesh, seeds if trials else seeds[0])
    images = spread(mesh, next(iter(data.buckets.values()))._replace(splits={}))
    server = Server(
        per_trial.first_server(method, federation, trials),
        per_trial.serve(method, federation, trials),
        per_trial.charge_all(method, federation, channel, trials),
        per_trial.score_global(method, federation, options, trials),
        seeds,
        *collect(mesh, (method.frozen, data.pooled)),
    )
    store, everywhere = STORES[options.client_store](mesh), spread(mesh, seeds)
    program = Program(method, federation, data, extra, each, trials, mesh, store, everywhere, images, {}, server)
    rosters = _rosters(program, training)
    clients = {b.name: _clients(program, b, channel, roster) for b, roster in rosters.items()}
    return program._replace(clients=clients)


def _rosters(program: Program, training: LocalTraining) -> dict[Bucket, Roster]:
    """Every bucket's, with rows dealt to devices by steps times the FLOPs of their architecture."""
    federation, mesh, options = program.federation, program.mesh, program.options[0]
    members = {b: np.array(federation.members(b)) for b in federation.buckets}
    steps = {b: num_steps(training, program.train_counts[:, own]) for b, own in members.items()}
    unit = {b: sample_flops(b) if mesh.size > 1 else 1.0 for b in federation.buckets}
    dealt = deal([unit[b] * steps[b].reshape(-1) for b in federation.buckets], mesh.size)
    participants = options.participants(federation.num_clients)
    return {
        b: make_roster(members[b], steps[b], device, participants, options.lanes, mesh)
        for b, device in zip(federation.buckets, dealt)
    }


def _clients(program: Program, bucket: Bucket, channel: Channel, roster: Roster) -> Clients:
    method, federation, mesh, options = program.method, program.federation, program.mesh, program.options[0]
    bound = (method, federation, bucket, channel, roster.lanes)
    scored = ("test", "val", "train") if options.evaluate_train else ("test", "val")
    splits = tuple(s for s in scored if program.data.counts[s].any())
    evaluate = bucket_evaluation(*bound, options.evaluate == "received", options.eval_batch_size, splits)
    score_trained = bucket_evaluation(*bound, False, options.eval_batch_size, tuple(s for s in splits if s == "test"))
    return Clients(
        roster,
        program.images._replace(splits=spread(mesh, program.data.buckets[bucket.name].splits)),
        first_states(method, bucket, mesh),
        on_mesh(bucket_round(*bound), mesh, donate=True),
        on_mesh(evaluate, mesh, donate=False),
        on_mesh(score_trained, mesh, donate=False),
    )
