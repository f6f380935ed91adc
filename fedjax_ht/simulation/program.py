"""An engine bound to a federation, its data and its devices: the parts that a run keeps."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core.batches import forward_batch
from fedjax_ht.core.bucket import frozen_of
from fedjax_ht.core.evaluation import EvaluationRequest
from fedjax_ht.core.federation import Federation, with_frozen_variables
from fedjax_ht.core.mesh import client_mesh, collect, server_copy, share, spread
from fedjax_ht.core.method import Method
from fedjax_ht.core.public_set import require_public_set
from fedjax_ht.core.round import TrialServers
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import FederationData, with_public
from fedjax_ht.metrics.flops import data_form, work_flops
from fedjax_ht.simulation.engine import Blueprint, BucketPrograms, Engine, make_engine
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.roster import Roster, make_rosters
from fedjax_ht.simulation.serving import Server
from fedjax_ht.simulation.uploads import Devices
from fedjax_ht.trust.epsilon import accounting


class Clients(NamedTuple):
    """One bucket's clients, of all trials.

    Attributes:
      roster: the places of their states.
      data: the clients' data, on all devices.
      programs: the engine's programs for the bucket.
    """

    roster: Roster
    data: Data
    programs: BucketPrograms


class Program(NamedTuple):
    """The parts of a simulation that its rounds share.

    Attributes:
      engine: the compiled programs.
      federation: the buckets.
      data: the data of all trials' clients.
      options: the options of each trial, alike but for the seed.
      mesh: the devices.
      seeds: the root seed of each trial, uint32 [trials], NumPy.
      settings: the method's values that vary over trials, NumPy with a leading axis [trials]; ()
        where none varies.
      frozen: `TrialServers.frozen`, on all devices.
      samples: the data without the clients' splits, on all devices.
      clients: bucket name -> its clients.
      after_training: the request that scores a round's participants before anything comes down.
      nothing: the request that scores nothing.
      in_evaluation: the request that scores clients in an evaluation.
      server: the servers of all trials.
      pooled: all clients' samples as one split, for scoring a model that only the server holds.
      flops: () -> `client_flops` of the simulation; counted once.
    """

    engine: Engine
    federation: Federation
    data: FederationData
    options: tuple[SimulationOptions, ...]
    mesh: Mesh
    seeds: np.ndarray
    settings: PyTree
    frozen: PyTree
    samples: Data
    clients: dict[str, Clients]
    after_training: EvaluationRequest
    nothing: EvaluationRequest
    in_evaluation: EvaluationRequest
    server: Server
    pooled: dict[str, Split]
    flops: Callable[[], np.ndarray]

    @property
    def method(self) -> Method:
        """The method as its clients run it, with the defences around it."""
        return self.engine.method

    @property
    def train_counts(self) -> np.ndarray:
        """Training samples, int64 [trials, num_clients]."""
        return self.data.counts["train"]

    @property
    def public_bytes(self) -> int | None:
        """Bytes of the public set's stored samples, and of its labels where these are known; None
        for methods that read none."""
        public = self.federation.public
        if public is None:
            return None
        arrays = [*jax.tree.leaves(self.samples.inputs)]
        if public.is_labelled:
            arrays.append(self.samples.labels)
        return public.samples * sum(x.nbytes // len(x) for x in arrays)

    @property
    def frozen_bytes(self) -> np.ndarray | None:
        """Bytes of the frozen weights of each client's model, int64 [num_clients]; None where no
        model has any."""
        if not self.frozen:
            return None
        of_bucket = []
        for bucket in self.federation.buckets:
            own, _ = self.frozen[bucket.name]
            of_bucket.append(sum(x.nbytes for x in jax.tree.leaves(own)))
        return np.array(of_bucket, np.int64)[np.array(self.federation.assignment)]

    def trial_servers(self, states: PyTree) -> TrialServers:
        """Returns the servers of all trials with these states, on the server's device."""
        frozen = server_copy(self.frozen)
        return TrialServers(states, self.server.seeds, self.server.settings, frozen)

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
    *,
    options: SimulationOptions,
    seeds: Sequence[int],
    settings: PyTree,
) -> Program:
    """Binds the parts that a run keeps. Arguments as of `simulation.make_trials`, the data of all
    trials joined."""
    numbers = _checked_settings(method, settings, len(seeds), len(data.counts["train"]))
    federation, data = _for_method(method, with_frozen_variables(federation), data)
    frozen = ()
    if any(bucket.freezes for bucket in federation.buckets):
        frozen = {bucket.name: frozen_of(bucket) for bucket in federation.buckets}
    mesh = client_mesh(options.devices)
    blueprint = Blueprint(
        method=method,
        federation=federation,
        mesh=mesh,
        batch_size=evaluation_batch(federation, options, data),
        # "trained" evaluation asks for what training left, whatever comes down.
        keep_trained=options.evaluate == "trained",
        client_store=options.client_store,
        statistics=options.global_statistics,
        outlier_bound=options.outlier_bound,
        uplink=options.uplink,
        downlink=options.downlink,
        attack=options.attack,
        privacy=options.privacy,
        robust=options.robust,
    )
    engine = make_engine(blueprint)
    if options.profile is not None:
        options.profile.check(engine.method, federation.num_clients)
    if options.privacy is not None:
        accounting()
    public = {} if federation.public is None else {PUBLIC: data.public}
    samples = share(mesh, next(iter(data.buckets.values()))._replace(splits=public))
    root_seeds = np.array(seeds, np.uint32)
    pretrained, pooled = collect(mesh, (method.pretrained.variables, data.pooled))
    on_server = collect(mesh, {"seeds": root_seeds, "settings": numbers})
    server = Server(
        step=engine.serve,
        pretrained=pretrained,
        shown={"train": pooled["train"]} if method.sees_data else {},
        samples=server_copy(samples) if method.sees_data or public else (),
        **on_server,
    )
    rosters = make_rosters(federation, data.counts["train"], method.training, options, mesh)
    clients = {}
    for name, programs in engine.buckets.items():
        of_bucket = samples._replace(splits=spread(mesh, data.buckets[name].splits))
        clients[name] = Clients(rosters[name], of_bucket, programs)
    splits = _scored_splits(data, options)

    def request(received, scored):
        return spread(
            mesh, EvaluationRequest(np.bool_(received), {s: np.bool_(s in scored) for s in splits})
        )

    return Program(
        engine=engine,
        federation=federation,
        data=data,
        options=tuple(dataclasses.replace(options, seed=int(seed)) for seed in seeds),
        mesh=mesh,
        seeds=root_seeds,
        settings=numbers,
        frozen=share(mesh, frozen),
        samples=samples,
        clients=clients,
        after_training=request(False, ("test",)),
        nothing=request(False, ()),
        in_evaluation=request(options.evaluate == "received", splits),
        server=server,
        pooled=pooled,
        flops=functools.cache(functools.partial(client_flops, engine, federation, data)),
    )


def _for_method(
    method: Method, federation: Federation, data: FederationData
) -> tuple[Federation, FederationData]:
    """Returns the federation and the data with the public set, for a method that reads one;
    programs of other methods know of none."""
    if not method.public_samples:
        return dataclasses.replace(federation, public=None), data
    federation = dataclasses.replace(federation, public=data.public_set)
    require_public_set(method, federation)
    return federation, with_public(data)


def _scored_splits(data: FederationData, options: SimulationOptions) -> tuple[str, ...]:
    """Returns the splits that an evaluation scores: those of which any client has samples."""
    splits = ("test", "val")
    if options.evaluate_train:
        splits += ("train",)
    return tuple(split for split in splits if data.counts[split].any())


def _checked_settings(method: Method, settings: PyTree, seeds: int, trials: int) -> PyTree:
    """Returns the settings of each trial as float32.

    Raises:
      ValueError: there is not one seed, and one of each setting, a trial; or the method varies and
        no settings are given, or the other way round.
    """
    numbers = jax.tree.map(functools.partial(np.asarray, dtype=np.float32), settings)
    if seeds != trials or any(x.shape[:1] != (trials,) for x in jax.tree.leaves(numbers)):
        raise ValueError(
            f"{trials} trials, by their data, need as many seeds and as many values of each setting"
        )
    varies, name = method.vary is not None, method.name
    if varies and not jax.tree.leaves(numbers):
        raise ValueError(f"{name} has settings that vary, and none are given; pass settings")
    if jax.tree.leaves(numbers) and not varies:
        raise ValueError(f"settings are given, but {name} has none that vary; make it by fl.varied")
    return numbers


def client_flops(engine: Engine, federation: Federation, data: FederationData) -> np.ndarray:
    """Counts the FLOPs of each client in a round that it takes part in, float64 [trials,
    num_clients], see `metrics.flops`; it traces every architecture."""
    flops = np.zeros(data.counts["train"].shape)
    for bucket in federation.buckets:
        of_bucket = data.buckets[bucket.name]
        per_row = work_flops(engine.work(bucket, data_form(of_bucket)), of_bucket)
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
