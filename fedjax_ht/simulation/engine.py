"""Engines: compiled programs of a method on a federation, without data, split, seed or settings.

A process caches their parts by everything that each depends on, so that a second simulation of the
same kind compiles nothing (docs/decisions/0049-kept-programs.md).
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh

from fedjax_ht.core import wire
from fedjax_ht.core.bucket import Bucket, put_weights
from fedjax_ht.core.compiling import (
    buckets_on_mesh,
    compiled,
    enable_compilation_cache,
    on_mesh,
)
from fedjax_ht.core.contract import guarded, require_server_statistics, require_task
from fedjax_ht.core.evaluation import (
    FurtherRules,
    Scoring,
    bucket_evaluation,
    client_evaluation,
    client_outputs,
    global_evaluation,
    received_state,
)
from fedjax_ht.core.federation import Federation, put_all_weights, without_weights
from fedjax_ht.core.function_keys import Keyed, key_of, keyed
from fedjax_ht.core.keys import Purpose, client_key, round_key
from fedjax_ht.core.mesh import REPLICATED, SHARDED
from fedjax_ht.core.message_forms import keeps_state, uplink_forms
from fedjax_ht.core.method import Method, View
from fedjax_ht.core.round import Channel, any_state, bucket_round
from fedjax_ht.core.samples import Data
from fedjax_ht.core.trees import PyTree, strongly_typed
from fedjax_ht.metrics.flops import bucket_work
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.roster import ClientStore, device_store, no_store
from fedjax_ht.simulation.serving import run_server
from fedjax_ht.trust.options import Attack, Defence, Exposure, Privacy

KEPT_PARTS = 256  # per process, over all engines
MOST_MAPS = 32_000  # memory maps of a process; Linux allows 65,530, and each program takes some

# Functions of a method that a part calls; () means all of them.
ALL: tuple[str, ...] = ()
FIRST_STATE = ("init_client",)
FIRST_SERVER = ("init_server",)
STATE = ("init_server", "init_client", "broadcast", "receive")
SCORES = (*STATE, "predict")
ADAPTED = (*SCORES, "client_update")
GLOBAL_SCORES = ("global_model",)
# Attacks and privacy do not change these.
UNTOUCHED = frozenset([*FIRST_STATE, *FIRST_SERVER, *GLOBAL_SCORES])
FUNCTIONS = (*SCORES, *GLOBAL_SCORES, "client_update", "server_update", "check")


class BucketPrograms(NamedTuple):
    """Programs of one bucket's clients.

    Attributes:
      keeps: True if a state outlives the round, see `keeps_state`, or an evaluation scores
        the trained state.
      first_states: the compiled `first_states`.
      store: the store of the clients' states between rounds.
      received: the compiled `evaluation.received_state`; None if `keeps`.
    """

    keeps: bool
    first_states: Callable
    store: ClientStore
    received: Callable | None


class Engine(NamedTuple):
    """Programs, each compiled at its first call for arguments of new shapes.

    Attributes:
      method: the method as its clients run it, see `trust.privacy.concealed`, wrapped in the
        defences.
      channel: transforms of the messages on the wire.
      buckets: bucket name -> programs of its clients.
      train: `round.bucket_round` of all buckets on the mesh; the states are donated.
      score: `evaluation.bucket_evaluation` of all buckets on the mesh.
      first_server: the compiled `first_server`.
      serve: the compiled `serving.run_server`.
      score_global: `evaluation.global_evaluation`.
      uplink_forms: () -> {bucket name: form of its uplinks}; traced once.
      work: (Bucket, `flops.data_form` of its data) -> `flops.bucket_work`; traced once per form.
      exposure: what uploads reveal besides their numbers, see `disclosure.exposure`; None without
        privacy.
      outputs: (Bucket, rule or None for features, batch size) -> the compiled
        `evaluation.client_outputs`.
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
    outputs: Callable[[Bucket, str | None, int], Callable]


def make_engine(
    method: Method,
    federation: Federation,
    options: SimulationOptions,
    *,
    mesh: Mesh,
    batch_size: int,
) -> Engine:
    """Returns an engine, reusing parts that this process has cached.

    Args:
      method: the method as its factory made it.
      federation: the buckets; their weights are an argument of the programs.
      options: the options of the federation.
      mesh: the devices.
      batch_size: samples per forward pass when scoring.

    Raises:
      ValueError: the method cannot run on this federation.
    """
    if _memory_maps() > MOST_MAPS:
        forget_engines()
    enable_compilation_cache()
    federation, wanted = without_weights(federation), options.scoring
    part = shared_parts(method, federation, options.attack, options.privacy)
    channel = Channel(wire.chain(options.uplink), wire.chain(options.downlink))
    engine_method = part(fitting, ALL, options.robust)
    buckets, keeps = {}, []
    for bucket in federation.buckets:
        # "trained" evaluation needs the trained state, even if the next downlink overwrites it.
        keep = wanted.state != "received" or part(keeps_state, STATE, bucket, channel)
        store = options.client_store if keep else "none"
        buckets[bucket.name] = BucketPrograms(
            keeps=keep,
            first_states=part(first_states, FIRST_STATE, bucket, mesh),
            store=_part(_store, keyed((store, mesh))),
            received=None if keep else part(received_state, STATE, bucket, channel),
        )
        keeps.append(keep)
    where = channel, tuple(keeps), mesh
    return Engine(
        method=engine_method,
        channel=channel,
        buckets=buckets,
        # Only clients that keep nothing are scored in the training program, with this size.
        train=part(training, ALL, *where, 0 if all(keeps) else batch_size),
        score=part(scoring, _scored_by(wanted), *where, batch_size, wanted.auc, _further(wanted)),
        first_server=part(first_server, FIRST_SERVER),
        serve=part(serving, ALL, options.robust, options.outlier_bound),
        score_global=part(
            global_evaluation, GLOBAL_SCORES, wanted.global_statistics, batch_size, wanted.auc
        ),
        # Traced at the first call, and cached like all parts.
        uplink_forms=functools.partial(part, uplink_forms, ALL, channel),
        work=functools.partial(part, bucket_work, ALL),
        exposure=None if options.privacy is None else part(_exposure, ALL),
        outputs=functools.partial(part, client_outputs, ALL, channel, wanted),
    )


def forget_engines() -> None:
    """Clears the cache, which frees programs that no simulation uses."""
    _part.cache_clear()


def shared_parts(
    method: Method, federation: Federation, attack: Attack, privacy: Privacy | None
) -> Callable:
    """Returns the function (make, uses, *further) that makes a part of an engine, or finds it.

    A part is `make(hidden, federation, *further)`, where `hidden` is the method with attack and
    privacy. If a part uses only some functions, it gets a method with only these, and they alone
    identify it in the cache.
    """
    # Settings are arguments, as are pretrained variables. A method that varies makes all its
    # functions at once from its settings.
    is_fixed, is_plain = method.vary is None, attack.kind is None and privacy is None
    bare = method.needs.pretrained._replace(variables=())
    made = method._replace(needs=method.needs._replace(pretrained=bare))
    hidden = guarded(method)
    if not is_plain:
        from fedjax_ht.trust.privacy import concealed

        hidden = concealed(hidden, attack, privacy, federation.num_clients)
    place = key_of(federation)
    whole = key_of((made if is_fixed else method.vary, attack, privacy))

    def part(make: Callable, uses: tuple[str, ...], *further: Any) -> Any:
        with_uses, depends = hidden, whole
        if uses and is_fixed and (is_plain or UNTOUCHED.issuperset(uses)):
            with_uses, depends = _only(hidden, uses), key_of(_only(made, uses))
        key = depends, place, key_of(further)
        return _part(make, Keyed((with_uses, federation, *further), key))

    return part


def _scored_by(scoring: Scoring) -> tuple[str, ...]:
    """Returns the functions of a method that scoring calls."""
    if scoring.neighbours is not None:
        return ALL
    return SCORES if scoring.adapt_epochs is None else ADAPTED


def _further(scoring: Scoring) -> FurtherRules | None:
    if scoring.neighbours is None:
        return None
    from fedjax_ht.metrics.neighbours import neighbour_rules

    return functools.partial(neighbour_rules, scoring.neighbours)


@functools.lru_cache(KEPT_PARTS)
def _part(make: Callable, arguments: Keyed) -> Any:
    return make(*arguments.value)


def _only(method: Method, uses: Sequence[str]) -> Method:
    """Returns the method with only these functions; a part that calls another one fails."""
    without: dict[str, Any] = {name: None for name in FUNCTIONS if name not in uses}
    return method._replace(training=None, recipes=(), view=View(), **without)


def _store(name: str, mesh: Mesh) -> ClientStore:
    if name == "none":
        return no_store(mesh)
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
    """Returns the number of memory maps of this process; 0 if unknown."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def fitting(method: Method, federation: Federation, robust: Sequence[Defence]) -> Method:
    """Returns `Engine.method`, after checking that it can run on the federation."""
    method = _defended(method, robust)
    require_task(method, federation)
    method.check(federation)
    require_server_statistics(method, federation)
    return method


def _exposure(method: Method, federation: Federation) -> Exposure | None:
    from fedjax_ht.trust.disclosure import exposure

    return exposure(method, federation)


def first_states(method: Method, federation: Federation, bucket: Bucket, mesh: Mesh) -> Callable:
    """Returns the compiled function that makes clients' first states.

    It is (client ids int32 [P], sharded; root seed uint32 scalar, settings, `weights_of` the
    bucket, on all devices) -> states [P], sharded.
    """

    def local(client_ids, seed, settings, weights):
        weighted = put_weights(bucket, weights)

        def first_state(client_id):
            key = client_key(jax.random.key(seed), Purpose.INIT_CLIENT, 0, client_id)
            return strongly_typed(any_state(method.at(settings), weighted, key, federation))

        return lax.map(first_state, client_ids)

    specs = (SHARDED, REPLICATED, REPLICATED, REPLICATED)
    return on_mesh(local, mesh, trains=False, specs=specs)


def training(
    method: Method,
    federation: Federation,
    channel: Channel,
    keeps: tuple[bool, ...],
    mesh: Mesh,
    size: int,
) -> Callable:
    """Returns `Engine.train`.

    `keeps` has each bucket's `BucketPrograms.keeps`; `size` is the samples per forward pass when
    scoring.
    """
    runs = {}
    for bucket, keep in zip(federation.buckets, keeps):
        bound = method, federation, bucket, channel
        # Clients that keep nothing are scored right after training, while their models exist.
        runs[bucket.name] = bucket_round(*bound, None if keep else client_evaluation(*bound, size))
    return buckets_on_mesh(runs, mesh, trains=True)


def scoring(
    method: Method,
    federation: Federation,
    channel: Channel,
    keeps: tuple[bool, ...],
    mesh: Mesh,
    size: int,
    auc: bool,
    further: FurtherRules | None,
) -> Callable:
    """Returns `Engine.score`; `keeps` and `size` are as for `training`."""
    runs, beside = {}, {"auc": auc, "further": further}
    for bucket, keep in zip(federation.buckets, keeps):
        score = client_evaluation(method, federation, bucket, channel, size, keep, **beside)
        runs[bucket.name] = bucket_evaluation(score)
    return buckets_on_mesh(runs, mesh, trains=False)


def first_server(method: Method, federation: Federation) -> Callable:
    """Returns the compiled function that makes the server's first state.

    Its arguments are (root seed, settings, `all_weights` of the federation).
    """

    def init(seed, settings, weights):
        key = round_key(jax.random.key(seed), Purpose.INIT_SERVER, 0)
        weighted = put_all_weights(federation, weights)
        return strongly_typed(method.at(settings).init_server(weighted, key))

    return compiled(init, quick=True)


def serving(
    method: Method, federation: Federation, robust: Sequence[Defence], bound: float
) -> Callable:
    """Returns `Engine.serve`."""
    return run_server(_defended(method, robust), federation, bound)
