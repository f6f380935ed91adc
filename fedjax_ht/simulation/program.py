"""An engine bound to a federation, its data and its devices: the parts that a run shares."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_ht.core.batches import forward_batch
from fedjax_ht.core.bucket import frozen_of
from fedjax_ht.core.contract import require_public_set
from fedjax_ht.core.evaluation import EvaluationRequest, ScoredState
from fedjax_ht.core.federation import (
    Federation,
    all_weights,
    with_frozen_variables,
    with_new_clients,
    without_weights,
)
from fedjax_ht.core.function_keys import checksum_of, sum_of_arrays
from fedjax_ht.core.mesh import client_mesh, collect, server_copy, share, spread
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import RunServer
from fedjax_ht.core.samples import PUBLIC, Data, Split
from fedjax_ht.core.task import CLASSIFICATION
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import FederationData, pooled_of, with_public
from fedjax_ht.metrics.flops import data_form, work_flops
from fedjax_ht.simulation.engine import BucketPrograms, Engine, make_engine
from fedjax_ht.simulation.options import SimulationOptions, draw_new_clients
from fedjax_ht.simulation.roster import Roster, make_rosters


def frozen_weights(federation: Federation) -> PyTree:
    """Returns bucket name -> its `bucket.frozen_of`; () if no model has frozen weights."""
    if not any(bucket.freezes for bucket in federation.buckets):
        return ()
    return {bucket.name: frozen_of(bucket) for bucket in federation.buckets}


def shown_to_server(
    method: Method, on_server: Data, samples: Data, pooled: dict[str, Split]
) -> Data | None:
    """Returns the samples that a server reads, or None.

    These are the public set, and all clients' samples if the method needs them
    (`Needs.clients_data`).

    Args:
      method: the method.
      on_server: the data without splits, on the server's device.
      samples: the data with the public set as a split, if there is one, on all devices.
      pooled: all clients' samples as one split.
    """
    if not (method.needs.clients_data or samples.splits):
        return None
    splits = server_copy(samples.splits)
    if method.needs.clients_data:
        splits = splits | {"train": pooled["train"]}
    return on_server._replace(splits=splits)


class Placed(NamedTuple):
    """Arrays that runs on the same data share.

    Attributes:
      host: the samples without splits, the `frozen_weights` and `Pretrained.variables`, as passed
        in.
      mesh: the devices.
      samples: the samples on all devices.
      frozen: the frozen weights on all devices.
      on_server: the samples on the server's device.
      pretrained: the variables on the server's device.
    """

    host: tuple[Data, PyTree, PyTree]
    mesh: Mesh
    samples: Data
    frozen: PyTree
    on_server: Data
    pretrained: PyTree


def place(
    mesh: Mesh, method: Method, federation: Federation, data: FederationData, beside: Placed | None
) -> Placed:
    """Places samples, frozen weights and pretrained variables on the devices.

    Arrays that another run, `beside`, has placed are reused.
    """
    of_any = next(iter(data.buckets.values()))  # all have the same inputs and labels
    host = of_any._replace(splits={}), frozen_weights(federation), method.needs.pretrained.variables
    known = {}
    if beside is not None and beside.mesh == mesh:
        on_devices = beside.samples, beside.frozen, beside.pretrained
        known = dict(zip(map(id, jax.tree.leaves(beside.host)), jax.tree.leaves(on_devices)))

    def once(put: Callable, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: known[id(x)] if id(x) in known else put(mesh, x), tree)

    samples, frozen, pretrained = once(share, host[0]), once(share, host[1]), once(collect, host[2])
    return Placed(host, mesh, samples, frozen, server_copy(samples), pretrained)


class Clients(NamedTuple):
    """One bucket's clients.

    Attributes:
      roster: the positions of their states.
      data: the clients' data, on all devices.
      programs: the engine's programs for the bucket.
    """

    roster: Roster
    data: Data
    programs: BucketPrograms


# For each state that an evaluation scores: whether clients receive the newest downlink first.
RECEIVED: dict[ScoredState, tuple[bool, ...]] = {
    "received": (True,),
    "trained": (False,),
    "both": (True, False),
}


class Program(NamedTuple):
    """The parts of a simulation that its rounds share.

    Attributes:
      engine: the compiled programs.
      federation: the buckets.
      data: the clients' data.
      options: the options of the federation.
      mesh: the devices.
      seed: the root seed, uint32 scalar, NumPy.
      settings: the method's settings, float32 scalars, NumPy; () if none vary.
      placed: the arrays that another run on the same data may share.
      clients: bucket name -> its clients.
      after_training: the request that scores a round's participants after training, before the next
        downlink.
      nothing: the request that scores nothing.
      new: bool [num_clients], the clients that never train, see `SimulationOptions.new_share`.
      in_evaluation: the requests that score clients in an evaluation, one per scored state, the
        reported one first.
      server: the server's compiled step and its inputs.
      pooled: all clients' samples as one split, to score a model that only the server holds.
      flops: () -> `client_flops` of the simulation; counted once.
      sums: () -> `simulation_sums`; computed once.
    """

    engine: Engine
    federation: Federation
    data: FederationData
    options: SimulationOptions
    mesh: Mesh
    seed: np.ndarray
    settings: PyTree
    placed: Placed
    clients: dict[str, Clients]
    after_training: EvaluationRequest
    nothing: EvaluationRequest
    new: np.ndarray
    in_evaluation: tuple[EvaluationRequest, ...]
    server: RunServer
    shown: Data | None
    pooled: dict[str, Split]
    flops: Callable[[], np.ndarray]
    sums: Callable[[], dict[str, str]]

    @property
    def method(self) -> Method:
        """The method as its clients run it, wrapped in the defences."""
        return self.engine.method

    def run_server(self, state: PyTree) -> RunServer:
        """Returns the server with this state, on the server's device."""
        return self.server._replace(state=state, frozen=server_copy(self.placed.frozen))


def bind(
    method: Method,
    federation: Federation,
    data: FederationData,
    *,
    options: SimulationOptions,
    settings: PyTree = (),
    beside: Placed | None = None,
) -> Program:
    """Binds the parts that a run shares.

    Arguments are as for `simulation.make_simulation`. Device arrays of `beside` are reused if they
    are copies of the same host arrays.
    """
    numbers = _checked_settings(method, settings)
    _require_classes(options, federation)
    if options.scoring.neighbours is not None and method.view.features is None:
        raise ValueError(
            f"scoring.neighbours compares features, but {method.name} has none; remove it"
        )
    sums = functools.partial(simulation_sums, method, federation, data, options, numbers)
    federation, data = _for_method(method, with_frozen_variables(federation), data)
    new = np.zeros(federation.num_clients, bool)
    if options.new_share:
        federation = with_new_clients(federation, options.new_share)
        new = draw_new_clients(options.seed, federation)
        data = data._replace(pooled=pooled_of(data, federation, np.flatnonzero(~new)))
    mesh = client_mesh(options.devices)
    batch_size = evaluation_batch(federation, options, data)
    engine = make_engine(method, federation, options, mesh=mesh, batch_size=batch_size)
    if options.devices_profile is not None:
        options.devices_profile.check(engine.method, federation.num_clients)
    if options.privacy is not None:
        from fedjax_ht.trust.epsilon import accounting

        accounting()
    public = {} if federation.public is None else {PUBLIC: data.public}
    arrays = place(mesh, method, federation, data, beside)
    samples = arrays.samples._replace(splits=share(mesh, public))
    pooled, root_seed = collect(mesh, data.pooled), np.array(options.seed, np.uint32)
    shown = shown_to_server(method, arrays.on_server, samples, pooled)
    rosters = make_rosters(federation, data.counts["train"], method, options, mesh)
    clients = {}
    for name, programs in engine.buckets.items():
        of_bucket = samples._replace(splits=spread(mesh, data.buckets[name].splits))
        clients[name] = Clients(rosters[name], of_bucket, programs)
    splits = _scored_splits(data, options)

    def request(received, scored, epochs=None):
        chosen: dict[str, Any] = {s: np.bool_(s in scored) for s in splits}
        return spread(mesh, EvaluationRequest(np.bool_(received), chosen, epochs))

    epochs = options.scoring.adapt_epochs and np.int32(options.scoring.adapt_epochs)
    states = RECEIVED[options.scoring.state]
    return Program(
        engine=engine,
        federation=federation,
        data=data,
        options=options,
        mesh=mesh,
        seed=root_seed,
        settings=numbers,
        placed=arrays,
        clients=clients,
        after_training=request(False, ("test",)),
        nothing=request(False, ()),
        new=new,
        in_evaluation=tuple(request(it, splits, epochs if it else None) for it in states),
        server=RunServer((), *collect(mesh, (root_seed, numbers))),
        shown=shown,
        pooled=pooled,
        flops=functools.cache(functools.partial(client_flops, engine, federation, data)),
        sums=functools.cache(sums),
    )


def _require_classes(options: SimulationOptions, federation: Federation) -> None:
    """Raises ValueError for options that need classes in a federation of another task."""
    chosen = {
        "scoring.auc": options.scoring.auc,
        "scoring.neighbours": options.scoring.neighbours,
        "attack.kind 'label_flip'": options.attack.kind == "label_flip",
    }
    for name, is_on in chosen.items():
        if is_on and federation.task != CLASSIFICATION:
            raise ValueError(f"{name} is for classes, not for {federation.task.name}; remove it")


def simulation_sums(
    method: Method,
    federation: Federation,
    data: FederationData,
    options: SimulationOptions,
    settings: PyTree,
) -> dict[str, str]:
    """Returns part -> SHA-256 of everything that a simulation's results depend on.

    Arguments are as for `bind`. Options of execution (lanes, devices, ...) do not affect them.
    """
    of_any = next(iter(data.buckets.values()))  # all have the same inputs and labels
    samples = sum_of_arrays((*jax.tree.leaves(of_any.inputs), of_any.labels))
    splits = [data.buckets[name].splits for name in sorted(data.buckets)]
    split = sum_of_arrays(map(np.atleast_1d, jax.tree.leaves((splits, data.public))))
    buckets = [(x.name, x.module, x.shared, x.width) for x in federation.buckets]
    models = buckets, federation.global_model, all_weights(federation)
    chosen = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    for name in ("lanes", "devices", "client_store", "time_stages"):
        del chosen[name]
    chosen["scoring"] = options.scoring.state, options.scoring.global_statistics
    return {
        "data": f"{samples} {checksum_of(of_any.preprocess)}",
        "split": split,
        "models": checksum_of((models, tuple(federation.assignment))),
        "training": checksum_of(method.training),
        "method": checksum_of(method),
        "options": checksum_of((chosen, settings)),
    }


def _for_method(
    method: Method, federation: Federation, data: FederationData
) -> tuple[Federation, FederationData]:
    """Returns federation and data with the public set, for a method that reads one.

    For other methods, the federation has none.
    """
    if not method.needs.public_samples:
        return dataclasses.replace(federation, public=None), data
    federation = dataclasses.replace(federation, public=data.public_set)
    require_public_set(method, federation)
    return federation, with_public(data)


def _scored_splits(data: FederationData, options: SimulationOptions) -> tuple[str, ...]:
    """Returns the splits that an evaluation scores: those in which any client has samples."""
    splits = ("test", "val")
    if options.scoring.train:
        splits += ("train",)
    return tuple(split for split in splits if data.counts[split].any())


def _checked_settings(method: Method, settings: PyTree) -> PyTree:
    """Returns the settings as float32.

    Raises:
      ValueError: a setting is not a single number; or the method varies and no settings are given,
        or vice versa.
    """
    numbers = jax.tree.map(functools.partial(np.asarray, dtype=np.float32), settings)
    for path, number in jax.tree_util.tree_leaves_with_path(numbers):
        if number.shape:
            raise ValueError(
                f"settings{jax.tree_util.keystr(path)} has {list(number.shape)} values; a run "
                "takes one of each: make a simulation for each value"
            )
    varies, name = method.vary is not None, method.name
    if varies and not jax.tree.leaves(numbers):
        raise ValueError(f"{name} has settings that vary, but none are given; pass settings")
    if jax.tree.leaves(numbers) and not varies:
        raise ValueError(
            f"settings are given, but {name} has none that vary; make it with fl.varied"
        )
    return numbers


def client_flops(engine: Engine, federation: Federation, data: FederationData) -> np.ndarray:
    """Counts each client's FLOPs in a round of training, float64 [num_clients].

    It traces every architecture, see `metrics.flops`.
    """
    flops = np.zeros(federation.num_clients)
    for bucket in without_weights(federation).buckets:  # the engine caches by bucket
        of_bucket = data.buckets[bucket.name]
        work = engine.work(bucket, data_form(of_bucket))
        flops[list(federation.members(bucket))] = work_flops(work, of_bucket)
    return flops


def evaluation_batch(
    federation: Federation, options: SimulationOptions, data: FederationData | None = None
) -> int:
    """Returns the samples per forward pass when scoring.

    It is at most a client's number of samples in `data`, unless norms may depend on it.
    """
    if options.scoring.batch_size or federation.global_model is not None:
        return options.scoring.batch_size or 64
    if data is None:
        return forward_batch()
    return max(1, min(forward_batch(), data.most_scored))
