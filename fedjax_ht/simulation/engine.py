"""Engines: the compiled programs of a method on a federation, without data, split, seed or
settings.

A process keeps engines by all that programs depend on, so that a second simulation of the same
kind compiles nothing (docs/decisions/0049-kept-programs.md).
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import NamedTuple

from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh

from fedjax_ht.core import wire
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.compiling import enable_compilation_cache
from fedjax_ht.core.evaluation import received_state
from fedjax_ht.core.federation import Federation, without_weights
from fedjax_ht.core.forms import keeps_state
from fedjax_ht.core.function_keys import Keyed, key_of
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Channel
from fedjax_ht.core.samples import Data
from fedjax_ht.core.scoring_options import NormStatistics
from fedjax_ht.core.server_statistics import require_server_statistics
from fedjax_ht.core.states import first_states
from fedjax_ht.core.trees import PyTree
from fedjax_ht.simulation.parts import (
    ALL,
    FIRST_SERVER,
    FIRST_STATE,
    GLOBAL_SCORES,
    SCORES,
    STATE,
    first_server,
    forget_parts,
    global_scoring,
    made_by,
    remembered_forms,
    remembered_work,
    scoring,
    serving,
    shared_parts,
    training,
)
from fedjax_ht.simulation.store import STORES, ClientStore, no_store
from fedjax_ht.trust.attacks import Attack
from fedjax_ht.trust.defences import Defence, defended
from fedjax_ht.trust.disclosure import Exposure, exposure
from fedjax_ht.trust.hardening import concealed
from fedjax_ht.trust.privacy import Privacy

KEPT = 16  # engines in a process
MOST_MAPS = 32_000  # memory maps of a process; Linux lets it have 65,530, and a program takes some


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """All that the programs of an engine depend on; anything else is their argument.

    Attributes:
      method: the method as its factory made it.
      federation: the buckets; their weights are an argument.
      mesh: the devices.
      batch_size: samples of a forward pass that scores.
      keep_trained: True if clients keep what their training left, because an evaluation scores it.
      client_store: name in `STORES`.
      auc: True if evaluations compute the AUC, too.
      statistics: the statistics that norms of the server's model take in its evaluation.
      outlier_bound: `SimulationOptions.refuse_outliers`, 0 beside `privacy`.
      uplink, downlink, attack, privacy, robust: the fields of `SimulationOptions`.
    """

    method: Method
    federation: Federation
    mesh: Mesh
    batch_size: int
    keep_trained: bool
    client_store: str
    auc: bool
    statistics: NormStatistics
    outlier_bound: float
    uplink: tuple[wire.Transform, ...]
    downlink: tuple[wire.Transform, ...]
    attack: Attack
    privacy: Privacy | None
    robust: tuple[Defence, ...]


class BucketPrograms(NamedTuple):
    """Programs of one bucket's clients.

    Attributes:
      keeps: True if a state outlives the round, see `forms.keeps_state`, or an evaluation scores
        the state that training left.
      first_states: the compiled `states.first_states`.
      store: the store of the clients' states between rounds.
      received: the compiled `evaluation.received_state`; None where `keeps`.
    """

    keeps: bool
    first_states: Callable
    store: ClientStore
    received: Callable | None


class Engine(NamedTuple):
    """Programs, each compiled at its first call for arguments of new shapes.

    Attributes:
      method: the method as its clients run it, see `trust.hardening.concealed`, with the defences
        around it.
      channel: transforms of the messages on the wire.
      buckets: bucket name -> programs of its clients.
      train: `round.bucket_round` of all buckets on the mesh; the states are donated.
      score: `evaluation.bucket_evaluation` of all buckets on the mesh.
      first_server: the compiled `first_server`.
      serve: the compiled `serving.run_server`.
      score_global: the compiled `evaluation.global_evaluation`.
      uplink_forms: () -> bucket name -> form of its uplinks; traced once.
      work: (Bucket, the `flops.data_form` of its data) -> `flops.bucket_work`; traced once a form.
      exposure: the knowledge that uploads give besides their numbers, see `disclosure.exposure`;
        None where nothing is private.
    """

    method: Method
    channel: Channel
    buckets: dict[str, BucketPrograms]
    train: Callable
    score: Callable
    first_server: Callable
    serve: Callable
    score_global: Callable
    uplink_forms: Callable[[], dict[str, PyTree]]
    work: Callable[[Bucket, Data], ClosedJaxpr]
    exposure: Exposure | None


def make_engine(blueprint: Blueprint) -> Engine:
    """Returns the programs of a blueprint: those that an equal one had before, while they are kept.

    Raises:
      ValueError: the method cannot run on this federation.
    """
    if _memory_maps() > MOST_MAPS:
        forget_engines()
    return _engine(Keyed(blueprint, blueprint_key(blueprint)))


def forget_engines() -> None:
    """Frees the programs that no simulation uses any more."""
    _engine.cache_clear()
    forget_parts()


def blueprint_key(blueprint: Blueprint) -> Hashable:
    """Returns a key that two blueprints with the same programs share."""
    return key_of((made_by(blueprint.method), dataclasses.replace(blueprint, method=None)))


@functools.lru_cache(KEPT)
def _engine(blueprint: Keyed) -> Engine:
    return _new_engine(blueprint.value)


def _new_engine(blueprint: Blueprint) -> Engine:
    enable_compilation_cache()
    federation, mesh = without_weights(blueprint.federation), blueprint.mesh
    hidden = concealed(
        blueprint.method, blueprint.attack, blueprint.privacy, federation.num_clients
    )
    method = defended(hidden, blueprint.robust)
    method.check(federation)
    require_server_statistics(method, federation)
    channel = Channel(wire.chain(blueprint.uplink), wire.chain(blueprint.downlink))
    part = shared_parts(
        hidden, federation, made_by(blueprint.method), blueprint.attack, blueprint.privacy
    )
    buckets, keeps = {}, []
    for bucket in federation.buckets:
        keep = blueprint.keep_trained or part(keeps_state, STATE, bucket, channel)
        buckets[bucket.name] = BucketPrograms(
            keeps=keep,
            first_states=part(first_states, FIRST_STATE, bucket, mesh),
            store=STORES[blueprint.client_store](mesh) if keep else no_store(mesh),
            received=None if keep else part(received_state, STATE, bucket, channel),
        )
        keeps.append(keep)
    size, auc = blueprint.batch_size, blueprint.auc
    where = channel, tuple(keeps), mesh
    return Engine(
        method=method,
        channel=channel,
        buckets=buckets,
        # Only clients that keep nothing are scored where they train, and so by this size.
        train=part(training, ALL, *where, 0 if all(keeps) else size),
        score=part(scoring, SCORES, *where, size, auc),
        first_server=part(first_server, FIRST_SERVER),
        serve=part(serving, ALL, blueprint.robust, blueprint.outlier_bound),
        score_global=part(global_scoring, GLOBAL_SCORES, blueprint.statistics, size, auc),
        uplink_forms=part(remembered_forms, ALL, channel),
        work=part(remembered_work, ALL),
        exposure=None if blueprint.privacy is None else exposure(hidden, federation),
    )


def _memory_maps() -> int:
    """Returns how many memory maps this process has; 0 where that is not known."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0
