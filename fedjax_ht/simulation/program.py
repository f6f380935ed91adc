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
from fedjax_ht.core.compiling import buckets_on_mesh
from fedjax_ht.core.contract import guarded
from fedjax_ht.core.evaluation import (
    Asked,
    bucket_evaluation,
    client_evaluation,
    global_evaluation,
    received_state,
)
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.forms import keeps_state
from fedjax_ht.core.local_training import LocalTraining, forward_batch, num_steps
from fedjax_ht.core.mesh import client_mesh, collect, share, spread
from fedjax_ht.core.method import Data, Method, PyTree, Split
from fedjax_ht.core.round import Channel, bucket_round, first_states
from fedjax_ht.data.client_data import FederationData
from fedjax_ht.metrics.flops import bucket_flops, sample_flops
from fedjax_ht.simulation import trials as per_trial
from fedjax_ht.simulation.lanes import choose_lanes
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.roster import Roster, deal, make_roster
from fedjax_ht.simulation.store import STORES, ClientStore, no_store
from fedjax_ht.trust.attacks import attacked, attackers
from fedjax_ht.trust.defences import defended
from fedjax_ht.trust.disclosure import Exposure, exposure
from fedjax_ht.trust.epsilon import accounting
from fedjax_ht.trust.privacy import private


class Clients(NamedTuple):
    """One bucket's clients, of all trials.

    Attributes:
      roster: who lives where.
      data: theirs, on all devices.
      first_states: see `round.first_states`.
      keeps: whether they keep anything between rounds, see `forms.keeps_state`, that anybody asks
        for.
      store: where their states at rest live.
      received: see `evaluation.received_state`; None of those that keep something.
    """

    roster: Roster
    data: Data
    first_states: Callable
    keeps: bool
    store: ClientStore
    received: Callable | None


class ServerSteps(NamedTuple):
    """The servers of all trials; the functions are those of `trials`.

    Attributes:
      first, serve, score_global: its state, its step, its own model's accuracy.
      seeds: uint32 [trials].
      settings: as `Program.settings`.
      pretrained: `Pretrained.variables` of the method.
      pooled: all clients' samples, see `FederationData`.
    """

    first: Callable
    serve: Callable
    score_global: Callable
    seeds: jax.Array
    settings: PyTree
    pretrained: PyTree
    pooled: dict[str, Split]


class Program(NamedTuple):
    """What a simulation runs.

    Attributes:
      method, federation, data: what is bound; the method with the attack, the privacy and the
        defences of the options.
      options: of each trial, alike but for the seed; see `of_trials`.
      channel: what transforms the messages on the wire.
      mesh: the devices.
      own_seeds: of each trial, uint32 [trials], NumPy.
      settings: what varies of the method, NumPy with a leading axis [trials]; () where nothing
        does.
      samples: the data without its splits, on all devices.
      clients: bucket name -> its clients.
      train: `round.bucket_round` of all buckets on the mesh; the states are donated.
      score: `evaluation.bucket_evaluation` likewise.
      after_training: what to score of a round's participants, before anything comes down.
      nothing: nothing of them.
      in_evaluation: what to score of clients in an evaluation.
      server: the server.
      flops: see `client_flops`; counted once.
      exposure: see `disclosure.exposure`; None where nothing is private.
    """

    method: Method
    federation: Federation
    data: FederationData
    options: tuple[SimulationOptions, ...]
    channel: Channel
    mesh: Mesh
    own_seeds: np.ndarray
    settings: PyTree
    samples: Data
    clients: dict[str, Clients]
    train: Callable
    score: Callable
    after_training: Asked
    nothing: Asked
    in_evaluation: Asked
    server: ServerSteps
    flops: Callable[[], np.ndarray]
    exposure: Exposure | None

    @property
    def train_counts(self) -> np.ndarray:
        """int64 [trials, num_clients]."""
        return self.data.counts["train"]

    @property
    def attackers(self) -> np.ndarray:
        """bool [num_clients]."""
        attack, clients = self.options[0].attack, self.federation.num_clients
        return attackers(attack, clients) if attack else np.zeros(clients, bool)


def bind(
    method: Method,
    federation: Federation,
    data: FederationData,
    options: SimulationOptions,
    seeds: Sequence[int],
    settings: PyTree,
) -> Program:
    """Arguments as of `simulation.make_trials`, the data of all trials joined."""
    own = private(
        attacked(guarded(method), options.attack, federation.num_clients), options.privacy
    )
    method = defended(own, options.robust)
    method.check(federation)
    if options.profile is not None:
        options.profile.check(method, federation.num_clients)
    if options.privacy is not None:
        accounting()
    mesh = client_mesh(options.devices)
    channel = Channel(wire.chain(options.uplink), wire.chain(options.downlink))
    samples = share(mesh, next(iter(data.buckets.values()))._replace(splits={}))
    size = evaluation_batch(federation, options, data)
    global_scores = global_evaluation(method, federation, options.global_statistics, size)
    server = ServerSteps(
        per_trial.first_server(method, federation),
        per_trial.serve(method, federation, options.outlier_bound),
        per_trial.over_trials(global_scores),
        (),
        (),
        *collect(mesh, (method.pretrained.variables, data.pooled)),
    )
    rosters = _rosters(federation, data.counts["train"], method.training, options, mesh)
    bound = {
        b.name: (method, federation, b, channel, rosters[b.name].lanes) for b in federation.buckets
    }
    # "trained" evaluation asks for what training left, whatever comes down.
    keeps = {
        b.name: options.evaluate == "trained" or keeps_state(method, federation, b, channel)
        for b in federation.buckets
    }
    wanted = ("test", "val", "train") if options.evaluate_train else ("test", "val")
    splits = tuple(s for s in wanted if data.counts[s].any())

    def asked(received, which):
        return Asked(np.bool_(received), {s: np.bool_(s in which) for s in splits})

    clients = {
        b.name: Clients(
            rosters[b.name],
            samples._replace(splits=spread(mesh, data.buckets[b.name].splits)),
            first_states(method, b, mesh),
            keeps[b.name],
            STORES[options.client_store](mesh) if keeps[b.name] else no_store(mesh),
            None if keeps[b.name] else received_state(method, federation, b, channel),
        )
        for b in federation.buckets
    }
    train, score = {}, {}
    for name, arguments in bound.items():
        scored = None if keeps[name] else client_evaluation(*arguments[:4], size)
        train[name] = bucket_round(*arguments, scored)
        score[name] = bucket_evaluation(*arguments, size, keeps[name])
    program = Program(
        method=method,
        federation=federation,
        data=data,
        options=(options,),
        channel=channel,
        mesh=mesh,
        own_seeds=np.zeros(0, np.uint32),
        settings=(),
        samples=samples,
        clients=clients,
        train=buckets_on_mesh(train, mesh, donate=True),
        score=buckets_on_mesh(score, mesh, donate=False),
        after_training=spread(mesh, asked(False, ("test",))),
        nothing=spread(mesh, asked(False, ())),
        in_evaluation=spread(mesh, asked(options.evaluate == "received", splits)),
        server=server,
        flops=functools.cache(functools.partial(client_flops, method, federation, data)),
        exposure=options.privacy and exposure(own, federation),
    )
    return of_trials(program, seeds, settings)


def of_trials(program: Program, seeds: Sequence[int], settings: PyTree) -> Program:
    """The program with other seeds and settings, by the functions that are compiled already.

    Raises:
      ValueError: there is not one seed, and one of each setting, a trial; or the method varies and
        no settings are given, or the other way round.
    """
    trials, given = (
        len(program.train_counts),
        jax.tree.map(lambda x: np.asarray(x, np.float32), settings),
    )
    if len(seeds) != trials or any(x.shape[:1] != (trials,) for x in jax.tree.leaves(given)):
        raise ValueError(
            f"there are {trials} trials, by their data; each has one seed, and one of each setting"
        )
    if (program.method.vary is None) != (not jax.tree.leaves(given)):
        which = (
            "no settings: it is not `varied`"
            if program.method.vary is None
            else "settings, and none are given"
        )
        raise ValueError(f"{program.method.name} has {which}")
    own_seeds = np.array(seeds, np.uint32)
    on_server = collect(program.mesh, {"seeds": own_seeds, "settings": given})
    return program._replace(
        options=tuple(dataclasses.replace(program.options[0], seed=int(seed)) for seed in seeds),
        own_seeds=own_seeds,
        settings=given,
        server=program.server._replace(**on_server),
    )


def client_flops(method: Method, federation: Federation, data: FederationData) -> np.ndarray:
    """FLOPs of each client in a round that it takes part in, float64 [trials, num_clients] (see
    `metrics.flops`); it traces every architecture."""
    flops = np.zeros(data.counts["train"].shape)
    for bucket in federation.buckets:
        per_row = bucket_flops(method, federation, bucket, data.buckets[bucket.name])
        flops[:, federation.members(bucket)] = per_row.reshape(len(flops), -1)
    return flops


def evaluation_batch(
    federation: Federation, options: SimulationOptions, data: FederationData | None = None
) -> int:
    """Samples of a forward pass that scores: of this data no more than a client has, but where
    norms go by them."""
    if options.eval_batch_size or federation.global_model is not None:
        return options.eval_batch_size or 64
    if data is None:
        return forward_batch()
    most = max(int(data.counts[split].max()) for split in ("test", "val"))
    return max(1, min(forward_batch(), most))


def _rosters(
    federation: Federation,
    counts: np.ndarray,
    training: LocalTraining,
    options: SimulationOptions,
    mesh: Mesh,
) -> dict[str, Roster]:
    """Every bucket's, with rows dealt to devices by steps times the FLOPs of their architecture;
    `counts` are the clients' training samples, int [trials, num_clients]."""
    buckets = federation.buckets
    members = [np.array(federation.members(b)) for b in buckets]
    steps = [num_steps(training, counts[:, own]) for own in members]
    unit = [sample_flops(b) if mesh.size > 1 else 1.0 for b in buckets]
    dealt = deal([cost * each.reshape(-1) for cost, each in zip(unit, steps)], mesh.size)
    participants = options.participants(federation.num_clients)
    flat = [each.reshape(-1) for each in steps]
    lanes = choose_lanes(
        options.lanes, buckets, flat, len(counts) * participants, training.batch_size, mesh
    )
    return {
        b.name: make_roster(*places, participants, lanes[b.name], mesh)
        for b, *places in zip(buckets, members, steps, dealt)
    }
