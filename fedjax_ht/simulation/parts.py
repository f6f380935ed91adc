"""Parts of engines: compiled functions, each kept by what it depends on itself.

Engines that differ in a defence, a store or a learning rate share the parts that know nothing of
it (docs/decisions/0049-kept-programs.md).
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh

from fedjax_ht.core.bucket import Bucket
from fedjax_ht.core.compiling import buckets_on_mesh, compiled
from fedjax_ht.core.evaluation import bucket_evaluation, client_evaluation, global_evaluation
from fedjax_ht.core.federation import Federation, put_all_weights
from fedjax_ht.core.forms import uplink_forms
from fedjax_ht.core.function_keys import Keyed, key_of
from fedjax_ht.core.keys import Purpose, round_key
from fedjax_ht.core.method import Method, View
from fedjax_ht.core.round import Channel, bucket_round
from fedjax_ht.core.samples import Data
from fedjax_ht.core.scoring_options import NormStatistics
from fedjax_ht.metrics.flops import bucket_work
from fedjax_ht.simulation.serving import run_server
from fedjax_ht.trust.attacks import Attack
from fedjax_ht.trust.defences import Defence, defended
from fedjax_ht.trust.privacy import Privacy

KEPT_PARTS = 64  # in a process, of all engines

# Functions of a method that a part calls; () is all of them.
ALL: tuple[str, ...] = ()
FIRST_STATE = ("init_client",)
FIRST_SERVER = ("init_server",)
STATE = ("init_server", "init_client", "broadcast", "receive")
SCORES = (*STATE, "predict")
GLOBAL_SCORES = ("global_params", "global_stats", "global_bucket")
# Attacks and privacy leave these as they are.
UNTOUCHED = frozenset([*FIRST_STATE, *FIRST_SERVER, *GLOBAL_SCORES])
FUNCTIONS = (*SCORES, *GLOBAL_SCORES, "client_update", "server_update", "check")


def made_by(method: Method) -> Any:
    """Returns what programs depend on of a method."""
    # Numbers that vary are arguments, as are pretrained variables.
    return method.vary or method._replace(pretrained=method.pretrained._replace(variables=()))


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
    return run_server(defended(method, robust), federation, bound)


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
