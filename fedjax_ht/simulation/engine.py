"""Engines: the compiled programs of a method on a federation, without data, split, seed or
settings.

A process keeps engines by all that programs depend on, so that a second simulation of the same
kind compiles nothing (docs/decisions/0049-kept-programs.md).
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh

from fedjax_ht.core import wire
from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.compiling import buckets_on_mesh, compiled, enable_compilation_cache
from fedjax_ht.core.contract import guarded, require_server_statistics
from fedjax_ht.core.evaluation import (
    NormStatistics,
    bucket_evaluation,
    client_evaluation,
    global_evaluation,
    received_state,
)
from fedjax_ht.core.federation import Federation, put_all_weights, without_weights
from fedjax_ht.core.function_keys import Keyed, key_of
from fedjax_ht.core.keys import Purpose, round_key
from fedjax_ht.core.message_forms import keeps_state, uplink_forms
from fedjax_ht.core.method import Method, View
from fedjax_ht.core.round import Channel, bucket_round
from fedjax_ht.core.samples import Data
from fedjax_ht.core.states import first_states
from fedjax_ht.core.trees import PyTree
from fedjax_ht.metrics.flops import bucket_work
from fedjax_ht.simulation.roster import ClientStore, device_store, no_store
from fedjax_ht.simulation.serving import run_server
from fedjax_ht.trust.options import Attack, Defence, Exposure, Privacy

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
      client_store: "device" or "host".
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
      keeps: True if a state outlives the round, see `keeps_state`, or an evaluation scores
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
    hidden, known = guarded(blueprint.method), None
    if blueprint.attack.kind is not None or blueprint.privacy is not None:
        from fedjax_ht.trust.hardening import concealed

        hidden = concealed(hidden, blueprint.attack, blueprint.privacy, federation.num_clients)
    if blueprint.privacy is not None:
        from fedjax_ht.trust.disclosure import exposure

        known = exposure(hidden, federation)
    method = _defended(hidden, blueprint.robust)
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
            store=_store(blueprint.client_store, mesh) if keep else no_store(mesh),
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
        exposure=known,
    )


def _store(name: str, mesh: Mesh) -> ClientStore:
    if name == "device":
        return device_store(mesh)
    from fedjax_ht.simulation.host_store import host_store

    return host_store(mesh)


def _defended(method: Method, robust: Sequence[Defence]) -> Method:
    if not robust:
        return method
    from fedjax_ht.trust.defences import defended

    return defended(method, robust)


def _memory_maps() -> int:
    """Returns how many memory maps this process has; 0 where that is not known."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


KEPT_PARTS = 64  # in a process, of all engines

# Functions of a method that a part calls; () is all of them.
ALL: tuple[str, ...] = ()
FIRST_STATE = ("init_client",)
FIRST_SERVER = ("init_server",)
STATE = ("init_server", "init_client", "broadcast", "receive")
SCORES = (*STATE, "predict")
GLOBAL_SCORES = ("global_model",)
# Attacks and privacy leave these as they are.
UNTOUCHED = frozenset([*FIRST_STATE, *FIRST_SERVER, *GLOBAL_SCORES])
FUNCTIONS = (*SCORES, *GLOBAL_SCORES, "client_update", "server_update", "check")


def made_by(method: Method) -> Any:
    """Returns what programs depend on of a method."""
    # Numbers that vary are arguments, as are pretrained variables.
    bare = method.needs.pretrained._replace(variables=())
    return method.vary or method._replace(needs=method.needs._replace(pretrained=bare))


def shared_parts(
    hidden: Method, federation: Federation, made: Any, attack: Attack, privacy: Privacy | None
) -> Callable:
    """Returns the function (make, uses, *further) that makes a part of an engine, or finds it.

    A part is `make(hidden, federation, *further)`. Where it uses some functions alone, it gets a
    method that has nothing else, and is found by these.

    Args:
      hidden: the method behind attack and privacy, see `trust.hardening.concealed`.
      federation: the buckets.
      made: the method's own `made_by`.
      attack, privacy: the attack and the privacy around the method.
    """
    # A method that varies is made anew for its numbers, with all functions at once.
    is_fixed, is_plain = isinstance(made, Method), attack.kind is None and privacy is None

    def part(make: Callable, uses: tuple[str, ...], *further: Any) -> Any:
        method, depends = hidden, (made, attack, privacy)
        if uses and is_fixed and (is_plain or UNTOUCHED.issuperset(uses)):
            method, depends = _only(hidden, uses), _only(made, uses)
        key = key_of((depends, federation, further))
        return _part(make, Keyed((method, federation, *further), key))

    return part


def forget_parts() -> None:
    """Frees the parts that no simulation uses any more."""
    _part.cache_clear()


@functools.lru_cache(KEPT_PARTS)
def _part(make: Callable, arguments: Keyed) -> Any:
    return make(*arguments.value)


def _only(method: Method, uses: Sequence[str]) -> Method:
    """Returns the method with these functions alone: a part that needs another one ends at it."""
    without: dict[str, Any] = {name: None for name in FUNCTIONS if name not in uses}
    return method._replace(training=None, recipes=(), view=View(), **without)


def training(
    method: Method,
    federation: Federation,
    channel: Channel,
    keeps: tuple[bool, ...],
    mesh: Mesh,
    size: int,
) -> Callable:
    """Returns `Engine.train`; `keeps` is that of each bucket, `size` the samples of a forward pass
    that scores."""
    runs = {}
    for bucket, keep in zip(federation.buckets, keeps):
        bound = method, federation, bucket, channel
        # Clients that keep nothing are scored where they train, before their models are gone.
        runs[bucket.name] = bucket_round(*bound, None if keep else client_evaluation(*bound, size))
    return buckets_on_mesh(runs, mesh, donate=True)


def scoring(
    method: Method,
    federation: Federation,
    channel: Channel,
    keeps: tuple[bool, ...],
    mesh: Mesh,
    size: int,
    auc: bool,
) -> Callable:
    """Returns `Engine.score`; `keeps` is that of each bucket."""
    runs = {}
    for bucket, keep in zip(federation.buckets, keeps):
        bound = method, federation, bucket, channel
        runs[bucket.name] = bucket_evaluation(*bound, size, keep, auc=auc)
    return buckets_on_mesh(runs, mesh, donate=False)


def first_server(method: Method, federation: Federation) -> Callable:
    """Returns (root seed, settings, `all_weights` of the federation) -> the server's first state;
    compiled."""

    def init(seed, settings, weights):
        key = round_key(jax.random.key(seed), Purpose.INIT_SERVER, 0)
        return method.at(settings).init_server(put_all_weights(federation, weights), key)

    return compiled(init)


def serving(
    method: Method, federation: Federation, robust: Sequence[Defence], bound: float
) -> Callable:
    """Returns `Engine.serve`."""
    return run_server(_defended(method, robust), federation, bound)


def global_scoring(
    method: Method, federation: Federation, statistics: NormStatistics, size: int, auc: bool
) -> Callable:
    """Returns `Engine.score_global`."""
    return compiled(global_evaluation(method, federation, statistics, size, auc=auc))


def remembered_forms(method: Method, federation: Federation, channel: Channel) -> Callable:
    """Returns `Engine.uplink_forms`."""
    return functools.cache(functools.partial(uplink_forms, method, federation, channel))


def remembered_work(method: Method, federation: Federation) -> Callable:
    """Returns `Engine.work`."""
    traced: dict[Hashable, ClosedJaxpr] = {}

    def work(bucket: Bucket, form: Data) -> ClosedJaxpr:
        leaves, structure = jax.tree.flatten(form)
        key = bucket.name, structure, tuple((x.shape, x.dtype) for x in leaves)
        if key not in traced:
            traced[key] = bucket_work(method, federation, bucket, form)
        return traced[key]

    return work
